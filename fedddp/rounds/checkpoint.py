"""Checkpoints: the server's state, every client's memory by id, and the round; complete or not there at all.

A checkpoint is a folder `round-000012` of safetensors files (numbers only, nothing that could run) and about.json,
which has their digests and one of itself. It is written aside, synced to the disk, and renamed when all ranks are
done. Client rows are found by client id, so a run may come back on any number of ranks. A damaged checkpoint is
reported and the one before it is used.
"""

import json
import os
import re
import shutil
import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedddp.core import tree
from fedddp.core.device import to_host
from fedddp.core.files import SEAL, Damaged, naming, read_record, sync, write_record
from fedddp.exchange.group import Exchange
from fedddp.rounds.store import ClientStore, pieces

ABOUT, SERVER = "about.json", "server.safetensors"
DIGEST = 16  # bytes
KINDS = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}  # safetensors' names
NO_MORE: Mapping[str, Any] = {}


def fingerprint() -> dict[str, str]:
    """What bits may depend on beside the config."""
    found = {"torch": torch.__version__, "cpu": torch.backends.cpu.get_cpu_capability()}
    if torch.cuda.is_available():
        found["gpu"] = f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"
    return found


def save_tensors(
    path: Path,
    named: Mapping[str, Tensor],
    about: Mapping[str, str] = NO_MORE,
    let_go: Callable[[], None] = lambda: None,
) -> str:
    """A safetensors file, flushed to disk, and its digest; a piece at a time, so that nothing is held twice.

    `let_go` is called after each piece: rows in a mapped file need not stay in memory.
    """
    digest = blake2b(digest_size=DIGEST)
    with naming(path), open(path, "wb") as file:
        for data in _as_file(named, about):
            file.write(data)
            digest.update(data)
            let_go()
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def _as_file(named: Mapping[str, Tensor], about: Mapping[str, str]) -> Iterator[Any]:
    """The bytes of a safetensors file: the header's length, the header, and every tensor's numbers."""
    header: dict[str, Any] = {"__metadata__": dict(about)} if about else {}
    end = 0
    for name, leaf in named.items():
        start, end = end, end + leaf.numel() * leaf.itemsize
        header[name] = {"dtype": KINDS[leaf.dtype], "shape": list(leaf.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield struct.pack("<Q", len(text)) + text
    for leaf in named.values():
        rows = leaf.detach().reshape(1, -1) if leaf.dim() < 2 else leaf.detach()
        for piece in pieces(len(rows), rows):
            part = to_host({"": rows[piece]})[""]
            yield part.contiguous().reshape(-1).view(torch.uint8).numpy().data


def load_tensors(path: Path) -> dict[str, Tensor]:
    with safe_open(path, framework="pt") as file:  # type: ignore[no-untyped-call]
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def save(
    folder: Path,
    round_: int,
    server: Any,
    store: ClientStore,
    exchange: Exchange,
    more: Mapping[str, Any] = NO_MORE,
    before: Path | None = None,
) -> Path:
    """Write the state after `round_` rounds, and what `more` says about it; every rank calls this.

    `before` is the whole checkpoint that stays as the last resort; all others are removed. The folder above must be
    there: one that was removed while the run was at work is not made again.
    """
    final = folder / f"round-{round_:06d}"
    aside = folder / f".{final.name}"
    with everywhere(exchange):
        if exchange.rank == 0:
            folder.mkdir(exist_ok=True)
            tidy(folder)
            aside.mkdir()
    mine = {}
    if not store.empty:
        mine[_shard(exchange.rank)] = store.tensors()
    if exchange.rank == 0:
        mine[SERVER] = tree.leaves(server)
    digests = {}
    with everywhere(exchange):
        for name, tensors in mine.items():
            digests[name] = save_tensors(aside / name, tensors, let_go=store.let_go)
    shards = _told(exchange, digests.get(_shard(exchange.rank), ""))
    with everywhere(exchange):
        if exchange.rank == 0:
            files = {SERVER: digests[SERVER]} | {_shard(rank): found for rank, found in enumerate(shards) if found}
            about = {"round": round_, "world_size": exchange.world_size, **fingerprint(), **more, "files": files}
            write_record(aside / ABOUT, about)
            _put(aside, final)
            keep_only(folder, {final, before})
    return final


def _shard(rank: int) -> str:
    return f"clients-{rank:04d}.safetensors"


def _told(exchange: Exchange, digest: str) -> list[str]:
    """Every rank's digest, "" from those that have none. Not through files: another node may see them later."""
    size = 8  # hexadecimal digits that are one number
    numbers = [int(digest[at : at + size], 16) if digest else -1 for at in range(0, 2 * DIGEST, size)]
    return ["".join(f"{n:08x}" for n in said) if said[0] >= 0 else "" for said in exchange.gather(numbers)]


def _put(aside: Path, final: Path) -> None:
    """Give a written folder its name, when all of it is on the disk."""
    sync(aside)
    if final.exists():
        _remove(final)
    aside.rename(final)
    sync(final.parent)


def keep_only(folder: Path, kept: Collection[Path | None]) -> None:
    for path in found(folder):
        if path not in kept:
            _remove(path)


def _remove(path: Path) -> None:
    """Under another name first: a kill on the way must not leave half of what looks like a checkpoint."""
    old = path.with_name(f".old-{path.name}")
    _delete(old)
    path.rename(old)
    _delete(old)


def tidy(folder: Path) -> None:
    """Remove what a kill has left: of a save, or of a removal."""
    for left in (*folder.glob(".round-*"), *folder.glob(".old-*")):
        _delete(left)


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


@contextmanager
def everywhere(exchange: Exchange, what: str = "checkpoint") -> Iterator[None]:
    """A step that must succeed on all ranks: a full disk on one is an error on all."""
    failure = ""
    try:
        yield
    except (OSError, SafetensorError) as error:
        failure = f"{what}: cannot be written by rank {exchange.rank}: {error}"
    exchange.together(failure)


def found(folder: Path) -> list[Path]:
    """Checkpoints, oldest first; they got their names when they were complete."""
    return sorted((path for path in folder.glob("round-*") if re.fullmatch(r"round-\d+", path.name)), key=_round)


def _round(path: Path) -> int:
    return int(path.name.partition("-")[2])


def newest(folder: Path, warn: Callable[[str], None]) -> Path | None:
    """The newest checkpoint whose files are what was written."""
    paths = found(folder)
    for path in reversed(paths):
        if (path / f"{SERVER}.hash").exists():
            raise ValueError(
                f"{path}: was written by an earlier fedddp, without a checksum of all that a run would go on from; "
                f"finish the run with that version, or remove {folder} to start it from the beginning"
            )
        damage = _damage(path)
        if damage is None:
            return path
        warn(f"checkpoint {path.name} is damaged ({damage}); using the one before it")
    if paths:
        warn(f"{folder}: no whole checkpoint is left; the run starts from the beginning")
    return None


def load(path: Path, server: Any, store: ClientStore | None) -> tuple[Any, int]:
    """The server's state and the number of rounds done; our clients' rows go into the store, if one is given."""
    server = tree.rebuild(server, _like(load_tensors(path / SERVER), server))
    described = about(path)
    if store is not None and not store.empty:
        shards = [path / name for name in sorted(described["files"]) if name != SERVER]
        missing = len(store.ids) - sum(store.fill(load_tensors(shard)) for shard in shards)
        if missing:
            raise ValueError(f"checkpoint {path} lacks {missing} clients of this run: it belongs to another split")
    return server, int(described["round"])


def about(path: Path) -> dict[str, Any]:
    """What a checkpoint says of itself, checked."""
    described = read_record(path / ABOUT)
    if SEAL not in described:
        raise Damaged(f"{path / ABOUT}: is damaged (its digest is missing)")
    return described


def _like(named: dict[str, Tensor], server: Any) -> dict[str, Tensor]:
    wanted = tree.leaves(server)
    if set(wanted) != set(named):
        raise ValueError(f"checkpoint holds {sorted(named)}, this method keeps {sorted(wanted)}")
    return {name: leaf.to(wanted[name].device) for name, leaf in named.items()}


def _damage(path: Path) -> str | None:
    """What is wrong with a checkpoint, if anything."""
    try:
        described = about(path)
    except FileNotFoundError:
        return f"{ABOUT} is missing"
    except (Damaged, OSError) as error:
        return str(error)
    if described["round"] != _round(path):
        return f"{ABOUT} is of round {described['round']}"
    for name, written in described["files"].items():
        try:
            if digest(path / name) != written:
                return f"{name} does not match its checksum"
        except FileNotFoundError:
            return f"{name} is missing"
        except OSError as error:
            return f"{name}: {error.strerror}"
    return None


def digest(path: Path) -> str:
    """Of a file's bytes; what `save_tensors` returns."""
    found = blake2b(digest_size=DIGEST)
    with open(path, "rb") as file:
        while block := file.read(1 << 22):
            found.update(block)
    return found.hexdigest()
