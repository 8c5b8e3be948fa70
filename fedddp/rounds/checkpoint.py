"""Checkpoints: the server's state, every client's memory by id, and the round; complete or not there at all.

A checkpoint is a folder `round-000012` of safetensors files (numbers only, nothing that could run), written aside,
hashed, and renamed when all ranks are done. Client rows are found by client id, so a run may come back on any number
of ranks. A damaged checkpoint is reported and the one before it is used.
"""

import json
import os
import shutil
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedddp.core import tree
from fedddp.core.device import to_host
from fedddp.exchange.group import Exchange
from fedddp.rounds.store import ClientStore, pieces

KEEP = 2
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
    with open(path, "wb") as file:
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
    folder: Path, round_: int, server: Any, store: ClientStore, exchange: Exchange, more: Mapping[str, Any] = NO_MORE
) -> None:
    """Write the state after `round_` rounds, and what `more` says about it; every rank calls this."""
    final = folder / f"round-{round_:06d}"
    aside = folder / f".{final.name}"
    with _everywhere(exchange):
        if exchange.rank == 0:
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(parents=True)
    mine = {}
    if not store.empty:
        mine[f"clients-{exchange.rank:04d}.safetensors"] = store.tensors()
    if exchange.rank == 0:
        mine["server.safetensors"] = tree.leaves(server)
    with _everywhere(exchange):
        for name, named in mine.items():
            (aside / f"{name}.hash").write_text(save_tensors(aside / name, named, let_go=store.let_go))
    with _everywhere(exchange):
        if exchange.rank == 0:
            about = {"round": round_, "world_size": exchange.world_size, **fingerprint(), **more}
            _write_json(aside / "about.json", about)
            shutil.rmtree(final, ignore_errors=True)
            aside.rename(final)
            for old in found(folder)[:-KEEP]:
                shutil.rmtree(old)


@contextmanager
def _everywhere(exchange: Exchange) -> Iterator[None]:
    """A step that must succeed on all ranks: a full disk on one is an error on all."""
    failure = ""
    try:
        yield
    except (OSError, SafetensorError) as error:
        failure = f"checkpoint: cannot be written by rank {exchange.rank}: {error}"
    exchange.together(failure)


def found(folder: Path) -> list[Path]:
    """Complete checkpoints, oldest first."""
    return sorted(path for path in folder.glob("round-*") if (path / "about.json").exists())


def newest(folder: Path, warn: Callable[[str], None]) -> Path | None:
    """The newest checkpoint whose files are what was written."""
    for path in reversed(found(folder)):
        damage = _damage(path)
        if damage is None:
            return path
        warn(f"checkpoint {path.name} is damaged ({damage}); using the one before it")
    return None


def load(path: Path, server: Any, store: ClientStore | None) -> tuple[Any, int]:
    """The server's state and the number of rounds done; our clients' rows go into the store, if one is given."""
    server = tree.rebuild(server, _like(load_tensors(path / "server.safetensors"), server))
    if store is not None and not store.empty:
        shards = sorted(path.glob("clients-*.safetensors"))
        missing = len(store.ids) - sum(store.fill(load_tensors(shard)) for shard in shards)
        if missing:
            raise ValueError(f"checkpoint {path} lacks {missing} clients of this run: it belongs to another split")
    return server, int(about(path)["round"])


def about(path: Path) -> dict[str, Any]:
    described: dict[str, Any] = json.loads((path / "about.json").read_text())
    return described


def _like(named: dict[str, Tensor], server: Any) -> dict[str, Tensor]:
    wanted = tree.leaves(server)
    if set(wanted) != set(named):
        raise ValueError(f"checkpoint holds {sorted(named)}, this method keeps {sorted(wanted)}")
    return {name: leaf.to(wanted[name].device) for name, leaf in named.items()}


def _damage(path: Path) -> str | None:
    """What is wrong with a checkpoint, if anything."""
    for note in sorted(path.glob("*.hash")):
        file = note.with_suffix("")
        if not file.exists():
            return f"{file.name} is missing"
        try:
            load_tensors(file)
        except (SafetensorError, OSError) as error:
            return f"{file.name}: {error}"
        if _digest(file) != note.read_text():
            return f"{file.name} does not match its checksum"
    return None


def _digest(path: Path) -> str:
    digest = blake2b(digest_size=DIGEST)
    with open(path, "rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")
