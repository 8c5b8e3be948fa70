"""A module that brings a rank to a halt: before ranks have met (STOPS), or in the middle of its work (STUCK).

STOPS=RANK FOLDER: the launcher's children note their process ids in the folder, and this one stops at once.
STUCK=RANK FILE: when the file is there, this rank works without end.
"""

import os
import signal
import time
from itertools import count
from pathlib import Path

from torch import Tensor, nn

forks, number = count(), -1


class Halts(nn.Module):
    def __init__(self, hidden: int = 8) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.Tanh(), nn.Linear(hidden, 10))

    def forward(self, inputs: Tensor) -> Tensor:
        rank, _, file = os.environ.get("STUCK", "").partition(" ")
        if rank:
            time.sleep(0.02)
        if rank == os.environ.get("RANK") and Path(file).exists():
            time.sleep(600)
        return self.body(inputs)


def _before() -> None:
    global number
    number = next(forks)


def _child() -> None:
    rank, folder = os.environ["STOPS"].split(" ")
    Path(folder, f"rank-{number}").write_text(str(os.getpid()))
    if number == int(rank):
        os.kill(os.getpid(), signal.SIGSTOP)


if "STOPS" in os.environ:
    os.register_at_fork(before=_before, after_in_child=_child)
