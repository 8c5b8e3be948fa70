"""Finding and opening a publisher's files, with errors that name the file and the remedy."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedddp.core.check import first_line
from fedddp.core.data import root


def own(setting: str, file: str) -> Path:
    """A file of the user's: from the current folder, as any path, or from the data root."""
    path = Path(file).expanduser()
    for place in (Path.cwd(), root(setting)):
        if (place / path).is_file():
            return place / path
    raise missing(file, [Path.cwd(), root(setting)], "data.file is a path from the current folder")


def find(setting: str, folders: Sequence[str], names: Sequence[str], remedy: str) -> Path:
    """The first of `names` in the first of `folders` (under the data root, then the root itself) that has one."""
    places = [root(setting) / folder for folder in (*folders, "")]
    for place in places:
        for name in names:
            if (place / name).is_file():
                return place / name
    raise missing(" or ".join(names), places, remedy)


def missing(what: str, places: Sequence[Path], remedy: str) -> ValueError:
    """What was looked for, where, and how to come by it."""
    where = ", nor in ".join(map(str, places))
    return ValueError(
        f"{what}: not found in {where}; {remedy}, or point data.root or FEDDDP_DATA at the folder that has it"
    )


def downloads(name: str) -> str:
    """The remedy for a set that `fedddp data get` can fetch."""
    return f"get it with `fedddp data get {name}`"


@contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Whatever goes wrong inside becomes one line about the file: it is not what its name says."""
    try:
        yield
    except Exception as error:  # decompressors, unpicklers and parsers each raise their own
        raise ValueError(
            f"{path}: cannot be read as {kind}, it may be truncated or damaged: {first_line(error)}"
        ) from error
