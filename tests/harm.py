"""What a disk, a kill or a careless hand does to a file."""

from collections.abc import Callable
from pathlib import Path


def flip(path: Path) -> None:
    """One bit of the byte in the middle."""
    data = bytearray(path.read_bytes())
    if data:
        data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def remove(path: Path) -> None:
    path.unlink()


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


HARMS: dict[str, Callable[[Path], None]] = {f.__name__: f for f in (flip, truncate, empty, remove, folder)}
