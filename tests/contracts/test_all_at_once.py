"""Every switch at once, on the pretended device with fused kernels: the bits of a plain run there, although steps are
recorded and the run is stopped twice and goes on with another number of ranks."""

import tempfile
from functools import partial
from pathlib import Path

import pytest
import torch

from fedddp.bench.recorder import Recorder
from fedddp.checks import pretend
from fedddp.checks.ranks import apart
from fedddp.config import loading as configuration
from fedddp.core import kernels
from fedddp.exchange import masks
from fedddp.exchange.group import Exchange
from fedddp.runs import build
from fedddp.runs.job import Job
from tests import forked
from tests.clients.test_graphs import launch
from tests.small import MODELS, settings

CPU = torch.device("cpu")
RESULTS = [  # what changes results, so that both runs have it
    "federation.participation=0.6",
    "federation.streams=common",
    "federation.on_bad_client=skip",
    "evaluation.clients=server",
    "exchange.range.all=1000000",
    "data.validation=20",
    "federation.tf32=true",
    "data.test_fraction=0.8",
]
SWITCHES = [  # what must not
    "federation.graphs=true",
    "federation.rows=file",
    "data.place=device",
    "checkpoint.every=1",
    "checkpoint.keep_clients=true",
    "federation.check_every=1",
]
SECURE = [] if masks.available() else ["exchange.secure=rank"]  # nor this, of methods that gather nothing
TOP = ["exchange.compress=top", "exchange.keep=0.3"]
CASES = {
    "sgd, dropout, convolutions": ["fedadam", "model.name=emnist_cnn", *TOP, "local.momentum=0.5", "local.clip=1"],
    "ivon": ["bayes_admm", *MODELS["mlp"], "local.samples=2"],
    "adam, a server's descent": ["fedlap_func", *MODELS["mlp"], "local=adam", "method.memory=validation"],
}
GATHERS = {"adam, a server's descent"}
RANKS = (2, 3, 1)  # of each of the three rounds


def words(case):
    method, *more = CASES[case]
    return settings(method, *more, *RESULTS)


def train(case, folder, switches, resume=False, stop=False):
    """This rank's checksum and how many steps it replayed."""
    exchange, recorder, device = Exchange.connect(CPU), Recorder(), pretend.install()
    torch.set_num_threads(1)
    kernels.BACKENDS[pretend.NAME] = launch
    if switches:
        build.make_recorder = lambda config, task: recorder
    with pretend.Device():
        job = Job(configuration.load(None, [*words(case), *switches]), Path(folder), exchange, device, quiet=True)
        job.stop.asked = stop  # as the next round says
        done = job.run(resume)
    return (done or {}).get("checksum"), recorder.replayed


def both(case):
    switches = SWITCHES + (SECURE if case not in GATHERS else [])
    with tempfile.TemporaryDirectory() as folder:
        whole = apart(partial(train, case, f"{folder}/whole", []))
        parts = [
            apart(partial(train, case, f"{folder}/parts", switches, resume=number > 0, stop=number < 2), ranks)
            for number, ranks in enumerate(RANKS)
        ]
    return whole, parts


@pytest.mark.long
@pytest.mark.skipif(not pretend.possible(), reason="needs a newer torch")
@pytest.mark.parametrize("case", CASES)
def test_all_switches_at_once_change_no_bit(case):
    ((wanted, nothing),), (*stopped, last) = forked.call(both, case)
    assert nothing == 0
    assert {checksum for ranks in stopped for checksum, _ in ranks} == {None}
    assert {checksum for checksum, _ in last} == {wanted}
    assert all(sum(replayed for _, replayed in ranks) for ranks in [*stopped, last]), "nothing was recorded"
