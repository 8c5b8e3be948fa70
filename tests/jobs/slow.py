"""A module whose pace a test sets while it runs: the file that SLOW names holds the seconds of one forward pass.

Sleeping costs no core, and the pace is no part of the configuration: the results are those of the fast run.
"""

import os
import time
from pathlib import Path

from torch import Tensor, nn


class Slow(nn.Module):
    def __init__(self, hidden: int = 8) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.Tanh(), nn.Linear(hidden, 10))

    def forward(self, inputs: Tensor) -> Tensor:
        time.sleep(pace())
        return self.body(inputs)


def pace() -> float:
    path = os.environ.get("SLOW", "")
    try:
        return float(Path(path).read_text()) if path else 0.0
    except (FileNotFoundError, ValueError):
        return 0.0
