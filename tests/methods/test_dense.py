"""DENSE: made-up inputs, and what a student learns from them."""

import pytest
import torch
from torch import nn

from fedddp.core.rng import stream
from fedddp.local import sgd
from fedddp.methods import dense
from fedddp.methods._generator import generator
from tests import toy
from tests.methods import given

QUICK = {"epochs": 8, "generator_steps": 10, "batch_size": 64, "latent": 16, "width": 8, "lr": 0.02}


def taught(exchange, theta, task, **settings):
    return given.merge(dense.Method(**(QUICK | settings)), theta, task, exchange).theta


@pytest.mark.parametrize("shape", [(28, 28), (3, 7, 9), (13,), (1, 8, 8)])
def test_generators_make_standardised_inputs_of_any_shape(shape):
    torch.manual_seed(0)
    made = generator(shape, latent=6, width=4)(torch.randn(32, 6)).detach()
    assert made.shape == (32, *shape)
    assert abs(float(made.mean())) < 0.1
    assert float(made.std()) == pytest.approx(1, abs=0.1)


def test_the_student_comes_closer_to_the_ensemble_than_the_mean_of_its_parameters(exchange):
    """Seen on inputs that neither it nor the generator ever saw."""
    task = given.task(given.mlp(), (5,))
    theta = given.around(task, spread=0.4)
    inputs = torch.randn(200, 5, generator=stream(3), dtype=torch.float64)
    weight = task.num_examples.double() / task.num_examples.sum()

    def apart(student):
        teacher = sum(w * task.outputs(t, inputs) for w, t in zip(weight, theta, strict=True))
        return float(
            nn.functional.kl_div(
                task.outputs(student, inputs).log_softmax(1), teacher.softmax(1), reduction="batchmean"
            )
        )

    student = taught(exchange, theta, task)
    assert apart(student) < 0.5 * apart(weight @ theta)


def test_clients_that_agree_teach_what_they_are(exchange):
    task = given.task(given.lenet(), (1, 10, 10))
    student = taught(exchange, task.initial.repeat(3, 1), task, epochs=2, generator_steps=2)
    torch.testing.assert_close(student, task.initial, rtol=0, atol=1e-12)


def test_global_random_state_is_neither_used_nor_changed(exchange):
    task = given.task(given.mlp(), (5,))
    theta = given.around(task)
    torch.manual_seed(1)
    one = taught(exchange, theta, task, epochs=2)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    other = taught(exchange, theta, task, epochs=2)
    assert torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), state)


def test_rounds_have_streams_of_their_own(exchange):
    task = given.task(given.mlp(), (5,))
    method = dense.Method(**(QUICK | {"epochs": 1}))
    states = toy.iterate(toy.federation(method, given.Given(given.around(task)), task, exchange), 2)
    assert not torch.equal(states[1].theta, states[2].theta)


def test_the_student_is_the_best_it_has_been_on_the_servers_points(exchange):
    task = given.with_validation(given.task(given.mlp(), (5,)))
    theta = given.around(task)
    weight = task.num_examples.double() / task.num_examples.sum()
    assert given.accuracy(task, taught(exchange, theta, task)) >= given.accuracy(task, weight @ theta)


def test_a_regression_is_refused(exchange):
    with pytest.raises(ValueError, match="classification"):
        toy.federation(dense.Method(), sgd.Solver(), toy.task(), exchange).method.init_server(toy.task())
