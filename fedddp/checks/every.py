"""All checks of one thing, by what kind of thing it is."""

from collections.abc import Sequence

from fedddp.checks import data, kind, method, model, split
from fedddp.checks.rows import Sheet
from fedddp.core.check import check as require


def check(sheet: Sheet, what: str, words: Sequence[str] = (), section: str = "", most: int = 4) -> None:
    """Fill the sheet for `what`, a name or a class's path, with further settings and on up to `most` ranks."""
    require("--ranks", most, most >= 2, "at least 2, so that there is something to compare")
    section = section or kind.guess(what)
    if section == "method":
        method.check(sheet, kind.with_solver(what, words), most)
    elif section == "local":
        method.check(sheet, kind.with_method(what, words), most)
    else:
        room = {"split": split, "data": data, "model": model}[section]
        room.check(sheet, [f"{section}={what}", *words], most)
