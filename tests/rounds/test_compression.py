"""Compressed messages: what is sent, what is kept for later, what is counted, and who may."""

import pytest
import torch

from fedddp.clients.cohort import Cohort
from fedddp.local import sgd
from fedddp.methods import fedavg, fedavgm
from fedddp.rounds.compression import ExchangeSettings, compressed, largest
from tests import toy
from tests.small import MODELS, fresh, run, settings

LOCAL = sgd.Solver(lr=0.05, epochs=2, batch_size=5)
TOP = ExchangeSettings("top", 0.5)


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def federation(exchange, method, how, task=None):
    return toy.federation(compressed(method, how, "test"), LOCAL, task or toy.task(), exchange)


def test_the_largest_entries_stay_and_all_equal_ones():
    value = torch.tensor([[1.0, -3.0, 2.0, 0.5], [2.0, -2.0, 2.0, 1.0]])
    assert largest(value, 2).tolist() == [[0.0, -3.0, 2.0, 0.0], [2.0, -2.0, 2.0, 0.0]]
    assert torch.equal(largest(value, 4), value)


@pytest.mark.parametrize("method", [fedavg.Method(), fedavgm.Method()])
def test_what_is_not_sent_now_is_sent_later(exchange, method):
    """Over rounds, what a client sent and what it still keeps add up to its changes."""
    fed, name = federation(exchange, method, TOP), method.compresses
    server, memory = method.init_server(fed.task), fed.method.init_clients(2, fed.task, LOCAL)
    changes = sent = torch.zeros(2, toy.D, dtype=torch.float64)
    for number in range(4):
        cohort = Cohort((1, 3), number, fed.task, fed.oracle)
        _, plain = method.client_step(server, memory.method, cohort, LOCAL)
        changes = changes + plain[name].value - method.base(server)
        memory, message = fed.method.client_step(server, memory, cohort, LOCAL)
        assert (message[name].value != 0).sum(1).tolist() == [toy.D // 2] * 2
        sent = sent + message[name].value
        server, _ = fed.round(server, number)
    close(sent + memory.residual, changes)


@pytest.mark.parametrize("method", [fedavg.Method(), fedavgm.Method()])
def test_to_send_everything_is_to_compress_nothing(exchange, method):
    plain = toy.iterate(federation(exchange, method, ExchangeSettings()), 4)[-1]
    close(toy.iterate(federation(exchange, method, ExchangeSettings("top", 1.0)), 4)[-1].theta, plain.theta)


def test_the_change_is_rounded_rather_than_the_parameters(exchange):
    task = toy.task(start=1000.0)
    start, plain = toy.iterate(federation(exchange, fedavg.Method(), ExchangeSettings(), task), 1)
    _, rounded = toy.iterate(federation(exchange, fedavg.Method(), ExchangeSettings("bf16"), task), 1)
    error = (rounded.theta - plain.theta).abs()
    assert (error <= (start.theta - plain.theta).abs().max() * 2**-8).all()
    assert error.max() > 0


@pytest.mark.parametrize(("compress", "bytes_up"), [("none", 4 * 910), ("bf16", 2 * 910), ("top", 8 * 46)])
def test_bytes_are_counted_as_they_are_sent(exchange, tmp_path, compress, bytes_up):
    words = settings("fedavg", *MODELS["mlp"], f"exchange.compress={compress}", "exchange.keep=0.05")
    summary = run(words, str(tmp_path / "run"))
    assert summary["parameters"] == 910
    assert summary["bytes_up"] == bytes_up + 4  # and the client's weight


@pytest.mark.parametrize("method", ["fedavg", "fedadam"])
@pytest.mark.parametrize("compress", ["bf16", "top"])
def test_same_bits_on_any_number_of_ranks_and_after_a_stop(worlds, tmp_path, method, compress):
    words = settings(
        method,
        *MODELS["conv"],
        "federation.participation=0.6",
        "checkpoint.every=1",
        f"exchange.compress={compress}",
        "exchange.keep=0.05",
    )
    whole = worlds(1).run(run, words, fresh(tmp_path, "whole"))[0]["checksum"]
    assert worlds(3).run(run, words, fresh(tmp_path, "three"))[0]["checksum"] == whole
    folder = fresh(tmp_path, "parts")
    worlds(3).run(run, words, folder, False, 2)
    assert worlds(2).run(run, words, folder, True)[0]["checksum"] == whole


@pytest.mark.parametrize("method", ["bayes_admm", "feddyn", "scaffold"])
def test_methods_that_send_duals_or_posteriors_refuse(exchange, tmp_path, method):
    with pytest.raises(ValueError, match=f"exchange.compress=top: not for method={method}.*compress=none"):
        run(settings(method, *MODELS["mlp"], "exchange.compress=top"), str(tmp_path))
