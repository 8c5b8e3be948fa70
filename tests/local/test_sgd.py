"""SGD's step within the model's products: where it is taken, where not, and that it is the same step."""

import pytest
import torch

from fedddp.clients.chain import Chain
from fedddp.clients.cohort import Cohort
from fedddp.clients.oracle import Oracle
from fedddp.clients.private import Guard, PrivateCohort
from fedddp.config import loading as configuration
from fedddp.core.gaussian import diagonal
from fedddp.local import iasg, langevin, sgd
from fedddp.runs.build import make_task
from tests.small import MODELS, settings


@pytest.fixture(scope="module")
def task():
    words = settings("fedavg", *MODELS["mlp"], "federation.dtype=float64")
    return make_task(configuration.load(None, words), torch.device("cpu"))


@pytest.fixture
def folded(monkeypatch):
    """How many steps the products took."""
    seen = []
    plain = Chain.lower

    def lower(chain, *arguments):
        seen.append(1)
        return plain(chain, *arguments)

    monkeypatch.setattr(Chain, "lower", lower)
    return seen


def cohort_of(task):
    return Cohort((0, 1), 0, task, Oracle(task.module, task.layout, task.objective))


def minimise(task, solver, cohort=None, site=None):
    return solver.minimise(cohort or cohort_of(task), task.initial, solver.memory(task, 2), site)


class Seen(sgd.Solver):
    """The same, with a step of its own."""

    def step(self, theta, grad, state, lr):
        super().step(theta, grad, state, lr)


def test_the_products_take_the_same_step(task, folded):
    cohort, others = cohort_of(task), cohort_of(task)
    ours = minimise(task, sgd.Solver(lr=0.2, epochs=2), cohort)
    assert len(folded) == int(ours.steps.max())
    theirs = minimise(task, Seen(lr=0.2, epochs=2), others)
    assert len(folded) == int(ours.steps.max()), "a derived class has a step of its own"
    torch.testing.assert_close(ours.theta, theirs.theta, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(cohort.seen().loss, others.seen().loss, rtol=1e-12, atol=1e-12)
    assert torch.equal(cohort.seen().steps, others.seen().steps)


def test_a_path_is_sampled_as_before(task, folded):
    fit, samples = iasg.Solver(lr=0.2, epochs=2).sample(cohort_of(task), task.initial, sgd.Nothing())
    assert len(folded) == int(fit.steps.max())
    assert samples.theta[0].isfinite().all()


OTHERS = {
    "momentum": sgd.Solver(momentum=0.9),
    "decay": sgd.Solver(weight_decay=0.1),
    "clip": sgd.Solver(clip=1.0),
    "langevin": langevin.Solver(),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_else_a_step_does_needs_the_gradient(task, folded, name):
    minimise(task, OTHERS[name])
    assert not folded


def test_a_site_and_a_turned_gradient_need_it_too(task, folded):
    minimise(task, sgd.Solver(), site=diagonal.natural(task.initial, 1.0).unsqueeze(0))
    turned = cohort_of(task).steered(lambda theta, grad, batch: grad.zero_())
    assert torch.equal(minimise(task, sgd.Solver(), turned).theta, task.initial.expand(2, -1))
    minimise(task, sgd.Solver(), cohort_of(task).drawn(lambda theta: theta + 1))
    assert not folded


def test_a_private_step_is_clipped(task, folded):
    """And noisy: what examples say leaves in a gradient of PrivateCohort only."""
    oracle, guard = Oracle(task.module, task.layout, task.objective), Guard(clip=1e-9, noise=0.0)
    private = PrivateCohort((0, 1), 0, task, oracle, guard=guard)
    moved = minimise(task, sgd.Solver(lr=0.2), private).theta - task.initial
    assert 0 < moved.norm() < 1e-7
    assert not folded
