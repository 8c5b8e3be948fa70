"""Curvature in three shapes, each against the matrix that it stands for."""

import pytest
import torch
from torch import nn

from fedddp.clients.cohort import Cohort
from fedddp.clients.curvature import ggn_full
from fedddp.clients.kron import kron
from fedddp.clients.oracle import Oracle
from fedddp.core.rng import stream
from fedddp.methods._channel import compress_factors, factor_numbers, quantise
from fedddp.methods._structures import STRUCTURES, last_layer_ggn
from tests.methods import given


def close(a, b, tolerance=1e-9):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def measured(structure, module, shape):
    task = given.task(module, shape)
    cohort = Cohort((1, 2, 0), 0, task, Oracle(task.module, task.layout, task.objective))
    return task, cohort, given.around(task)[[1, 2, 0]], STRUCTURES[structure]


def dense(structure, cohort, theta):
    """[C, P, P] what the structure keeps of the GGN."""
    full = ggn_full(cohort, theta)
    kept = torch.diag_embed(full.diagonal(dim1=1, dim2=2))
    if structure == "last":
        last = cohort.task.layout.sizes[-2] + cohort.task.layout.sizes[-1]  # weight and bias
        kept[:, -last:, -last:] = full[:, -last:, -last:]
    if structure == "kron":
        blocks = kron(cohort, theta).blocks
        kept = torch.stack([torch.block_diag(*(torch.kron(b.outer[c], b.inner[c]) for b in blocks)) for c in range(3)])
    return kept


@pytest.mark.parametrize("structure", STRUCTURES)
def test_products_and_determinants_are_those_of_the_matrix(structure):
    task, cohort, theta, kept = measured(structure, given.mlp(), (5,))
    rows = kept.measure(cohort, theta)
    assert rows.shape == (3, kept.size(task))
    matrix = dense(structure, cohort, theta) + 0.3 * torch.eye(task.layout.numel, dtype=torch.float64)
    vectors = torch.randn(3, 4, task.layout.numel, generator=stream(1), dtype=torch.float64)
    close(kept.product(task, rows, vectors, 0.3), vectors @ matrix.mT)
    close(kept.product(task, rows, vectors), vectors @ matrix.mT - 0.3 * vectors)
    close(kept.logdet(task, rows, 0.3), torch.linalg.slogdet(matrix).logabsdet)


def test_layers_of_equal_shape_are_multiplied_together_and_keep_their_places():
    layers = [layer for _ in range(3) for layer in (nn.Tanh(), nn.Linear(4, 4))]
    task, cohort, theta, kept = measured("kron", nn.Sequential(nn.Linear(5, 4), *layers, nn.Linear(4, 3)), (5,))
    rows, matrix = kept.measure(cohort, theta), dense("kron", cohort, theta)
    vectors = torch.randn(3, 2, task.layout.numel, generator=stream(3), dtype=torch.float64)
    close(kept.product(task, rows, vectors), vectors @ matrix.mT)
    close(kron(cohort, theta).product(vectors[:, 0]), (vectors @ matrix.mT)[:, 0])


@pytest.mark.parametrize("bias", [True, False])
def test_the_last_layers_block_is_the_ggn_itself(bias):
    module = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3, bias=bias))
    _, cohort, theta, _ = measured("last", module, (5,))
    size = 12 + 3 * bias
    close(last_layer_ggn(cohort, theta), ggn_full(cohort, theta)[:, -size:, -size:])


def test_quantised_numbers_lie_within_half_a_step():
    value = torch.randn(3, 50, generator=stream(2), dtype=torch.float64)
    for bits in (8, 16):
        step = value.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
        rounded = quantise(value, bits)
        assert ((rounded - value).abs() <= step / 2 + 1e-15).all()
        assert len(rounded[0].unique()) <= 2**bits - 1
    assert torch.equal(quantise(value, 0), value)
    assert torch.equal(quantise(torch.zeros(2, 3), 8), torch.zeros(2, 3))


def test_truncated_factors_are_the_best_of_their_rank_and_stay_positive():
    task, cohort, theta, _ = measured("kron", given.mlp(), (5,))
    whole = kron(cohort, theta)
    cut = compress_factors(whole, bits=0, rank=2)
    for before, after in zip(whole.blocks, cut.blocks, strict=True):
        for full, low in zip(before, after, strict=True):
            dropped = (
                torch.linalg.eigvalsh(full)[:, :-2].square().sum(1).sqrt() if full.shape[1] > 2 else torch.zeros(3)
            )
            close(torch.linalg.matrix_norm(full - low), dropped.to(full), 1e-8)
    eight = compress_factors(whole, bits=8, rank=2)
    assert min(float(torch.linalg.eigvalsh(f).min()) for b in eight.blocks for f in b) > -1e-9
    assert factor_numbers(task.layout, 0) == whole.flatten().shape[1]
    assert factor_numbers(task.layout, 2) < factor_numbers(task.layout, 0)
