"""Fisher merging and RegMean against their closed forms in numpy."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, grad

from fedddp.methods import fisher_merge, regmean
from fedddp.methods._descent import score_of
from tests import toy
from tests.methods import given


def close(a, b, tolerance=1e-9):
    torch.testing.assert_close(torch.as_tensor(a), torch.as_tensor(b), rtol=tolerance, atol=tolerance)


def example_grads(task, theta, client):
    """The gradient of each of a client's losses, by autograd one after the other; [N, P]."""
    index = task.shards.of_client(client)
    x, y = task.data.train.inputs[index], task.data.train.targets[index]

    def loss(point, one, label):
        outputs = functional_call(task.module, task.layout.views(point), (one.unsqueeze(0),))
        return task.objective.loss(outputs, label.unsqueeze(0)).sum()

    return torch.stack([grad(loss)(theta, one, label) for one, label in zip(x, y, strict=True)])


def test_fisher_merge_is_the_ratio_of_weighted_sums(exchange):
    task = toy.task()
    theta = given.around(task)
    merged = given.merge(fisher_merge.Method(), theta, task, exchange).theta
    fisher = np.stack([np.diag(toy.gram(task, k)[0].numpy()) for k in range(toy.K)])
    close(merged, (fisher * theta.numpy()).sum(0) / fisher.sum(0))


def test_fisher_merge_with_the_empirical_fisher(exchange):
    task = given.task(given.mlp(), (5,))
    theta = given.around(task)
    merged = given.merge(fisher_merge.Method(fisher="empirical", floor=0.0), theta, task, exchange).theta
    fisher = torch.stack([example_grads(task, theta[k], k).square().sum(0) for k in range(3)])
    known = fisher.sum(0) > 0
    close(merged[known], ((fisher * theta).sum(0) / fisher.sum(0))[known], 1e-7)


def test_fisher_merge_takes_the_plain_mean_where_nobody_knows(exchange):
    task = toy.task()
    task.data.train.inputs[:, 1] = 0.0
    theta = given.around(task)
    merged = given.merge(fisher_merge.Method(), theta, task, exchange).theta
    close(merged[1], theta[:, 1].mean())
    assert (merged[0] - theta[:, 0].mean()).abs() > 1e-3


@pytest.mark.parametrize("a", [1.0, 0.9, 0.0])
def test_regmean_is_the_weighted_least_squares_of_every_linear_layer(exchange, a):
    task = given.task(given.mlp(), (5,))
    theta = given.around(task)
    merged = task.layout.views(given.merge(regmean.Method(a=a), theta, task, exchange).theta)
    for layer in ("0", "2", "4"):
        grams, pulls = 0.0, 0.0
        for k in range(3):
            views = task.layout.views(theta[k])
            x = task.data.train.inputs[task.shards.of_client(k)]
            net = task.module[: int(layer)]
            x = functional_call(net, {n: v for n, v in views.items() if int(n[0]) < int(layer)}, (x,)).detach().numpy()
            x = np.concatenate([x, np.ones((len(x), 1))], 1)
            gram = x.T @ x
            gram = a * gram + (1 - a) * np.diag(np.diag(gram))
            weight = np.concatenate([views[f"{layer}.weight"].numpy().T, views[f"{layer}.bias"].numpy()[None]], 0)
            grams, pulls = grams + gram, pulls + gram @ weight
        expected = np.linalg.pinv(grams) @ pulls
        close(merged[f"{layer}.weight"], expected[:-1].T, 1e-7)
        close(merged[f"{layer}.bias"], expected[-1], 1e-7)


def test_regmean_leaves_convolutions_to_the_mean(exchange):
    task = given.task(given.lenet(), (1, 10, 10))
    theta = given.around(task, spread=0.05)
    merged = task.layout.views(given.merge(regmean.Method(), theta, task, exchange).theta)
    mean = task.layout.views(theta.mean(0))
    close(merged["0.weight"], mean["0.weight"])
    close(merged["3.weight"], mean["3.weight"])
    assert (merged["6.weight"] - mean["6.weight"]).norm() > 1e-3


@pytest.mark.parametrize("bias", [False, True])
def test_regmean_of_linear_models_at_their_optimum_is_pooled_least_squares(exchange, bias):
    task = given.task(nn.Linear(4, 1, bias=bias), (4,))
    task.data.train.targets.copy_(task.data.train.inputs.sum(1).mul(3).round())
    x, y = task.data.train.inputs, task.data.train.targets.double().unsqueeze(1)
    x = torch.cat([x, torch.ones(len(x), 1)], 1) if bias else x
    index = [task.shards.of_client(k) for k in range(3)]
    theta = torch.stack([torch.linalg.lstsq(x[i], y[i]).solution.squeeze(1) for i in index])
    merged = given.merge(regmean.Method(a=1.0), theta, task, exchange).theta
    close(merged, torch.linalg.lstsq(x, y).solution.squeeze(1))


def test_regmean_needs_a_linear_layer(exchange):
    task = given.task(nn.Sequential(nn.Conv2d(1, 3, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()), (1, 5, 5))
    with pytest.raises(ValueError, match="linear layers"):
        regmean.Method().init_server(task)


def test_fisher_merge_in_fifteen_bits_forgets_what_is_small_in_its_layer(exchange):
    """By numpy: whole multiples of each layer's largest entry, and the mean by examples where the sum is nothing."""
    task = given.task(given.mlp(), (5,))
    theta = given.around(task)
    method = fisher_merge.Method(fisher="empirical", bits=4, fallback="examples")
    merged = given.merge(method, theta, task, exchange).theta.numpy()
    fisher = np.stack([example_grads(task, theta[k], k).square().sum(0).numpy() for k in range(3)])
    sizes = task.num_examples[:3].numpy()
    mean = (sizes[:, None] * theta.numpy()).sum(0) / sizes.sum()
    expected = mean.copy()
    for place in task.layout.slices().values():
        sent = []
        for rows in (fisher[:, place], theta.numpy()[:, place]):
            largest = np.abs(rows).max(1, keepdims=True)
            largest[largest == 0] = 1
            sent.append(np.round(rows / largest * 15) * largest / 15)
        known = sent[0].sum(0) > 1e-6 * sizes.sum()
        expected[place] = np.where(known, (sent[0] * sent[1]).sum(0) / np.where(known, sent[0].sum(0), 1), mean[place])
    close(merged, expected, 1e-7)
    assert np.isclose(merged, mean, atol=1e-12).any()  # a coordinate is forgotten


def test_regmean_chooses_its_factor_by_validation(exchange):
    plain = given.task(given.mlp(), (5,))
    task = replace(plain, data=replace(plain.data, validation=plain.data.train))
    theta = given.around(task)
    by = {a: given.merge(regmean.Method(a=a), theta, task, exchange).theta for a in (0.1, 0.9)}
    scores = {a: float(score_of(task, found)) for a, found in by.items()}
    assert scores[0.1] != scores[0.9]
    chosen = given.merge(regmean.Method(choices=[0.1, 0.9]), theta, task, exchange).theta
    assert torch.equal(chosen, by[max(scores, key=scores.__getitem__)])
    with pytest.raises(ValueError, match=r"method\.choices.*data\.validation=N"):
        regmean.Method(choices=[0.1, 0.9]).init_server(plain)
