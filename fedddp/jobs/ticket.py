"""job.json in a run's folder: where the run was sent to, and what became of it as far as its launcher knows."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from fedddp.core.files import write_json

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
        write_json(folder / NAME, asdict(self))

    def note(self, folder: Path, outcome: str) -> None:
        replace(self, outcome=outcome).write(folder)

    def logs(self) -> list[Path]:
        """Of all ranks that wrote one, in order."""
        paths = (Path(self.log.format(rank=rank)) for rank in range(self.ranks))
        return [path for path in paths if path.exists()]


def read(folder: Path) -> Ticket | None:
    try:
        return Ticket(**json.loads((folder / NAME).read_text()))
    except FileNotFoundError:
        return None
