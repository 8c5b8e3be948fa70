"""Exact samples of the discrete Gaussian on the integers (Canonne, Kamath & Steinke 2020, Algorithms 1 to 3).

    P(X = x) ∝ exp(-x²/(2 scale²)),    x in Z

All arithmetic is on integers: no rounding error of a floating-point sampler can be seen in what comes out. Random bits
are a ChaCha20 stream; many samples are made at once, and those that a step rejects are tried again.

    exp(-n/d), n ≤ d     draw Bernoulli(n/(d k)) for k = 1, 2, ... until one fails; true where k is odd
    Laplace              u + scale·v, u < scale kept with exp(-u/scale), v counting successes of exp(-1); a sign; no -0
    Gaussian             y from Laplace, kept with exp(-(|y| - scale)²/(2 scale²))
"""

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Truth = NDArray[np.bool_]
KEY = 32  # bytes
LARGEST = 1 << 23  # scale: (30 scale)² and 2 scale²·k stay far below 2^63


def key_of(*name: int | str | bytes) -> bytes:
    """A key for a name such as (seed, "privacy", round, field)."""
    return blake2b(repr(name).encode(), digest_size=KEY).digest()


class Bits:
    """Uniform random integers from a ChaCha20 stream; a key has one stream."""

    def __init__(self, key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

        self.stream = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()

    def words(self, count: int) -> Ints:
        """[count] integers below 2^63."""
        return np.frombuffer(self.stream.update(bytes(8 * count)), dtype=np.int64) & np.int64(2**63 - 1)

    def below(self, bound: Ints) -> Ints:
        """Uniform in 0..bound-1, for each bound: what lies beyond the last whole multiple of it is drawn again."""
        found = np.empty_like(bound)
        left = np.arange(len(bound))
        while len(left):
            own, drawn = bound[left], self.words(len(left))
            rest = drawn % own
            fine = drawn - rest <= (2**63 - 1) - (own - 1)
            found[left[fine]] = rest[fine]
            left = left[~fine]
        return found

    def heads(self, count: int) -> Truth:
        return (self.words(count) & 1).astype(np.bool_)


def discrete_gaussian(scale: int, count: int, bits: Bits) -> Ints:
    """[count] samples."""
    if not 1 <= scale <= LARGEST:
        raise ValueError(f"scale of a discrete Gaussian: {scale}, must be from 1 to {LARGEST}")
    found = np.empty(count, dtype=np.int64)
    left = np.arange(count)
    while len(left):
        drawn = discrete_laplace(scale, len(left), bits)
        away = np.abs(drawn) - scale
        kept = exponential(away * away, 2 * scale * scale, bits)
        found[left[kept]] = drawn[kept]
        left = left[~kept]
    return found


def discrete_laplace(scale: int, count: int, bits: Bits) -> Ints:
    """[count] samples of P(x) ∝ exp(-|x|/scale)."""
    found = np.empty(count, dtype=np.int64)
    left = np.arange(count)
    while len(left):
        low = bits.below(np.full(len(left), scale))
        kept = _unit(low, scale, bits)
        size = low + scale * _successes(len(left), bits)
        negative = bits.heads(len(left))
        kept &= ~(negative & (size == 0))
        found[left[kept]] = np.where(negative, -size, size)[kept]
        left = left[~kept]
    return found


def exponential(numerator: Ints, denominator: int, bits: Bits) -> Truth:
    """True with probability exp(-numerator/denominator), numerator ≥ 0."""
    whole, rest = np.divmod(numerator, denominator)
    kept = _unit(rest, denominator, bits)
    left = np.flatnonzero(kept & (whole > 0))
    while len(left):
        fine = _unit(np.ones(len(left), dtype=np.int64), 1, bits)
        kept[left[~fine]] = False
        whole[left] -= 1
        left = left[fine]
        left = left[whole[left] > 0]
    return kept


def _successes(count: int, bits: Bits) -> Ints:
    """How often in a row exp(-1) came true."""
    found = np.zeros(count, dtype=np.int64)
    left = np.arange(count)
    while len(left):
        left = left[_unit(np.ones(len(left), dtype=np.int64), 1, bits)]
        found[left] += 1
    return found


def _unit(numerator: Ints, denominator: int, bits: Bits) -> Truth:
    """True with probability exp(-numerator/denominator), 0 ≤ numerator ≤ denominator."""
    odd = np.ones(len(numerator), dtype=np.bool_)
    left, k = np.arange(len(numerator)), 1
    while len(left):
        left = left[bits.below(np.full(len(left), denominator * k)) < numerator[left]]
        odd[left] = ~odd[left]
        k += 1
    return odd
