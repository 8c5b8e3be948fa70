"""Masks that cancel: what is added to a party's words so that nobody reads them before they are summed.

    sent_i = words_i + Σ_{j>i} stream(k_ij) - Σ_{j<i} stream(k_ij)   (mod 2^64)        Σ_i sent_i = Σ_i words_i

A party is a rank, or a client. For every exchange each party makes a new X25519 key and publishes its public half; k_ij
is hashed from what two of them agree on, and a ChaCha20 stream under it is the mask of this pair (Bonawitz et al. 2017,
without their dropout recovery: where a rank is lost, the round is repeated). Integers are added modulo 2^64, so the
masks cancel to the bit. Two parties on the same rank need none: this rank sees both anyway.
"""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedddp.exchange.group import Exchange

KEY = 4  # int64 words of a public key
NOBODY = -(2**63)
CHUNK = 1 << 14  # words that are masked at a time: streams stay in the cache


class Pair(NamedTuple):
    """One party here, one elsewhere."""

    key: bytes
    sign: int  # +1 for the lower of the two, -1 for the other


def available() -> str:
    """Why masks cannot be made here; nothing if they can."""
    try:
        import cryptography  # noqa: F401  optional
    except ImportError:
        return "needs the package cryptography: pip install 'fedddp[privacy]'"
    return ""


def meet(exchange: Exchange, parties: Sequence[int]) -> list[Pair]:
    """Every rank calls this with the rank that each party is on; the keys of its own pairs, made for this once."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

    mine = {party: X25519PrivateKey.generate() for party, rank in enumerate(parties) if rank == exchange.rank}
    said = [NOBODY] * (KEY * len(parties))
    for party, key in mine.items():
        said[KEY * party : KEY * (party + 1)] = array("q", key.public_key().public_bytes_raw()).tolist()
    heard = exchange.agree(said) if len(parties) > len(mine) else said
    public = [array("q", heard[at : at + KEY]).tobytes() for at in range(0, len(heard), KEY)]
    pairs = []
    for party, private in mine.items():
        for other, rank in enumerate(parties):
            if rank != exchange.rank:
                secret = private.exchange(X25519PublicKey.from_public_bytes(public[other]))
                low, high = sorted((party, other))
                pairs.append(Pair(_derive(secret, public[low] + public[high]), 1 if party == low else -1))
    return pairs


def _derive(secret: bytes, both: bytes) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), 32, salt=both, info=b"fedddp masks").derive(secret)


@dataclass
class Masks:
    """The masks of one exchange: every call takes the next words of the streams."""

    pairs: Sequence[Pair]

    def __post_init__(self) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

        nonce = bytes(16)  # a key has one stream
        self.zeros, self.buffer = bytes(8 * CHUNK), bytearray(8 * CHUNK)
        self.mask = torch.frombuffer(self.buffer, dtype=torch.int64)
        self.streams = [(Cipher(ChaCha20(p.key, nonce), mode=None).encryptor(), p.sign) for p in self.pairs]

    def hide(self, words: Tensor, into: Tensor) -> None:
        """This rank's words and the next masks, of which only the sum is ever written into `into`."""
        if not self.streams:
            into.copy_(words)
            return
        *others, last = self.streams
        for part, seen in zip(words.split(CHUNK), into.split(CHUNK), strict=True):
            for pair in others:
                self._add(part, pair, part)
            self._add(part, last, seen)

    def _add(self, part: Tensor, pair: tuple[Any, int], into: Tensor) -> None:
        (stream, sign), size = pair, 8 * part.numel()
        stream.update_into(memoryview(self.zeros)[:size], memoryview(self.buffer)[:size])
        torch.add(part, self.mask[: part.numel()].to(part.device), alpha=sign, out=into)


Hide = Callable[[Tensor, Tensor], None]


def unmasked(words: Tensor, into: Tensor) -> None:
    """The plain sum."""
