"""The table that `fedddp status` prints."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedddp.jobs import states, ticket
from fedddp.jobs.states import State

HEAD = ("run", "state", "round", "metric", "rounds/min", "left", "")


def table(found: Mapping[Path, State], below: Path) -> str:
    """A line per run, then how many are in which state."""
    settings = differences({folder: mine.words if (mine := ticket.read(folder)) else () for folder in found})
    rows = [HEAD, *(_row(folder, state, below, settings[folder]) for folder, state in found.items())]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    counts = Counter(state.name for state in found.values())
    return "\n".join([*lines, "", ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))])


def _row(folder: Path, state: State, below: Path, settings: str) -> tuple[str, ...]:
    reached = states.progress(folder)
    moving = state.name == "running" and reached.pace > 0
    pace = f"{60 / reached.pace:.1f}" if moving else ""
    left = _time((reached.rounds - reached.done) * reached.pace) if moving else ""
    name = str(folder.relative_to(below)) if folder != below else folder.name
    detail = "  ".join(filter(None, (settings, state.detail)))
    return name, state.name, f"{reached.done}/{reached.rounds}", reached.metric, pace, left, detail


def differences(words: Mapping[Path, Sequence[str]]) -> dict[Path, str]:
    """What tells a sweep's runs apart: the words that not all of them have; all words of a single run."""
    counts = Counter(word for given in words.values() for word in given)
    shared = {word for word, count in counts.items() if count == len(words) > 1}
    return {folder: " ".join(word for word in given if word not in shared) for folder, given in words.items()}


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
