"""The plain loops that fedddp is measured beside do the same work: the same parameters after the same rounds."""

import pytest
import torch

from fedddp.bench.measure import Ours
from fedddp.bench.plain import Plain, PlainBayes
from fedddp.config import loading as configuration
from fedddp.exchange.group import Exchange
from fedddp.runs.build import make_federation, make_task
from tests.small import SMALL

CONV = ["model.name=cnn", "model.channels=[4,8]", "model.groups=2"]
MLP = ["model.name=mlp", "model.hidden=[12]"]
# With noise that does not count and curvature that stays where it is, two generators of noise make no difference.
IVON = ["method=bayes_admm", *MLP, "local.keep=false", "local.lr=0.002", "local.hess_init=0.01"]
IVON += ["method.rho=1", "method.damping=0.1", "method.temperature=1e-12", "local.beta2=0.99999999999999"]


def play(words: list[str], kind: type[Plain], folder: str) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """(fedddp's, the loop's, the initial) parameters after each round, on one rank of many."""
    config = configuration.load(None, [*SMALL, "federation.dtype=float64", *words])
    exchange = Exchange()
    task = make_task(config, torch.device("cpu"))
    federation = make_federation(config, task, exchange)
    ours = Ours(federation, 3, folder)
    plain = kind(task, config, federation.plan.at_home(exchange.rank).tolist(), exchange)
    found = []
    for number in range(3):
        ours.round(number)
        plain.round(number)
        found.append((ours.theta, plain.theta, task.initial))
    return found


@pytest.mark.parametrize("words", [MLP, [*MLP, "local.name=adam"], CONV], ids=["sgd", "adam", "conv"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_loop_ends_where_fedddp_does(worlds, tmp_path, words, ranks):
    for ours, plain, initial in worlds(ranks).run(play, ["method=fedavg", *words], Plain, tmp_path)[0]:
        # the loop's floats are added without fedddp's care; Adam's first step blows rounding up at dead weights
        torch.testing.assert_close(ours, plain, rtol=0, atol=1e-6)
        assert (ours - initial).abs().max() > 1e-3


def test_the_loop_around_ivon_opt_is_bayes_admm(worlds, tmp_path):
    for ours, plain, initial in worlds(1).run(play, IVON, PlainBayes, tmp_path)[0]:
        moved = (ours - initial).abs().max()
        assert moved > 1e-2
        assert (ours - plain).abs().max() < 1e-3 * moved


def test_the_loop_draws_its_own_dropout(worlds, tmp_path):
    for ours, plain, _ in worlds(1).run(play, ["method=fedavg", "model.name=emnist_cnn"], Plain, tmp_path)[0]:
        assert not torch.equal(ours, plain)
        assert plain.isfinite().all()
