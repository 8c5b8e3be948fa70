"""One clear line for a value out of range or a name that is not known."""

import difflib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

LONGEST = 80  # letters of a value that an error shows
MANY = 240  # letters of a list of choices


def check(key: str, value: object, fine: bool, choices: str) -> None:
    """An error that names the key, the value and what it must be."""
    if not fine:
        raise ValueError(f"{key}={shown(value)}: must be {choices}")


def check_count(key: str, value: int, least: int = 1, most: int = 10**9) -> None:
    """A number of things: what is beyond all use would end as an overflow or without memory."""
    check(key, value, least <= value <= most, f"from {least} to {most:,}")


def shown(value: object) -> str:
    """A value as it is written in a setting, on one line and not too long."""
    text = one_line(_text(value))
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def one_line(text: str) -> str:
    """Without line breaks and what else does not print."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def first_line(error: BaseException) -> str:
    """The head of what an error of another library says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return one_line(lines[0])[:200] if lines else type(error).__name__


def hint(name: object, known: Iterable[str], prefix: str = "") -> str:
    """`did you mean`, or all there is to choose from."""
    names = sorted(known)
    close = closest(name, names)
    if close:
        return f"did you mean {prefix}{close}?"
    every = ", ".join(names)
    return f"choose from {every if len(every) <= MANY else every[:MANY].rpartition(',')[0] + ', ...'}"


def closest(name: object, known: Iterable[str]) -> str:
    """The one of the known names that was probably meant, or nothing."""
    return next(iter(difflib.get_close_matches(str(name), sorted(known), 1)), "")


def fits_memory(what: str, size: int, remedy: str) -> None:
    """A refusal of what is larger than the whole machine, where an attempt would end in a kill without a word."""
    most, where = memory()
    if size > most:
        raise ValueError(f"{what}: {size / 2**30:,.0f} GB of memory, {where} has {most / 2**30:,.1f}; {remedy}")


def memory(groups: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> tuple[int, str]:
    """Bytes that this process can have at most, and whose they are: a container may have fewer than its machine."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = [limit for folder in _groups(groups, root) for limit in _limits(folder)]
    least = min(limits, default=machine)
    return (least, "this container") if least < machine else (machine, "this machine")


def _groups(groups: Path, root: Path) -> Iterator[Path]:
    """Folders of the control groups that this process is in, and of those around them."""
    lines = groups.read_text().splitlines() if groups.is_file() else []
    for line in lines:
        _, kinds, path = line.split(":", 2)
        if kinds == "" or "memory" in kinds.split(","):
            top = root / "memory" if kinds else root
            inner = top / path.lstrip("/")
            yield from (folder for folder in (inner, *inner.parents) if folder == top or top in folder.parents)


def _limits(folder: Path) -> Iterator[int]:
    for name in ("memory.max", "memory.limit_in_bytes"):  # the second and the first version of control groups
        try:
            text = (folder / name).read_text().strip()
        except OSError:
            continue
        if text.isdigit():  # or "max"
            yield int(text)


def _text(value: object) -> str:
    """In YAML's words; an integer may be too long for Python to write."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    try:
        return str(value)
    except ValueError:
        return "a number of thousands of digits"
