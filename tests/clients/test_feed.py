"""Wherever a device finds its examples: the same bits, on any ranks and after a stop; what is copied, and when."""

import tempfile
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest
import torch

from fedddp.checks import launches, pretend
from fedddp.checks.ranks import apart
from fedddp.clients import feed
from fedddp.clients.cohort import Cohort
from fedddp.config import loading as configuration
from fedddp.core.data import Dataset, Examples
from fedddp.core.task import Task
from fedddp.exchange.group import Exchange
from fedddp.runs.build import make_federation, make_task
from fedddp.runs.job import Job
from tests import forked
from tests.small import MODELS, settings

CPU = torch.device("cpu")
CASES = [("cpu", "auto", 1, 0), ("cpu", "host", 2, 1)] + [("pretend", place, 2, 1) for place in ("device", "host")]
METHODS = ["fedavg", "bayes_admm", "fedlap_func"]  # without client memory, with it, and one that reads examples itself


def runs(where, place, shared, stop_after):
    """This rank's checksums of runs on the pretended device or the CPU; they are stopped and go on, if asked to."""
    exchange = Exchange.connect(CPU)
    device = pretend.install() if where == "pretend" else CPU
    torch.set_num_threads(1)
    with pretend.Device() if where == "pretend" else nullcontext():
        return {method: train(method, place, shared, stop_after, exchange, device) for method in METHODS}


def train(method, place, shared, stop_after, exchange, device):
    words = settings(method, *MODELS["mlp"], "federation.participation=0.6", "checkpoint.every=1")
    config = configuration.load(None, [*words, f"data.place={place}"])
    for resume in (False, True) if stop_after else (False,):
        job = Job(config, Path(shared) / method, exchange, device, quiet=True)
        job.after_round = partial(maybe_stop, job, 0 if resume else stop_after)
        done = job.run(resume)
    return done["checksum"]


def maybe_stop(job, stop_after, finished):
    job.stop.asked = finished == stop_after


def everywhere():
    """All ranks' checksums, by where examples are and on how many ranks; all but the first stopped after a round."""
    found = {}
    for where, place, ranks, stop_after in CASES:
        with tempfile.TemporaryDirectory() as folder:
            found[where, place, ranks] = apart(partial(runs, where, place, folder, stop_after), ranks)
    return found


@pytest.mark.skipif(not pretend.possible(), reason="needs a newer torch")
def test_same_bits_wherever_examples_are_on_any_ranks_and_after_a_stop():
    found = forked.call(everywhere)
    assert len(found) == len(CASES)
    for method in METHODS:
        assert len({own[method] for ranks in found.values() for own in ranks}) == 1, (method, found)


def homes(place):
    """What each of two ranks' devices hold, and what the whole training set is."""
    exchange, device = Exchange.connect(CPU), pretend.install()
    config = configuration.load(None, settings("bayes_admm", *MODELS["mlp"], f"data.place={place}"))
    with pretend.Device():
        federation = make_federation(config, make_task(config, device), exchange)
    data, shards = federation.task.data, federation.task.shards
    home = {int(i) for client in federation.store.ids.tolist() for i in shards.of_client(client)}
    if place == "host":
        return [data.held is None, data.test.inputs.device.type, data.train.inputs.device.type]
    rows = data.held.row
    assert data.held.examples.inputs.device.type == pretend.NAME
    assert {int(i) for i in (rows >= 0).nonzero()} == home
    some = sorted(home)[3]
    assert torch.equal(data.held.examples.inputs[rows[some]].cpu(), data.train.inputs[some])
    return [len(data.held.examples), len(data.train)]


@pytest.mark.skipif(not pretend.possible(), reason="needs a newer torch")
def test_a_device_holds_the_examples_of_the_clients_at_home_on_it():
    (one, all_), (two, _) = forked.call(apart, partial(homes, "device"), 2)
    assert min(one, two) > 0
    assert one + two == all_
    assert forked.call(apart, partial(homes, "host"), 2) == 2 * [[True, "cpu", "cpu"]]


@pytest.mark.skipif(not pretend.possible(), reason="needs a newer torch")
def test_a_step_copies_nothing_or_one_batch():
    words = [[f"method={method}", f"data.place={place}"] for method in METHODS[:2] for place in ("device", "host")]
    found = forked.call(launches.count, words)
    for at_home, from_host in (found[:2], found[2:]):
        assert (at_home.copies, at_home.reads) == (0, 0), at_home.lines
        assert (from_host.copies, from_host.reads) == (1, 0), from_host.lines
        assert from_host.kernels == at_home.kernels


def ordered():
    """What two and twenty epochs' schedules ask of the device, and whether they are those of the CPU."""
    exchange, device, found = Exchange.connect(CPU), pretend.install(), []
    for words in ([], ["federation.streams=common"]):
        config = configuration.load(None, settings("fedavg", *MODELS["mlp"], *words))
        here = make_federation(config, make_task(config, CPU), exchange)
        with pretend.Device():
            there = make_federation(config, make_task(config, device), exchange)
        for epochs in (2, 20):
            wanted = Cohort((2, 0, 1), 0, here.task, here.oracle)._schedule(epochs, 8)
            seen = launches.Count()
            with pretend.Device(seen.watch):
                made = Cohort((2, 0, 1), 0, there.task, there.oracle)._schedule(epochs, 8)
            held = there.task.data.held
            same = torch.equal(held.row[wanted.table], made.table.cpu())
            same &= torch.equal(wanted.weights, made.weights.cpu()) and wanted[2:4] == made[2:4]
            found.append((same, seen.names["sort"], seen.kernels, seen.copies.total(), seen.reads.total()))
    return found


@pytest.mark.skipif(not pretend.possible(), reason="needs a newer torch")
def test_orders_are_drawn_on_the_device_that_takes_the_batches():
    """Nothing is read back, and more epochs ask for no more."""
    few, many, *common = forked.call(apart, ordered)[0]
    assert all(case[0] for case in (few, many, *common))
    assert few[1] == 1, "one sort for all clients and epochs"
    assert few == many
    assert (few[3], few[4]) == (4, 0)
    assert common[0] == common[1]
    assert common[0][4] == 0


@pytest.mark.parametrize("kind", [torch.uint8, torch.float32, torch.int64])
def test_the_next_batch_is_sent_before_this_one_is_handed_out(monkeypatch, kind):
    events = []

    class Noted(feed.Side):
        def copy(self, slot, there, here):
            events.append(("copy", slot, here.numel()))
            super().copy(slot, there, here)

        def arrived(self, slot):
            events.append(("arrived", slot))

        def free(self, slot):
            events.append(("free", slot))

    monkeypatch.setattr(feed, "Side", Noted)
    inputs = (torch.arange(60).view(20, 3) % 250).to(kind)
    train = Examples(inputs, torch.arange(20))
    data = Dataset(train, train, classes=20, scale=0.5, shift=1.0, streamed=True)
    task = Task(None, None, None, data, None, None, 1, torch.zeros(1))
    table, working = torch.randint(20, (4, 2, 5)), [2, 2, 1, 1]
    streamed, resident = feed.Streamed(task, table, working), feed.Resident(task, train, table)
    for step, rows in enumerate(working):
        got, wanted = streamed(step, rows), resident(step, rows)
        assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))
        if step < 3:
            assert [e[:2] for e in events[-3:]] == [
                ("arrived", step % 2),
                ("free", 1 - step % 2),
                ("copy", 1 - step % 2),
            ]
    size = 3 * kind.itemsize * 5
    assert events[-2][2] == -(-size // 16) * 16 + 5 * 8 + 8  # inputs and targets of one row in one copy
