"""What a round costs with each method, beside a round of FedAvg with SGD: processor time, and bytes.

All methods on one task, that of the ranking: ten unequal clients of Fashion-MNIST 10 %, an MLP 784-32-10, two local
epochs in batches of 32, each method with its usual solver. A round of the method and one of FedAvg take turns, after
one of each that warms up; a ratio is the median over turns, and counts the clients' steps and the server's. A method
of a single round begins anew in every turn. Bytes are of one client in one round. What cannot be done, or takes more
than MOST seconds for a round, keeps its reason; a round of more than LONG seconds is taken once.
"""

import argparse
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from fedddp.config import loading as configuration
from fedddp.config.loading import folder
from fedddp.core import registry, tree
from fedddp.core.check import check, first_line
from fedddp.core.files import write_text
from fedddp.exchange.group import Exchange
from fedddp.reproduce.ranking import TooLong, limited
from fedddp.rounds.federate import Federation
from fedddp.runs.build import make_federation, make_task
from fedddp.runs.rank import keep_memory

CPU = torch.device("cpu")
TASK = "ranking_fashion"  # the experiment
ALIKE = ["local.epochs=2"]  # also for methods of a single round, which has more of them in the ranking
LONG, MOST = 4.0, 60.0  # seconds of a round


@dataclass(frozen=True)
class Cost:
    """One method's; or why there is none."""

    method: str
    ratio: float = 0.0  # processor time of a round, FedAvg's being 1
    up: float = 0.0  # bytes that a client sends in a round
    down: float = 0.0  # bytes that a client is sent
    kept: float = 0.0  # bytes that are kept for a client between rounds
    reason: str = ""


class Turn:
    """A federation that goes on round by round."""

    def __init__(self, words: Sequence[str], exchange: Exchange) -> None:
        self.config, self.exchange = configuration.load(TASK, words), exchange
        self.bytes = 0.0, 0.0
        self.begin()

    def begin(self) -> None:
        self.federation: Federation = make_federation(self.config, make_task(self.config, CPU), self.exchange)
        self.server, self.number = self.federation.method.init_server(self.federation.task), 0

    def round(self) -> float:
        """Seconds of a processor."""
        if self.number == self.config["federation.rounds"]:
            self.begin()
        start = time.process_time()
        self.server, report = self.federation.round(self.server, self.number)
        self.number, self.bytes = self.number + 1, (report.bytes_up, report.bytes_down)
        return time.process_time() - start

    @property
    def kept(self) -> float:
        store = self.federation.store
        return sum(leaf.numel() * leaf.itemsize for leaf in tree.leaves(store.memory).values()) / len(store.ids)


def file() -> Path:
    """The committed measurement."""
    return folder("reproduce") / "costs.json"


def read(path: Path) -> dict[str, Cost]:
    plain: list[dict[str, Any]] = json.loads(path.read_text()) if path.is_file() else []
    return {row["method"]: Cost(**row) for row in plain}


def write(path: Path, found: Mapping[str, Cost]) -> None:
    rows = ",\n".join(json.dumps(asdict(found[name])) for name in sorted(found))
    write_text(path, f"[\n{rows}\n]\n")


def measure(method: str, words: Sequence[str], turns: int, fedavg: Turn) -> Cost:
    try:
        ours = Turn([f"method={method}", *ALIKE, *words], fedavg.exchange)
        ratios = list(_ratios(ours, fedavg, turns))
    except (ValueError, RuntimeError, MemoryError, TooLong) as error:
        return Cost(method, reason=_reason(error))
    up, down = ours.bytes
    return Cost(method, round(median(ratios), 3), round(up), round(down), round(ours.kept))


def _reason(error: BaseException) -> str:
    """torch says in three lines of its own how much it could not get."""
    asked = re.search(r"tried to allocate (\d+) bytes", str(error))
    return f"asks for {int(asked[1]) / 1e9:.1f} GB at once" if asked else first_line(error)


def _ratios(ours: Turn, fedavg: Turn, turns: int) -> Iterator[float]:
    for turn in range(turns + 1):
        with limited(MOST):
            spent = ours.round()
        beside = fedavg.round()
        if turn or spent > LONG:
            yield spent / beside
        if spent > LONG:
            return


def call(arguments: argparse.Namespace, words: list[str]) -> int:
    """`fedddp bench methods [case=METHOD...] [key=value...]`: a row for each; other rows of --out stay."""
    known = registry.builtin("method")
    cases = [word.partition("=")[2] for word in words if word.startswith("case=")] or known
    for case in cases:
        check("case", case, case in known, " or ".join(known))
    torch.set_num_threads(1)
    keep_memory()
    rest = [word for word in words if not word.startswith("case=")]
    print(f"{'':<22}{'round':>8}{'up':>12}{'down':>12}{'kept':>12}")
    found = read(arguments.out) if arguments.out else {}
    fedavg = Turn(["method=fedavg", *ALIKE, *rest], Exchange.connect(CPU))
    for case in cases:
        found[case] = measure(case, rest, arguments.repeat, fedavg)
        print(line(found[case]), flush=True)
        if arguments.out:
            write(arguments.out, found)
    return 0


def line(cost: Cost) -> str:
    if cost.reason:
        return f"{cost.method:<22} {cost.reason}"
    return f"{cost.method:<22}{cost.ratio:>7.2f}x{cost.up:>12,.0f}{cost.down:>12,.0f}{cost.kept:>12,.0f}"
