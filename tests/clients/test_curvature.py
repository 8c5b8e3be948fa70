"""Our curvature against dense algebra in float64, and against laplace-torch."""

import pytest
import torch
from laplace import Laplace
from laplace.curvature import CurvlinopsGGN
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fedddp.clients import curvature
from fedddp.clients.cohort import Cohort
from fedddp.clients.kron import Kron, kron
from fedddp.clients.oracle import Oracle
from fedddp.config import loading as configuration
from fedddp.runs.build import make_task
from tests import toy
from tests.small import MODELS, settings

CPU = torch.device("cpu")


def small(*words):
    task = make_task(configuration.load(None, settings("fedavg", *words, "federation.dtype=float64")), CPU)
    return cohort_of(task, task.num_examples.argsort(descending=True, stable=True)[1:4].tolist())


def cohort_of(task, ids):
    return Cohort(tuple(ids), 0, task, Oracle(task.module, task.layout, task.objective))


def start(cohort):
    noise = torch.randn(len(cohort), cohort.task.layout.numel, dtype=torch.float64, generator=torch.manual_seed(0))
    return cohort.task.initial + 0.1 * noise


def laplace(cohort, theta, row, structure, backend=None):
    index = cohort.task.shards.of_client(cohort.ids[row])
    train = cohort.task.data.train
    data = TensorDataset(cohort.task.data.prepare(train.inputs[index], torch.float64), train.targets[index])
    module = cohort.task.module
    nn.utils.vector_to_parameters(theta[row].clone(), module.parameters())
    more = {} if backend is None else {"backend": backend}
    with torch.enable_grad():
        found = Laplace(module, "classification", "all", structure, **more)
        found.fit(DataLoader(data, batch_size=7))
    return found.H


def exact(a, b, tolerance=1e-10):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * float(b.abs().max()))


@pytest.mark.parametrize("model", MODELS)
def test_the_diagonal_is_that_of_the_whole_matrix(model):
    cohort = small(*MODELS[model])
    theta = start(cohort)
    exact(curvature.ggn_diag(cohort, theta), curvature.ggn_full(cohort, theta).diagonal(dim1=1, dim2=2))


@pytest.mark.parametrize("model", MODELS)
def test_the_diagonal_agrees_with_laplace_torch(model):
    cohort = small(*MODELS[model])
    theta = start(cohort)
    ours = curvature.ggn_diag(cohort, theta)
    for row in range(len(cohort)):
        exact(ours[row], laplace(cohort, theta, row, "diag"))


def test_the_whole_matrix_agrees_with_laplace_torch():
    cohort = small("model.name=mlp", "model.hidden=[5]")
    theta = start(cohort)
    exact(curvature.ggn_full(cohort, theta)[0], laplace(cohort, theta, 0, "full", CurvlinopsGGN), 1e-6)


@pytest.mark.parametrize("bias", [False, True])
def test_a_linear_models_matrix_needs_no_jacobian(bias):
    cohort = small("model.name=tests.clients.test_curvature:OneLayer", f"model.args.bias={str(bias).lower()}")
    theta, task = start(cohort), cohort.task
    assert curvature._is_linear(task, theta[0], next(curvature.examples(cohort, 1))[1])
    found = curvature.ggn_full(cohort, theta)
    wanted = torch.zeros_like(found)
    for row, inputs, targets in curvature.examples(cohort, 5):
        wanted[row] += curvature._by_jacobian(task, theta[row], inputs, targets)
    exact(found, wanted)


def test_a_layer_with_something_after_it_is_not_a_linear_model():
    cohort = small("model.name=tests.clients.test_curvature:OneLayer", "model.args.after=true")
    assert not curvature._is_linear(cohort.task, start(cohort)[0], next(curvature.examples(cohort, 1))[1])


class OneLayer(nn.Module):
    def __init__(self, bias: bool = True, after: bool = False):
        super().__init__()
        self.layer, self.after = nn.Linear(64, 10, bias=bias), after

    def forward(self, x):
        x = self.layer(x.flatten(1))
        return x.tanh() if self.after else x


def test_random_signs_are_right_in_the_mean_and_belong_to_the_client():
    cohort = small(*MODELS["mlp"])
    theta = start(cohort)
    truth = curvature.ggn_diag(cohort, theta)
    few, many = (curvature.ggn_diag(cohort, theta, samples=s) for s in (4, 400))
    assert (many - truth).norm() < 0.05 * truth.norm()
    assert (few - truth).norm() > 2 * (many - truth).norm()
    alone = curvature.ggn_diag(cohort_of(cohort.task, cohort.ids[1:2]), theta[1:2], samples=4)
    assert torch.equal(alone[0], few[1])


def test_for_a_linear_model_ggn_and_hessian_are_one():
    cohort = small("model.name=logistic")
    theta = start(cohort)
    exact(curvature.exact_hessian(cohort, theta), curvature.ggn_full(cohort, theta))


def test_squared_error_has_the_gram_matrix():
    cohort = cohort_of(toy.task(), (3, 1))
    theta = cohort.task.initial.repeat(2, 1)
    for row, client in enumerate(cohort.ids):
        gram, _ = toy.gram(cohort.task, client)
        exact(curvature.ggn_full(cohort, theta)[row], gram)
        exact(curvature.ggn_diag(cohort, theta)[row], gram.diagonal())


