"""job.json in a run's folder: where the run was sent to, and what became of it as far as its launcher knows."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path

from fedddp.core.files import SEAL, Damaged, read_record, write_record

NAME = "job.json"


@dataclass(frozen=True)
class Ticket:
    cluster: str  # slurm, or local
    job: str  # Slurm's id, or the folder that a local sweep holds locked while it lives
    words: list[str]  # the settings that make this run
    rounds: int
    ranks: int
    log: str  # path of a rank's log, with {rank} in it
    outcome: str = "queued"  # what a local sweep notes: queued, running, failed, stopped; or cancelled

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        write_record(folder / NAME, asdict(self))

    def note(self, folder: Path, outcome: str) -> None:
        replace(self, outcome=outcome).write(folder)

    def logs(self) -> list[Path]:
        """Of all ranks that wrote one, in order."""
        paths = (Path(self.log.format(rank=rank)) for rank in range(self.ranks))
        return [path for path in paths if path.exists()]


def read(folder: Path) -> Ticket | None:
    """None where there is none, or where it cannot be read: `damage` says which."""
    try:
        return _read(folder / NAME)
    except (FileNotFoundError, ValueError):
        return None


def damage(folder: Path) -> str:
    """What is wrong with job.json; "" if nothing is, or if there is none."""
    try:
        _read(folder / NAME)
    except FileNotFoundError:
        return ""
    except ValueError as error:
        return str(error)
    return ""


def _read(path: Path) -> Ticket:
    told = read_record(path)
    told.pop(SEAL, None)
    try:
        return Ticket(**told)
    except TypeError as error:
        raise Damaged(f"{path}: is damaged ({error})") from error
