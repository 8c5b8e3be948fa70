"""What a step of a server's own descent costs: seconds here, and what a GPU would be asked to do for it.

FedBEns and FedFisher descend by phases, in which clients and the server work in turn; FedLap-Func within its server's
step. A round is taken with few and with many steps: the difference is what a step costs in the method's own code, and
beside it what the engine asks for to exchange and to check. Kernels (fused ones as one) and numbers read back are
counted on the pretended device of `fedddp check`. The images are noise, which costs as much as pictures.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch

from fedddp.checks import pretend
from fedddp.checks.launches import Count
from fedddp.checks.ranks import apart
from fedddp.config import loading as configuration
from fedddp.core import kernels
from fedddp.core.check import check
from fedddp.core.data import Dataset, Examples
from fedddp.core.rng import stream
from fedddp.data._settings import Images
from fedddp.exchange.group import Exchange
from fedddp.rounds.federate import Federation
from fedddp.rounds.method import Phase
from fedddp.runs.build import make_federation, make_task
from fedddp.runs.rank import keep_memory

CPU = torch.device("cpu")
METHODS = {
    "fedbens/kron": ["method=fedbens", "method.structure=kron"],
    "fedbens/last": ["method=fedbens", "method.structure=last"],
    "fedbens/diag": ["method=fedbens", "method.structure=diag"],
    "fedfisher/kfac": ["method=fedfisher", "method.fisher=kfac"],
    "fedfisher/diag": ["method=fedfisher", "method.fisher=diag"],
    "fedlap_func": ["method=fedlap_func"],
}
MODELS = {"mlp": ["model.name=mlp", "model.hidden=[32,32]", "data.side=8"], "lenet": ["model.name=lenet"]}
COMMON = ["data=fedddp.bench.servers:Noise", "split.name=iid", "split.clients=5", "federation.cohort_width=5"]
COUNTED, TIMED = (1, 3), (2, 32)  # few and many steps


class Noise(Images):
    """Random images of ten classes."""

    side: int = 28
    count: int = 100

    def load(self) -> Dataset:
        shape = (self.count, 1, self.side, self.side)
        examples = Examples(torch.randint(256, shape, generator=stream("noise")).byte(), torch.arange(self.count) % 10)
        return self.dataset(examples, examples, classes=10)


@dataclass
class Inside:
    """A method whose server's work, and clients' work for it, is done within a context; all else is its own."""

    method: Any
    around: Callable[[], AbstractContextManager[object]]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.method, name)

    def phase(self, server: Any, index: int) -> Phase | None:
        """In the first phase clients train, which is not the server's work."""
        found = self.method.phase(server, index)
        if found is None:
            return None
        client_step = self._within(found.client_step) if index else found.client_step
        return Phase(client_step, self._within(found.server_step), found.broadcast)

    def metrics(self, *states: Any) -> Any:
        return self._within(self.method.metrics)(*states)

    def _within(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def taken(*args: Any) -> Any:
            with self.around():
                return step(*args)

        return taken


class Row(NamedTuple):
    """What a step asks for."""

    kernels: float
    copies: float  # to the device
    reads: float  # numbers that the host waits for
    engine_kernels: float
    engine_reads: float


class Spent(NamedTuple):
    """Seconds of a processor in a step, which tell more than a clock's where others are at work."""

    own: float  # the method's
    whole: float  # with the engine's


def count(words: Sequence[str]) -> Row:
    """In a process of its own: the pretended device changes torch for good."""
    import torch._dynamo  # noqa: F401  a mode needs it: two seconds that forked processes save

    low, high = apart(partial(_counted, words))[0]
    return Row(*((b - a) / (COUNTED[1] - COUNTED[0]) for a, b in zip(low, high, strict=True)))


def seconds(words: Sequence[str], turns: int) -> Spent:
    """Of a step, from the quickest round of each kind; they take turns."""
    return Spent(*apart(partial(_quickest, words, turns))[0])


def _counted(words: Sequence[str]) -> list[list[int]]:
    """What rounds of few and of many steps ask for."""
    device, exchange = pretend.install(), Exchange.connect(CPU)
    return [_asked([*words, f"method.steps={steps}"], device, exchange) for steps in COUNTED]


def _asked(words: Sequence[str], device: torch.device, exchange: Exchange) -> list[int]:
    own, engine = Count(), Count()
    asking = [engine]
    kernels.BACKENDS[pretend.NAME] = lambda name, *given: asking[-1].launch(name, *given)

    @contextmanager
    def ours() -> Iterator[None]:
        asking.append(own)
        with pretend.Device(own.watch):
            yield
        asking.pop()

    with pretend.Device():
        federation = _federation(words, device, exchange, ours)
        server = federation.method.init_server(federation.task)
        with pretend.Device(engine.watch):
            federation.round(server, 0)
    return [own.kernels, own.copies.total(), own.reads.total(), engine.kernels, engine.reads.total()]


def _quickest(words: Sequence[str], turns: int) -> list[float]:
    torch.set_num_threads(1)
    keep_memory()
    exchange = Exchange.connect(CPU)
    own: dict[int, list[float]] = {steps: [] for steps in TIMED}
    whole: dict[int, list[float]] = {steps: [] for steps in TIMED}
    for _ in range(turns):
        for steps, spent in own.items():
            spent.append(0.0)
            whole[steps].append(0.0)
            federation = _federation([*words, f"method.steps={steps}"], CPU, exchange, partial(_clock, spent))
            server = federation.method.init_server(federation.task)
            with _clock(whole[steps]):
                federation.round(server, 0)
    few, many = TIMED
    return [(min(taken[many]) - min(taken[few])) / (many - few) for taken in (own, whole)]


@contextmanager
def _clock(spent: list[float]) -> Iterator[None]:
    """Adds to the last of the times spent."""
    start = time.process_time()
    yield
    spent[-1] += time.process_time() - start


def _federation(
    words: Sequence[str], device: torch.device, exchange: Exchange, around: Callable[[], Any]
) -> Federation:
    config = configuration.load(None, [*COMMON, *words])
    federation = make_federation(config, make_task(config, device), exchange)
    federation.method = Inside(federation.method, around)  # type: ignore[assignment]
    return federation


def call(arguments: argparse.Namespace, words: list[str]) -> int:
    """`fedddp bench servers [case=METHOD] [on=MODEL] [key=value...]`: a row for each; with --repeat 0 only counted."""
    head = f"{'':<16}{'model':<7}{'ms':>9}{'whole':>9}{'kernels':>9}{'copies':>8}{'reads':>7}"
    print(f"{head}   a step; the engine beside it")
    cases, models = _chosen("case", METHODS, words), _chosen("on", MODELS, words)
    rest = [word for word in words if not word.startswith(("case=", "on="))]
    rows = []
    for model in models:
        for case in cases:
            asked = [*MODELS[model], *METHODS[case], *rest]
            rows.append({"method": case, "model": model, **count(asked)._asdict()})
            spent = seconds(asked, arguments.repeat) if arguments.repeat else Spent(0.0, 0.0)
            rows[-1] |= {"seconds": spent.own, "whole": spent.whole}
            print(line(rows[-1]), flush=True)
    if arguments.out:
        arguments.out.write_text(json.dumps(rows, indent=2) + "\n")
    return 0


def _chosen(key: str, known: Iterable[str], words: Sequence[str]) -> list[str]:
    """The names that words `key=NAME` choose; all where there are none."""
    names = [word.partition("=")[2] for word in words if word.startswith(f"{key}=")]
    for name in names:
        check(key, name, name in known, " or ".join(known))
    return names or list(known)


def line(row: dict[str, Any]) -> str:
    times = "".join(f"{1e3 * row[name]:>9.2f}" for name in ("seconds", "whole"))
    own = f"{times}{row['kernels']:>9.1f}{row['copies']:>8.1f}{row['reads']:>7.1f}"
    engine = f"{row['engine_kernels']:.1f} kernels, {row['engine_reads']:.1f} reads"
    return f"{row['method']:<16}{row['model']:<7}{own}   {engine}"
