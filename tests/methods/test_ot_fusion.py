"""Fusing by optimal transport: permuted copies of a network are the same network."""

import pytest
import torch
from torch import nn

from fedddp.core.rng import stream
from fedddp.methods import ot_fusion
from fedddp.methods._neurons import chain, permute
from tests.methods import given


def normed():
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3),
        nn.GroupNorm(2, 6),
        nn.ReLU(),
        nn.Conv2d(6, 4, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(144, 3),
    )


NETWORKS = {
    "linear": (given.mlp, (5,)),
    "linear without biases": (lambda: given.mlp(bias=False), (5,)),
    "convolutions": (given.lenet, (1, 10, 10)),
    "group norm": (normed, (1, 10, 10)),
}


def shuffled(task, seed):
    """The network with its hidden neurons in another order, within groups where there are some."""
    generator, orders = stream(seed), []
    for layer in chain(task)[:-1]:
        parts = torch.arange(layer.neurons).chunk(layer.groups)
        orders.append(torch.cat([p[torch.randperm(len(p), generator=generator)] for p in parts]))
    return permute(task, chain(task), task.initial, [*orders, torch.arange(3)])


@pytest.mark.parametrize("network", NETWORKS)
def test_a_network_and_its_permuted_copies_fuse_to_the_same_function(exchange, network):
    build, shape = NETWORKS[network]
    task = given.task(build(), shape)
    copies = torch.stack([task.initial, shuffled(task, 1), shuffled(task, 2)])
    assert (copies[1] - copies[0]).norm() > 0.1
    fused = given.merge(ot_fusion.Method(), copies, task, exchange).theta
    inputs = task.data.test.inputs
    with torch.no_grad():
        truth = task.outputs(task.initial, inputs)
        assert (task.outputs(fused, inputs) - truth).abs().max() < 1e-5
        assert (task.outputs(copies.mean(0), inputs) - truth).abs().max() > 1e-2  # averaging alone does not do it


def test_clients_weigh_by_their_examples(exchange):
    task = given.task(given.mlp(), (5,))
    theta = task.initial + 1e-4 * torch.randn(3, task.layout.numel, generator=stream(7), dtype=torch.float64)
    fused = given.merge(ot_fusion.Method(), theta, task, exchange).theta  # too close for any neuron to move
    torch.testing.assert_close(
        fused, torch.tensordot(task.num_examples / 75.0, theta.float(), 1).double(), atol=1e-6, rtol=0
    )


class Skip(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.out = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, inputs):
        hidden = self.one(inputs).relu()
        return self.out(hidden + self.two(hidden).relu())


@pytest.mark.parametrize(
    "module", [Skip(), nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3, groups=4), nn.Flatten(), nn.Linear(16, 3))]
)
def test_a_network_that_is_no_chain_is_refused(module):
    shape = (6,) if isinstance(module, Skip) else (1, 6, 6)
    with pytest.raises(ValueError, match="chain"):
        ot_fusion.Method().init_server(given.task(module, shape))


def test_a_layer_without_neurons_to_align_is_refused():
    module = nn.Sequential(nn.Linear(6, 4), nn.PReLU(2), nn.Linear(4, 3))
    with pytest.raises(ValueError, match="PReLU"):
        ot_fusion.Method().init_server(given.task(module, (6,)))
