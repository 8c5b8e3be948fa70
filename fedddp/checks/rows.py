"""What came of the checks: a row each, shown as soon as it is known."""

import shutil
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from fedddp.core import trace
from fedddp.core.progress import waiting

WIDTHS = (28, 9)  # of the name and of the outcome
LEAST = 40  # characters that are left for what was seen, on any terminal


class Broken(Exception):
    """A promise does not hold; the text says what was seen."""


class Skipped(Exception):
    """A check cannot be made here; the text says why."""


class Failure(RuntimeError):
    """What a rank of a check said when it failed, in another process."""

    def __init__(self, text: str, whole: str) -> None:
        super().__init__(text)
        self.whole = whole


class Row(NamedTuple):
    name: str
    outcome: str  # ok, FAILED, skipped or info
    seen: str
    trace: str = ""


@dataclass
class Sheet:
    """The rows so far; `say` is given each as text."""

    say: Callable[[str], None] = print
    debug: bool = False  # show the whole trace of an exception, too
    rows: list[Row] = field(default_factory=list)

    def hold(self, name: str, check: Callable[[], str], outcome: str = "ok") -> bool:
        """Whether the check held: it returns what was seen, or raises."""
        try:
            with waiting(name):
                row = Row(name, outcome, check())
        except Skipped as error:
            row = Row(name, "skipped", str(error))
        except Broken as error:
            row = Row(name, "FAILED", str(error))
        except Failure as error:
            row = Row(name, "FAILED", str(error), error.whole)
        except Exception as error:
            row = Row(name, "FAILED", trace.told(error), trace.whole(error))
        self.add(row)
        return row.outcome != "FAILED"

    def add(self, row: Row) -> None:
        if not self.rows:
            self.say(_line("check", "outcome", "seen"))
        self.rows.append(row)
        self.say(_line(row.name, row.outcome, row.seen))
        if self.debug and row.trace:
            self.say(textwrap.indent(row.trace.rstrip(), "    "))

    def skip(self, names: list[str], why: str) -> None:
        for name in names:
            self.add(Row(name, "skipped", why))

    @property
    def failed(self) -> list[str]:
        """The names of the checks that do not hold."""
        return [row.name for row in self.rows if row.outcome == "FAILED"]


def _line(name: str, outcome: str, seen: str) -> str:
    left = sum(WIDTHS)
    width = max(shutil.get_terminal_size((120, 24)).columns - left, LEAST)
    lines = [part for line in seen.splitlines() or [""] for part in textwrap.wrap(line, width) or [""]]
    first = f"{name:<{WIDTHS[0]}}{outcome:<{WIDTHS[1]}}{lines[0]}".rstrip()
    return "\n".join([first, *(" " * left + line for line in lines[1:])])
