"""Files that are whole or not there: written under another name, synced and renamed; and records that damage shows in.

A record is a JSON object with a digest of the rest of it. A file without one (written by hand, or by an earlier
version) is believed.
"""

import errno
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from typing import Any

SEAL = "digest"  # a record's key
HEAD = "# digest "  # the first line of a text with a digest, which YAML takes for a comment
NO_FOLDERS = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES)  # from file systems that sync no folders


class Damaged(ValueError):
    """A file is not what was written; the text names it."""


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Where to write what is to be at `path`: it is renamed when it is on the disk, and gone if that fails.

    A reader never sees half of it; two writers at once leave what one of them wrote.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with naming(path, temporary):
            yield temporary
            sync(temporary)
            temporary.replace(path)
            sync(path.parent)
    except BaseException:
        with suppress(OSError):  # on a disk that cannot be written to there is nothing to remove either
            temporary.unlink(missing_ok=True)
        raise


@contextmanager
def naming(path: Path, temporary: Path | None = None) -> Iterator[None]:
    """An error of the disk names the file: a full disk says only that it is full."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename not in (None, str(path), str(temporary)):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def sync(path: Path) -> None:
    """A file's content, or a folder's names, to the disk."""
    place = os.open(path, os.O_RDONLY)
    try:
        os.fsync(place)
    except OSError as error:
        if not path.is_dir() or error.errno not in NO_FOLDERS:
            raise
    finally:
        os.close(place)


def write_text(path: Path, text: str) -> None:
    with whole(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: object) -> None:
    write_text(path, json.dumps(value, indent=2) + "\n")


def write_record(path: Path, value: Mapping[str, Any]) -> None:
    write_json(path, sealed(value))


def read_record(path: Path) -> dict[str, Any]:
    """What `write_record` wrote, with its digest; Damaged if it is something else, FileNotFoundError if it is gone."""
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise Damaged(f"{path}: is damaged ({error})") from error
    if not isinstance(found, dict) or not intact(found):
        raise Damaged(f"{path}: is damaged (it does not match its digest)")
    return found


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """With a digest of the rest as its last entry."""
    plain = {key: one for key, one in value.items() if key != SEAL}
    return plain | {SEAL: _digest(json.dumps(plain))}


def intact(value: Mapping[str, Any]) -> bool:
    """Whether a record is what was written. JSON that Python has written comes back as the same text."""
    return SEAL not in value or sealed(value)[SEAL] == value[SEAL]


def damaged(path: Path) -> str:
    """What is wrong with a record that should be there; "" if nothing is."""
    try:
        read_record(path)
    except FileNotFoundError:
        return f"{path}: is missing"
    except Damaged as error:
        return str(error)
    return ""


def write_sealed_text(path: Path, text: str) -> None:
    """A text behind a line with its digest: before it, because a file that is cut short loses its end."""
    write_text(path, f"{HEAD}{_digest(text)} of what follows\n{text}")


def check_text(path: Path) -> None:
    """Damaged if a text is not what `write_sealed_text` wrote, or empty."""
    try:
        text = path.read_bytes().decode()
    except FileNotFoundError:
        raise
    except (OSError, UnicodeDecodeError) as error:
        raise Damaged(f"{path}: is damaged ({error})") from error
    head, _, rest = text.partition("\n")
    if not text.strip() or (head.startswith(HEAD) and head.split()[2:3] != [_digest(rest)]):
        raise Damaged(f"{path}: is damaged (it does not match the digest in its first line)")


def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=8).hexdigest()


class Appended:
    """A file that only grows, a whole piece at a time; an error leaves it as it was, and names it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with naming(path):
            self.file = open(path, "ab", buffering=0)  # noqa: SIM115  open for the length of a run

    def write(self, data: bytes) -> None:
        self._still_there()
        with naming(self.path):
            size = os.fstat(self.file.fileno()).st_size
            try:
                rest = memoryview(data)
                while rest:
                    rest = rest[self.file.write(rest) :]
            except OSError:
                with suppress(OSError):
                    self.file.truncate(size)
                raise

    def _still_there(self) -> None:
        """A removed file takes writes without a word, and nobody can read them."""
        ours = os.fstat(self.file.fileno())
        try:
            named_now = self.path.stat()
            there = (named_now.st_dev, named_now.st_ino) == (ours.st_dev, ours.st_ino)
        except FileNotFoundError:
            there = False
        if not there:
            raise FileNotFoundError(
                f"{self.path}: was removed or replaced while the run was at work; its results have no place to go. "
                "Leave a run's folder alone until it has ended, and start the run again"
            )

    def sync(self) -> None:
        with naming(self.path):
            os.fsync(self.file.fileno())

    def close(self) -> None:
        self.file.close()


def folder(key: str, path: str) -> Path:
    """A folder from the current one; or package/folder, of a package that is installed."""
    place = Path(path).expanduser()
    if place.is_dir():
        return place
    package, _, inside = path.partition("/")
    found = find_spec(package) if package.isidentifier() else None
    for root in (found.submodule_search_locations or ()) if found is not None else ():
        if (Path(root) / inside).is_dir():
            return Path(root) / inside
    raise ValueError(f"{key}={path}: no such folder, nor one of an installed package; nothing is downloaded")
