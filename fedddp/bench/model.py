"""What a round costs: a sum of what is done times what one of it takes on a machine.

    round    = planning + local work of the busiest rank + exchange + evaluation
    local    = Σ_cohorts  cohort + step · longest + row · steps + flop · F B steps + number · P steps
    exchange = 2 trip max(1, ⌈log2 R⌉) + word · words + 2 (R-1)/R · 8 words / bandwidth      (two sums, one a ring)
    planning = plan + client · active,     evaluation = chunk · chunks + flop · 2 P examples, shared out over ranks

with P parameters, F floating-point operations per example (forward and backward), B examples in a batch, and R ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf, log2

from fedddp.rounds.cost import Cost, Work
from fedddp.rounds.plan import place

CHUNK = 1000  # test examples at a time


@dataclass
class Machine:
    """Seconds that one of each takes; `bandwidth` in bytes per second between ranks."""

    cohort: float = 0.0  # a cohort, whatever its size
    step: float = 0.0  # a step of a cohort: Python, or kernels to launch
    row: float = 0.0  # a client's step, beside its arithmetic
    flop: float = 0.0  # a floating-point operation
    number: float = 0.0  # a parameter that a client's step reads and writes
    trip: float = 0.0  # from rank to rank
    word: float = 0.0  # a number that is encoded, added and decoded
    bandwidth: float = inf
    plan: float = 0.0  # planning a round
    client: float = 0.0  # and a client that takes part in it
    chunk: float = 0.0  # an evaluated chunk of the test set, beside its arithmetic


@dataclass
class Round:
    """What is to be done."""

    ranks: int
    works: Sequence[tuple[int, Work]]  # the rank and the work of each cohort
    active: int
    params: int
    flops: int  # of one example, forward and backward
    batch: int
    words: int  # numbers added up over ranks
    tests: int = 0  # examples evaluated

    @classmethod
    def even(
        cls, ranks: int, active: int, params: int, examples: int, batch: int, epochs: int, width: int, tests: int
    ) -> "Round":
        """`active` clients of equal size, in cohorts of `width` spread over the ranks."""
        cost = Cost(epochs, batch)
        full, rest = divmod(active, width)
        works = [cost.work([examples] * width)] * full + ([cost.work([examples] * rest)] if rest else [])
        placed = place([work.steps for work in works], ranks)
        return cls(ranks, list(zip(placed, works, strict=True)), active, params, 6 * params, batch, params, tests)


def predict(machine: Machine, task: Round) -> dict[str, float]:
    """Seconds of each part."""
    local = [0.0] * task.ranks
    for rank, work in task.works:
        local[rank] += seconds(machine, task, work)
    chunks = ceil(task.tests / CHUNK / task.ranks)  # of the busiest
    sent = 2 * (task.ranks - 1) / task.ranks * 8 * task.words
    parts = {
        "planning": machine.plan + machine.client * task.active,
        "local": max(local),
        "exchange": hops(task.ranks) * machine.trip + machine.word * task.words + sent / machine.bandwidth,
        "evaluation": chunks * machine.chunk
        + machine.flop * 2 * task.params * min(chunks * CHUNK, ceil(task.tests / task.ranks)),
    }
    return parts | {"round": sum(parts.values()), "busy": sum(local) / task.ranks / max(local)}


def hops(ranks: int) -> int:
    """Trips that follow one another in the two sums of an exchange, along trees; a rank alone still calls them."""
    return 2 * max(1, ceil(log2(ranks)))


def seconds(machine: Machine, task: Round, work: Work) -> float:
    """Of one cohort."""
    return sum(a * b for a, b in zip(_constants(machine), features(task, work), strict=True))


def features(task: Round, work: Work) -> tuple[float, ...]:
    """What a cohort's seconds are a sum of, in the order of a machine's constants."""
    steps = work.steps
    return (1.0, work.longest, steps, task.flops * task.batch * steps, task.params * steps)


def _constants(machine: Machine) -> tuple[float, ...]:
    return (machine.cohort, machine.step, machine.row, machine.flop, machine.number)