def test_squared_gradients_are_those_of_single_examples():
    cohort = small(*MODELS["conv"])
    theta, task = start(cohort), cohort.task
    found = curvature.squared_grads(cohort, theta)
    for row, client in enumerate(cohort.ids):
        total = torch.zeros(task.layout.numel, dtype=torch.float64)
        for i in task.shards.of_client(client):
            leaf = theta[row].clone().requires_grad_()
            loss = task.objective.loss(
                task.outputs(leaf, task.data.train.inputs[i][None]), task.data.train.targets[i][None]
            )
            total += torch.autograd.grad(loss.sum(), leaf)[0].square()
        exact(found[row], total)


class Tied(nn.Module):
    """A layer used twice, and an activation in place."""

    def __init__(self):
        super().__init__()
        self.first, self.again, self.last = nn.Linear(64, 6), nn.Linear(6, 6), nn.Linear(6, 10)

    def forward(self, x):
        x = torch.relu_(self.first(x.flatten(1)))
        return self.last(torch.tanh(self.again(torch.tanh(self.again(x)))))


def test_a_module_whose_layers_do_not_tell_all_is_taken_example_by_example():
    cohort = small("model.name=tests.clients.test_curvature:Tied")
    theta = start(cohort)
    assert not curvature._layers_tell_all(cohort.task, theta[0], *next(curvature.examples(cohort, 1))[1:])
    exact(curvature.ggn_diag(cohort, theta), curvature.ggn_full(cohort, theta).diagonal(dim1=1, dim2=2))


@pytest.mark.parametrize("model", MODELS)
def test_squared_gradients_of_some_layers_are_those_of_all(model):
    cohort = small(*MODELS[model])
    theta = start(cohort)
    whole, places = curvature.squared_grads(cohort, theta), cohort.task.layout.slices()
    for name in places:
        chosen = torch.arange(places[name].start, places[name].stop)[1:]
        assert torch.equal(curvature.squared_grads(cohort, theta, chosen), whole[:, chosen])


class Convolutions(nn.Module):
    """Strided and padded, dilated without a bias, grouped, and padded by name."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 2, 3, stride=2, padding=1), nn.Conv2d(2, 4, 2, dilation=2, bias=False)
        self.third, self.fourth = nn.Conv2d(4, 4, 2, groups=2), nn.Conv2d(4, 10, 3, padding="same")

    def forward(self, x):
        x = torch.tanh(self.first(x.view(-1, 1, 8, 8)))
        return self.fourth(torch.tanh(self.third(torch.tanh(self.second(x))))).flatten(1)


def test_convolutions_of_every_kind_are_taken_layer_by_layer():
    cohort = small("model.name=tests.clients.test_curvature:Convolutions")
    theta = start(cohort)
    assert curvature._layers_tell_all(cohort.task, theta[0], *next(curvature.examples(cohort, 1))[1:])
    exact(curvature.ggn_diag(cohort, theta), curvature.ggn_full(cohort, theta).diagonal(dim1=1, dim2=2))


class Padded(nn.Module):
    """Convolutions with and without a bias, padded and strided, pooled, and two linear layers."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.MaxPool2d(2), nn.ReLU())
        self.last = nn.Sequential(nn.Conv2d(3, 4, 2, stride=2, bias=False), nn.Flatten(), nn.Linear(16, 10))

    def forward(self, x):
        return self.last(torch.tanh(self.body(x.view(-1, 1, 8, 8))))


@pytest.fixture(scope="module", params=[MODELS["mlp"], ["model.name=tests.clients.test_curvature:Padded"]])
def factored(request):
    cohort = small(*request.param)
    theta = start(cohort)
    return cohort, theta, kron(cohort, theta)


def test_kron_is_laplace_torchs(factored):
    cohort, theta, made = factored
    vector = start(cohort)
    product, diag, logdet, solved = made.product(vector), made.diag(), made.logdet(0.3), made.solve(vector, 0.3)
    for row in range(len(cohort)):
        theirs = laplace(cohort, theta, row, "kron", CurvlinopsGGN)
        theirs = theirs + torch.tensor(0.3, dtype=torch.float64) * torch.ones(len(theirs), dtype=torch.float64)
        exact(product[row] + 0.3 * vector[row], theirs.bmm(vector[row], exponent=1), 1e-8)
        exact(solved[row], theirs.bmm(vector[row], exponent=-1), 1e-8)
        exact(diag[row] + 0.3, theirs.diag(), 1e-8)
        exact(logdet[row], theirs.logdet(), 1e-10)


def test_kron_factors_survive_as_one_row_per_client(factored):
    cohort, _, made = factored
    again = Kron.unflatten(made.flatten(), cohort.task.layout)
    vector = start(cohort)
    assert torch.equal(made.product(vector, 0.5), again.product(vector, 0.5))
    exact(again.solve(again.product(vector, 0.5), 0.5), vector, 1e-8)


def test_kron_of_the_output_bias_is_exact(factored):
    """With one output layer bias, its block is the GGN itself."""
    cohort, theta, made = factored
    block = made.blocks[-1]
    exact(block.outer, curvature.ggn_full(cohort, theta)[:, -10:, -10:], 1e-8)


def test_kron_refuses_group_norm_and_names_the_layer():
    cohort = small(*MODELS["conv"])
    with pytest.raises(ValueError, match=r"GroupNorm.*use the diagonal"):
        kron(cohort, start(cohort))


def test_kron_refuses_layers_called_twice_and_grouped_convolutions():
    for model, words in {"Tied": "more than once", "Convolutions": "'third' is a Conv2d"}.items():
        cohort = small(f"model.name=tests.clients.test_curvature:{model}")
        with pytest.raises(ValueError, match=f"{words}.*use the diagonal"):
            kron(cohort, start(cohort))
