"""The checkpoints of a run: the newest whole one, what it says of itself, and those to come."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedddp.config.loading import Config
from fedddp.exchange.group import Exchange
from fedddp.rounds import checkpoint
from fedddp.rounds.federate import Federation
from fedddp.rounds.solver import Nothing
from fedddp.rounds.store import ClientStore
from fedddp.runs.claim import origin


@dataclass
class Checkpoints:
    """Those of one run, on every rank; rank 0 chooses and tells."""

    folder: Path
    config: Config
    exchange: Exchange
    say: Callable[[str], None]  # which rank 0 alone does
    last: Path | None = None  # the whole one that was read or written last

    def open(self) -> dict[str, Any]:
        """What the newest whole checkpoint says of itself; nothing where there is none."""
        self.last = self._newest()
        told = checkpoint.about(self.last) if self.last else {}
        if told and told.get("config") != origin(self.config):
            raise ValueError(
                f"{self.last}: belongs to a run of another configuration ({told.get('config')}, this is "
                f"{origin(self.config)}); give the settings that the run was started with, or choose another --out"
            )
        return told

    def _newest(self) -> Path | None:
        choice = failure = ""
        if self.exchange.rank == 0:
            try:
                checkpoint.tidy(self.folder)
                found = checkpoint.newest(self.folder, self.say)
                choice = found.name if found else ""
            except (ValueError, OSError) as error:
                failure = str(error)
        self.exchange.together(failure)
        choice = self.exchange.tell(choice, 0)
        return self.folder / choice if choice else None

    def restore(self, federation: Federation, told: dict[str, Any]) -> tuple[Any, int]:
        """The state and the rounds of the checkpoint that `open` found, or the start."""
        server = federation.method.init_server(federation.task)
        if self.last is None:
            return server, 0
        for key, value in checkpoint.fingerprint().items():
            then = told.get(key, "none")
            if then != value:
                self.say(f"checkpoint was written with {key} {then}, this is {value}: bits may differ")
        finished = told["round"] == federation.task.rounds  # its client rows may be gone, and are not needed
        return checkpoint.load(self.last, server, None if finished else federation.store)

    def save(self, finished: int, server: Any, federation: Federation, clients: bool = True) -> None:
        """The state after so many rounds; without the rows of `clients` where nobody needs them."""
        dropped = ClientStore(torch.zeros(0, dtype=torch.long), Nothing())
        about = {
            "cost": federation.plan.cost.constants,
            "width": self.config.federation.measured_width,
            "config": origin(self.config),
            "dropped": not clients and not federation.store.empty,
        }
        store = federation.store if clients else dropped
        self.last = checkpoint.save(self.folder, finished, server, store, self.exchange, about, self.last)

    def end(self, rounds: int, server: Any, federation: Federation, clients: bool) -> None:
        """The last one, unless it is there already."""
        if self.last != self._of(rounds):
            self.save(rounds, server, federation, clients)

    def drop_others(self, rounds: int) -> None:
        """Rank 0: keep the checkpoint after so many rounds alone."""
        checkpoint.keep_only(self.folder, {self._of(rounds)})

    def _of(self, rounds: int) -> Path:
        return self.folder / f"round-{rounds:06d}"
