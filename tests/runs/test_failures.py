"""A client that fails is named on all ranks, or left out on all ranks; nothing hangs, nothing is silently wrong."""

from dataclasses import dataclass

import pytest
import torch

from fedddp.exchange.group import Exchange
from fedddp.local import exact, sgd
from fedddp.methods import fedavg, federated_admm
from fedddp.methods.federated_admm import Server
from fedddp.rounds.federate import checksum
from tests import forked, toy

BAD = 3


@dataclass
class Raises(fedavg.Method):
    def client_step(self, server, clients, cohort, local):
        if BAD in cohort.ids:
            raise OSError("the file is gone")
        return super().client_step(server, clients, cohort, local)


@dataclass
class NotFinite(federated_admm.Method):
    value: float = float("nan")

    def client_step(self, server, clients, cohort, local):
        clients, message = super().client_step(server, clients, cohort, local)
        if BAD in cohort.ids:
            message["theta"].value[cohort.ids.index(BAD), 1] = self.value
            clients.dual[cohort.ids.index(BAD)] = self.value
        return clients, message


@dataclass
class DependsOnTheRank(fedavg.Method):
    rank: int = 0

    def server_step(self, server, total, task):
        return fedavg.Server(total["theta"] + 1e-9 * self.rank)


@dataclass
class ServerDiverges(federated_admm.Method):
    def server_step(self, server, total, task):
        return Server(total["theta"] / 0, server.duals)


METHODS = {"raises": Raises, "nan": NotFinite, "inf": lambda: NotFinite(value=float("inf"))}


def play(name: str, skip: bool, participation: float = 1.0, width: int = 3):
    fed = toy.federation(METHODS[name](), sgd.Solver(lr=0.01), toy.task(), Exchange(), participation, width)
    fed.skip_bad = skip
    server, skipped = fed.method.init_server(fed.task), []
    for number in range(3):
        server, report = fed.round(server, number)
        skipped.append(report.skipped)
    home = fed.plan.at_home(fed.exchange.rank).tolist()
    kept = fed.store.memory.dual[home.index(BAD)].abs().sum().item() if name != "raises" and BAD in home else None
    return checksum(server), skipped, kept


@pytest.mark.parametrize(("name", "cause"), [("raises", "OSError: the file is gone"), ("nan", "theta is not finite")])
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_bad_client_stops_every_rank_with_its_name(worlds, ranks, name, cause):
    for _, error in worlds(ranks).try_run(play, name, False):
        assert f"client {BAD} failed in round 1" in error
        assert cause in error


@pytest.mark.parametrize("name", METHODS)
def test_a_bad_client_can_be_left_out(worlds, name):
    outcomes = {ranks: worlds(ranks).run(play, name, True) for ranks in (1, 2, 4)}
    assert len({checksum for results in outcomes.values() for checksum, _, _ in results}) == 1
    for results in outcomes.values():
        assert all(skipped == [1, 1, 1] for _, skipped, _ in results)
        assert [kept for *_, kept in results if kept is not None] in ([], [0.0]), "a client left out keeps its memory"


@pytest.mark.parametrize("width", [1, 2, 5])
@pytest.mark.parametrize("name", METHODS)
def test_a_bad_client_is_left_out_of_cohorts_of_any_width(worlds, name, width):
    outcomes = [worlds(ranks).run(play, name, True, 1.0, width) for ranks in (1, 2, 3)]
    assert len({checksum for results in outcomes for checksum, _, _ in results}) == 1
    assert all(skipped == [1, 1, 1] for results in outcomes for _, skipped, _ in results)


def all_bad(width: int, method: str):
    """Clients whose data make them fail: all of them."""
    data = toy.task()
    data.data.train.inputs.mul_(1e308)
    made = AllRaise() if method == "raises" else fedavg.Method()
    fed = toy.federation(made, sgd.Solver(lr=1.0), data, Exchange(), width=width)
    fed.skip_bad = True
    fed.round(fed.method.init_server(fed.task), 0)


@dataclass
class AllRaise(fedavg.Method):
    def client_step(self, server, clients, cohort, local):
        raise OSError(f"no file for {cohort.ids[0]}")


@pytest.mark.parametrize("width", [1, 2, 5])
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize(("method", "cause"), [("raises", "OSError: no file for 0"), ("data", "theta is not finite")])
def test_when_all_clients_are_bad_the_first_ones_cause_is_told_on_every_rank(worlds, ranks, width, method, cause):
    for _, error in worlds(ranks).try_run(all_bad, width, method):
        assert "every client of round 1 was left out: nothing to aggregate. The first, client 0: " in error
        assert cause in error


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("width", [1, 4])
def test_a_run_whose_clients_are_all_bad_says_so_in_one_line(tmp_path, ranks, width):
    words = ("run", "digits", "local.lr=1e30", "federation.on_bad_client=skip", f"federation.cohort_width={width}")
    run = forked.fedddp(*words, "--ranks", ranks, "--out", tmp_path / "run")
    (line,) = run.stderr.strip().splitlines()
    assert run.returncode == 1
    assert line.startswith("fedddp: every client of round 1 was left out")
    assert "client 0: its theta is not finite" in line


def test_a_round_in_which_every_client_fails_is_an_error(exchange):
    fed = toy.federation(Raises(), sgd.Solver(), toy.task(sizes=(4, 4, 4, 9)), exchange, participation=0.25)
    fed.skip_bad = True
    with pytest.raises(RuntimeError, match=r"every client of round .* was left out.*client 3: OSError"):
        toy.iterate(fed, 60)


def ranks_disagree():
    exchange = Exchange()
    fed = toy.federation(DependsOnTheRank(rank=exchange.rank), sgd.Solver(), toy.task(), exchange)
    server, _ = fed.round(fed.method.init_server(fed.task), 0)
    fed.check_equal(server, 1)


def test_ranks_with_different_server_states_stop(worlds):
    for _, error in worlds(2).try_run(ranks_disagree):
        assert "ranks hold different server states" in error


def test_a_server_state_that_is_not_finite_stops_the_run(exchange):
    fed = toy.federation(ServerDiverges(), exact.Solver(), toy.task(), exchange)
    with pytest.raises(RuntimeError, match="round 1: the server's theta is not finite"):
        fed.round(fed.method.init_server(fed.task), 0)


def test_server_states_are_equal_on_all_ranks(worlds):
    for _, error in worlds(3).try_run(agree_on_state):
        assert error is None


def agree_on_state():
    fed = toy.federation(federated_admm.Method(), sgd.Solver(), toy.task(), Exchange(), participation=0.5)
    server = toy.iterate(fed, 3)[-1]
    fed.check_equal(server, 3)
    assert torch.isfinite(server.theta).all()
