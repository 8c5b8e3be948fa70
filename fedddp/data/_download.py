"""Fetching a published file: resumed where it broke off, checked, and only then given its name.

A file grows as NAME.part beside its place. Each attempt asks for what is still missing (HTTP Range); an attempt that
brings nothing counts against the patience, one that brings something does not. When all bytes are there the size and
the SHA-256 sum are compared, and only a file that passes is renamed (an archive: unpacked, and its files renamed).
"""

import hashlib
import os
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path

from tqdm import tqdm

from fedddp import __version__
from fedddp.core.progress import waiting
from fedddp.data._publishers import File, Published

CHUNK = 1 << 18
TIMEOUT = 30.0  # seconds without a byte
PATIENCE = 4  # attempts in a row that bring nothing


def get(published: Published, root: Path, mirror: str = "", pause: float = 1.0) -> list[str]:
    """Fetch what is not there yet into root/folder; one line about each file. `mirror` stands in for the publisher."""
    folder = root / published.folder
    folder.mkdir(parents=True, exist_ok=True)
    return [_settle(file, folder, mirror, pause) for file in published.files]


def present(published: Published, root: Path) -> bool:
    """All files are there (by name alone; `get` compares sums)."""
    names = [name for file in published.files for name, _ in file.members or ((file.name, 0),)]
    return all((root / published.folder / name).is_file() for name in names)


def _settle(file: File, folder: Path, mirror: str, pause: float) -> str:
    with waiting(f"comparing {file.name} with its sum"):
        there = _complete(file, folder)
    if there:
        return f"{folder / file.name}: already there"
    part = folder / f"{file.name}.part"
    url = f"{mirror.rstrip('/')}/{file.name}" if mirror else file.url
    _fetch(url, part, file.size, pause)
    with waiting(f"comparing {file.name} with its sum"):
        _check(url, part, file)
    if file.members:
        with waiting(f"unpacking {file.name}"):
            _unpack(part, file, folder)
        part.unlink()
        return f"{folder}: {', '.join(name for name, _ in file.members)}"
    part.replace(folder / file.name)
    return f"{folder / file.name}: {file.size:,} bytes"


def _complete(file: File, folder: Path) -> bool:
    if file.members:
        found = [(folder / name, size) for name, size in file.members]
        return all(path.is_file() and path.stat().st_size == size for path, size in found)
    path = folder / file.name
    return path.is_file() and path.stat().st_size == file.size and _sha256(path) == file.sha256


def _fetch(url: str, part: Path, size: int, pause: float) -> None:
    failures = 0
    have = part.stat().st_size if part.exists() else 0
    with tqdm(total=size, initial=have, unit="B", unit_scale=True, desc=part.stem, disable=None) as bar:
        while have < size:
            problem = _attempt(url, part, have, size, bar.update)
            now = part.stat().st_size if part.exists() else 0
            failures = 0 if now > have else failures + 1
            bar.n, have = now, now
            if failures == PATIENCE:
                raise ValueError(
                    f"{url}: {problem}; {have:,} of {size:,} bytes are kept in {part}, run it again to go on"
                )
            if have < size:
                time.sleep(pause * failures)


def _attempt(url: str, part: Path, have: int, size: int, progress: Callable[[int], object]) -> str:
    """Append what the server sends from byte `have` on; why it ended early, if it did."""
    headers = {"User-Agent": f"fedddp/{__version__}"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT) as answer:
            resumed = answer.status == 206
            with part.open("ab" if resumed else "wb") as out:
                progress(0 if resumed else -have)
                while chunk := answer.read(CHUNK):
                    if out.tell() + len(chunk) > size:
                        raise ValueError(f"{url}: sends more than the {size:,} bytes that were published")
                    out.write(chunk)
                    progress(len(chunk))
    except urllib.error.HTTPError as error:
        if error.code < 500:  # asking again will not help
            raise ValueError(f"{url}: the server answers {error.code} {error.reason}") from error
        return f"the server answers {error.code} {error.reason}"
    except (urllib.error.URLError, HTTPException, TimeoutError, ConnectionError) as error:
        return f"the connection failed ({getattr(error, 'reason', None) or error})"
    return "the connection ended early"


def _check(url: str, part: Path, file: File) -> None:
    found = _sha256(part)
    if part.stat().st_size != file.size or found != file.sha256:
        size = part.stat().st_size
        part.unlink()
        raise ValueError(
            f"{url}: is not the published file ({size:,} bytes, SHA-256 {found[:12]}...; expected {file.size:,}, "
            f"{file.sha256[:12]}...); it was removed, run it again or use another --mirror"
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _unpack(archive: Path, file: File, folder: Path) -> None:
    """Take the known members out of a tar archive by their last name, so that no path in it is ever followed."""
    wanted = dict(file.members)
    with tarfile.open(archive) as tar:
        for member in tar:
            name = os.path.basename(member.name)
            source = tar.extractfile(member) if member.isreg() and name in wanted else None
            if source is None or member.size != wanted[name]:
                continue
            aside = folder / f"{name}.part"
            with aside.open("wb") as out:
                while chunk := source.read(CHUNK):
                    out.write(chunk)
            del wanted[name]
    if wanted:
        raise ValueError(f"{archive}: lacks {', '.join(wanted)}")
    for name, _ in file.members:
        (folder / f"{name}.part").replace(folder / name)
