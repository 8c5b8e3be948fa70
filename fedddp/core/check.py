"""One clear line for a value out of range or a name that is not known."""

import difflib
from collections.abc import Iterable


def check(key: str, value: object, fine: bool, choices: str) -> None:
    """An error that names the key, the value and what it must be."""
    if not fine:
        raise ValueError(f"{key}={value}: must be {choices}")


def hint(name: object, known: Iterable[str], prefix: str = "") -> str:
    """`did you mean`, or all there is to choose from."""
    names = sorted(known)
    close = difflib.get_close_matches(str(name), names, 1)
    return f"did you mean {prefix}{close[0]}?" if close else f"choose from {', '.join(names)}"
