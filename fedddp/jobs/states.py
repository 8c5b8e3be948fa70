"""What has become of each run: its files say whether it is done, its scheduler or its lock whether it is alive."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedddp.core.files import check_text, damaged, read_record
from fedddp.jobs import queue, ticket
from fedddp.jobs.ticket import Ticket
from fedddp.records.metrics import parse
from fedddp.runs import lock

ACTIVE = ("queued", "requeued", "running")
WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT")
ALIVE = ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING")
TAIL = 1 << 16  # bytes of a log or of the metrics that are read


@dataclass(frozen=True)
class State:
    name: str  # new, queued, requeued, running, done, failed, cancelled or stopped
    detail: str = ""

    @property
    def active(self) -> bool:
        return self.name in ACTIVE


def find(folder: Path) -> list[Path]:
    """Every run below a folder, or the folder itself."""
    marks = {path.parent for name in ("config.yaml", ticket.NAME) for path in folder.rglob(name)}
    if not marks:
        raise ValueError(f"{folder}: no run (config.yaml) in it or below")
    return sorted(marks)


def look(folders: Iterable[Path]) -> dict[Path, State]:
    """The state of each run; the scheduler is asked once."""
    tickets = {folder: ticket.read(folder) for folder in folders}
    open_jobs = [t.job for f, t in tickets.items() if t and t.cluster == "slurm" and not _done(f)]
    known = queue.states(open_jobs)
    return {folder: _with_damage(folder, _state(folder, found, known)) for folder, found in tickets.items()}


def _with_damage(folder: Path, state: State) -> State:
    """The state, and what of the run's files cannot be read."""
    found = damage(folder)
    return State(state.name, "; ".join(filter(None, (state.detail, *found)))) if found else state


def damage(folder: Path) -> list[str]:
    """What is wrong with the records that a state is read from, each by its file; all else is the reports' to say."""
    found, rounds = [ticket.damage(folder)], 0
    try:
        check_text(folder / "config.yaml")
        rounds = int(read_record(folder / "summary.json").get("rounds", 0))
    except FileNotFoundError:
        pass
    except ValueError as error:
        found.append(f"{error}; --resume makes it anew")
    records = _recent(folder, found.append)
    if rounds and (not records or records[-1]["round"] != rounds):
        found.append(f"{folder / 'metrics.jsonl'}: has lost the last rounds")
    return [text for text in found if text]


def _state(folder: Path, found: Ticket | None, known: dict[str, str]) -> State:
    if _done(folder):
        return State("done")
    if found is None:
        owner = lock.holder(folder)
        if owner is not None:
            return State("running", lock.describe(owner))
        return State("stopped" if (folder / "config.yaml").exists() else "new")
    return _in_slurm(found, known.get(found.job, "")) if found.cluster == "slurm" else _here(folder, found)


def _done(folder: Path) -> bool:
    """A summary that can be believed: a damaged one is made anew by --resume, so its run is not done."""
    return not damaged(folder / "summary.json")


def _in_slurm(found: Ticket, answer: str) -> State:
    word, _, reason = answer.partition("|")
    word = word.partition(" ")[0]  # CANCELLED by 1000
    if word in WAITING:
        return State("requeued" if found.logs() else "queued", f"job {found.job}: {reason}")
    if word in ALIVE:
        return State("running", f"job {found.job}")
    if word == "CANCELLED" or (found.outcome == "cancelled" and not word):
        return State("cancelled", f"job {found.job}")
    return State("failed", f"job {found.job} {word.lower().replace('_', ' ') or 'ended'}: {last_error(found)}")


def _here(folder: Path, found: Ticket) -> State:
    """A local sweep holds its own folder locked as long as it lives; a run, its own too."""
    owner = lock.holder(folder)
    if owner is not None:
        return State("running", lock.describe(owner))
    if found.outcome in ("queued", "running") and lock.holder(Path(found.job)) is None:
        return State("stopped", "its sweep was ended")
    return State(found.outcome, last_error(found) if found.outcome == "failed" else "")


def last_error(found: Ticket) -> str:
    """The cause as the failing rank wrote it; that others lost contact with it is only a consequence."""
    tails = [tail(path).splitlines() for path in found.logs()]
    spoken = [line for lines in tails for line in lines if line.startswith("fedddp: ")]
    causes = [line for line in spoken if "lost contact with another rank" not in line] or spoken
    written = [line for lines in tails[:1] for line in lines if line.strip()]
    return (causes or written or ["no log was written"])[-1].removeprefix("fedddp: ")


def tail(path: Path) -> str:
    """The end of a file, from the start of a line."""
    with open(path, "rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - TAIL))
        text = file.read().decode(errors="replace")
    return text if size <= TAIL else text.partition("\n")[2]


@dataclass(frozen=True)
class Progress:
    done: int
    rounds: int
    metric: str  # accuracy, or what the run has instead
    pace: float  # seconds per round, of the last ten


def progress(folder: Path) -> Progress:
    """From the end of metrics.jsonl."""
    records = _recent(folder, lambda _: None)
    found = ticket.read(folder)
    rounds = found.rounds if found else _configured_rounds(folder)
    if not records:
        return Progress(0, rounds, "", 0.0)
    shown = next((r[k] for r in reversed(records) for k in ("accuracy", "rmse", "nll") if r.get(k) is not None), None)
    seconds = [record.get("seconds", 0.0) for record in records[-10:]]
    metric = f"{shown:.4f}" if isinstance(shown, int | float) else ""
    return Progress(records[-1]["round"], rounds, metric, sum(seconds) / len(seconds))


def _recent(folder: Path, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """The last records of metrics.jsonl."""
    path = folder / "metrics.jsonl"
    if not path.is_file():
        return []
    text = tail(path)
    return parse(text.encode(), path, say, first=1 if path.stat().st_size <= TAIL else 0)


def _configured_rounds(folder: Path) -> int:
    """0 where config.yaml does not tell."""
    from omegaconf import OmegaConf

    try:
        return int(OmegaConf.select(OmegaConf.load(folder / "config.yaml"), "federation.rounds"))
    except Exception:  # the YAML library's own error types are not public; `damage` names the file
        return 0
