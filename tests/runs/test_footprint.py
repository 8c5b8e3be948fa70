"""The bound on a device's memory: above what a run takes of the pretended device, and not far; what does not fit."""

from pathlib import Path

import pytest
import torch
from torch.utils._pytree import tree_leaves

from fedddp.checks import pretend
from fedddp.checks.ranks import apart
from fedddp.config import loading as configuration
from fedddp.core.check import memory
from fedddp.core.live import Ledger, Live
from fedddp.evaluation.evaluate import Evaluator
from fedddp.exchange.group import Exchange
from fedddp.runs.build import make_federation, make_task
from fedddp.runs.footprint import choose, footprint
from tests import forked

CPU = torch.device("cpu")
SMALL = ["split.clients=8", "local.batch_size=32", "local.epochs=1", "evaluation.samples=1", "data.test_fraction=0.5"]
MLP, CNN = ["model=mlp", "model.hidden=[200,100]"], ["model=cnn", "model.channels=[8,16]", "model.groups=2"]
CASES = [
    ["method=fedavg", *MLP, "federation.cohort_width=1"],
    ["method=bayes_admm", *MLP, "federation.cohort_width=5"],
    ["method=bayes_admm", *MLP, "federation.cohort_width=1", "data.place=host"],
    ["method=fedlap", *MLP, "federation.cohort_width=5"],
    ["method=scaffold", *MLP, "federation.cohort_width=1"],
    ["method=scaffold", *CNN, "federation.cohort_width=5"],
    ["method=fedavg", "model=resnet", "model.norm=batch", "model.buffers=average", "federation.cohort_width=2"],
]


def measure():
    """The bound, and the most that two rounds and an evaluation take, of each case."""
    device, found = pretend.install(), []
    torch.set_num_threads(1)
    Exchange.connect(CPU)
    for words in CASES:
        config = configuration.load(None, [*SMALL, *words])
        bound, ledger = footprint(config, make_task(config, CPU), 1, config["data.place"]).total, Ledger()

        def watch(_, given, result, ledger=ledger):
            for made in tree_leaves(result):
                if isinstance(made, pretend.Pretend):
                    ledger.note(made.held)

        with pretend.Device(watch):
            federation = make_federation(config, make_task(config, device), Exchange(CPU))
            server = federation.method.init_server(federation.task)
            for number in range(2):
                server, _ = federation.round(server, number)
            Evaluator(federation, config.evaluation.samples)(server, 2)
        found.append((bound, ledger.most))
    return found


@pytest.mark.skipif(not pretend.possible(), reason="needs a newer torch")
def test_the_bound_is_above_what_a_run_takes_and_not_far():
    (found,) = forked.call(apart, measure)
    for words, (bound, measured) in zip(CASES, found, strict=True):
        assert measured <= bound <= 1.5 * measured, (words, bound / measured)


def test_what_does_not_fit_is_refused_with_what_helps():
    config = configuration.load(None, [*SMALL, "method=bayes_admm", *MLP, "federation.cohort_width=4"])
    task = make_task(config, CPU)
    device, host = (footprint(config, task, 1, place).total for place in ("device", "host"))
    assert host < device
    assert choose(config, task, 1, device) == "device"
    assert choose(config, task, 1, (host + device) // 2) == "host"
    with pytest.raises(
        ValueError, match=r"takes up to .* of a device, where 1.0 MB are free.* helps: .*cohort_width=2"
    ):
        choose(config, task, 1, 10**6)
    config.values["data"]["place"] = "device"
    with pytest.raises(ValueError, match=r"data\.place=host keeps examples"):
        choose(config, task, 1, 10**6)


def test_what_is_let_go_is_not_counted():
    with Live() as live:
        a = torch.zeros(1000)
        b = a.view(10, 100)[:5] + 1
        del a
        c = torch.zeros(500)
    assert live.ledger.most == 4 * 1500 + 4 * 0
    assert live.ledger.now == 4 * (len(b.flatten()) + len(c))


@pytest.mark.parametrize(
    ("line", "file"), [("0::/a/b", "a/memory.max"), ("7:cpu,memory:/a/b", "memory/a/b/memory.limit_in_bytes")]
)
def test_a_containers_limit_is_seen(tmp_path: Path, line, file):
    groups, root = tmp_path / "cgroup", tmp_path / "sys"
    groups.write_text(line + "\n")
    machine, _ = memory(groups, root)
    (root / file).parent.mkdir(parents=True)
    (root / file).write_text(f"{machine // 2}\n")
    assert memory(groups, root) == (machine // 2, "this container")
    (root / file).write_text("max\n")
    assert memory(groups, root) == (machine, "this machine")
