"""Methods with sites, after a client has left: in later rounds they get to where they would be without it."""

from dataclasses import replace

import pytest
import torch

from fedddp.core import tree
from fedddp.core.shards import Shards
from fedddp.local import exact
from fedddp.methods import bregman_admm, fedadmm, fedcurv, feddyn, federated_admm, fedlap
from fedddp.rounds.store import ClientStore
from tests import toy

GONE = 1
TOWARDS = {  # and the weight decay of the minimiser that each gets to
    "fedlap": (fedlap.Method(damping=0.3, delta=20.0), 20.0),
    "federated_admm": (federated_admm.Method(rho=5.0, delta=1.0), 1.0),
    "feddyn": (feddyn.Method(alpha=5.0), 0.0),
    "fedadmm": (fedadmm.Method(alpha=5.0), 0.0),
    "bregman_admm": (bregman_admm.Method(rho=0.3, damping=0.1, covariance="full", delta=10.0), 10.0),
}


def others():
    """The task without the client."""
    task = toy.task()
    return replace(task, shards=task.shards.without([GONE]))


def after(method, exchange, rounds, more):
    """The server when a client has left after `rounds` rounds, and when `more` have followed; and the task."""
    fed, task = toy.federation(method, exact.Solver(), toy.task(), exchange), others()
    server = toy.iterate(fed, rounds)[-1]
    rows = [row for row in range(toy.K) if row != GONE]
    store = ClientStore(torch.arange(toy.K - 1), tree.map_leaves(lambda leaf: leaf[rows], fed.store.memory))
    server = method.forget(server, tree.map_leaves(lambda leaf: leaf[[GONE]], fed.store.memory), task)
    fed = replace(toy.federation(method, exact.Solver(), task, exchange), store=store)
    states = [server]
    for number in range(rounds, rounds + more):
        states.append(fed.round(states[-1], number)[0])
    return states, task


@pytest.mark.parametrize("name", TOWARDS)
def test_the_minimiser_of_the_others(exchange, name):
    method, decay = TOWARDS[name]
    states, task = after(method, exchange, 15, 80)
    wanted = toy.pooled(task, decay)
    first, last = ((states[at].theta - wanted).norm() for at in (0, -1))
    assert first > 0.02
    assert last < 5e-3 * first


def test_fedcurv_comes_to_where_it_would_be_without_the_client(exchange):
    """Its fixed point is no pooled minimum, so against a run of the others from the start."""
    method = fedcurv.Method(penalty=0.05)
    states, task = after(method, exchange, 15, 60)
    never = toy.iterate(toy.federation(method, exact.Solver(), task, exchange), 75)[-1]
    torch.testing.assert_close(states[-1].theta, never.theta, rtol=1e-4, atol=1e-5)


def test_clients_are_numbered_anew_and_keep_their_examples():
    shards = Shards.of([torch.tensor([4, 2]), torch.tensor([0]), torch.tensor([1, 3])])
    left = shards.without([1])
    assert [part.tolist() for part in left] == [[4, 2], [1, 3]]
    assert shards.without([]) is shards
    for wrong in ([3], [-1], [0, 1, 2]):
        with pytest.raises(ValueError, match=r"federation.without=.*must be some of the clients"):
            shards.without(wrong)
