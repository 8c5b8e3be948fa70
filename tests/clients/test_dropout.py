"""Dropout by client: the same in any company, by vmap or by a loop, and keyed by client and round."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedddp.clients.cohort import Cohort
from fedddp.clients.dropout import Dropout, Masked, Masks
from fedddp.clients.oracle import Oracle
from fedddp.core import kernels
from fedddp.core.data import Dataset, Examples
from fedddp.core.objective import CrossEntropy
from fedddp.core.params import Layout
from fedddp.core.rng import Streams, stream
from fedddp.core.shards import Shards
from fedddp.core.task import Task
from fedddp.local import adam, sgd

SIZES = (23, 17, 17, 9, 4)


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Unflatten(1, (1, 6)),
            nn.Conv2d(1, 3, 3),
            nn.Dropout2d(0.3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(0.25),
            nn.Linear(48, 8),
            nn.Sequential(nn.ReLU(), nn.Dropout(0.5)),
            nn.Linear(8, 4),
        ).double()


def make_task(module: nn.Module | None = None, kind: str = "independent") -> Task:
    generator, module = stream("dropout"), module or network()
    count = sum(SIZES)
    inputs = torch.randn(count, 6, 6, generator=generator, dtype=torch.float64)
    examples = Examples(inputs, torch.randint(4, (count,), generator=generator))
    return Task(
        module=module,
        layout=Layout.of(module),
        objective=CrossEntropy(),
        data=Dataset(examples, examples, classes=4),
        shards=Shards.of(list(torch.arange(count).split(list(SIZES)))),
        streams=Streams(0, kind),
        rounds=10,
        initial=Layout.of(module).flatten(dict(module.named_parameters())),
        dtype=torch.float64,
    )


def fit(task: Task, ids: tuple[int, ...], vectorise: bool = True, round_: int = 0, solver=None) -> Tensor:
    cohort = Cohort(ids, round_, task, Oracle(task.module, task.layout, task.objective, vectorise))
    solver = solver or sgd.Solver(lr=0.1, epochs=2, batch_size=5, momentum=0.5)
    with torch.no_grad():
        return solver.minimise(cohort, task.initial, solver.memory(task, len(ids))).theta


@pytest.mark.parametrize("solver", [None, adam.Solver(lr=0.01, epochs=2, batch_size=4)])
def test_vmap_is_a_loop_at_any_width(solver):
    task = make_task()
    together = fit(task, (0, 1, 2, 3, 4), solver=solver)
    looped = fit(task, (0, 1, 2, 3, 4), vectorise=False, solver=solver)
    pairs = torch.cat([fit(task, (0, 1), solver=solver), fit(task, (2, 3, 4), solver=solver)])
    alone = torch.cat([fit(task, (client,), solver=solver) for client in range(5)])
    for other in (looped, pairs, alone):
        assert torch.allclose(together, other, rtol=1e-10, atol=1e-10)


def test_dropout_is_keyed_by_client_and_round():
    """Two clients with the same data and the same order of it, so that only the masks can tell them apart."""
    task = make_task()
    order = torch.arange(23)
    twins = replace(task, shards=Shards.of([order, order]))

    def step(round_: int, kind: str) -> Tensor:
        keyed = replace(twins, streams=Streams(0, kind))
        cohort = Cohort((0, 1), round_, keyed, Oracle(task.module, task.layout, task.objective))
        batch = next(cohort.everything())
        return cohort.grad(task.initial.expand(2, -1), batch)

    first, again, later = step(0, "independent"), step(0, "independent"), step(1, "independent")
    assert torch.equal(first, again)
    assert not torch.allclose(first[0], first[1])
    assert not torch.allclose(first, later)
    common = step(0, "common")
    assert torch.allclose(common[0], common[1], rtol=1e-12)
    assert not torch.allclose(common, step(1, "common"))
    assert torch.allclose(step(0, "frozen"), step(1, "frozen"), rtol=1e-12)


def test_every_gradient_has_fresh_masks():
    task = make_task()
    cohort = Cohort((0,), 0, task, Oracle(task.module, task.layout, task.objective))
    batch = next(cohort.everything())
    here = task.initial.unsqueeze(0)
    assert not torch.allclose(cohort.grad(here, batch), cohort.grad(here, batch))


def streams(dropout: Dropout, *keys: int) -> Masks:
    return Masks({name: torch.tensor(keys) + number for number, name in enumerate(dropout.layers)})


def test_masks_keep_the_right_share_and_scale():
    dropout = Dropout(network())
    inputs = torch.zeros(2, 4000, 6, 6, dtype=torch.float64)
    masks = dropout.masks(inputs, streams(dropout, 1, 2**40), torch.float64)
    shapes = {"2.mask": (3, 1, 1), "5.mask": (48,), "7.1.mask": (8,)}
    assert {name: mask.shape for name, mask in masks.items()} == {n: (2, 4000, *s) for n, s in shapes.items()}
    for name, p in {"2.mask": 0.3, "5.mask": 0.25, "7.1.mask": 0.5}.items():
        assert set(masks[name][0].unique().tolist()) == {0.0, 1 / (1 - p)}
        assert float((masks[name][0] == 0).double().mean()) == pytest.approx(p, abs=0.02)
        share = ((masks[name][0] == 0) & (masks[name][1] == 0)).double().mean()
        assert float(share) == pytest.approx(p * p, abs=0.02), "rows are independent"


def test_masks_have_the_same_bits_by_kernel_and_by_tensors_and_in_any_company(monkeypatch):
    dropout, inputs = Dropout(network().float()), torch.zeros(2, 7, 6, 6)
    whole = streams(dropout, 5, -(2**60))
    drawn = [dropout.masks(inputs, whole, torch.float32) for _ in range(3)]
    assert whole.drawn == 3
    assert not torch.equal(drawn[0]["5.mask"], drawn[1]["5.mask"])
    alone = Masks({name: keys[1:] for name, keys in whole.keys.items()}, drawn=2)
    monkeypatch.setenv("FEDDDP_KERNELS", "off")
    kernels.library.cache_clear()
    tensors = dropout.masks(inputs[1:, :3], alone, torch.float32)
    monkeypatch.undo()
    kernels.library.cache_clear()
    for name, mask in tensors.items():
        assert torch.equal(mask[0], drawn[2][name][1, :3])


def test_evaluation_and_full_gradients_have_no_dropout():
    task, plain = make_task(), network().eval()
    cohort = Cohort((0,), 0, task, Oracle(task.module, task.layout, task.objective))
    inputs, targets = (part[task.shards.of_client(0)] for part in (task.data.train.inputs, task.data.train.targets))
    outputs = plain(inputs)
    assert torch.equal(task.outputs(task.initial, inputs), outputs)
    whole = torch.autograd.grad(F.cross_entropy(outputs, targets, reduction="sum"), list(plain.parameters()))
    got = cohort.full_grad(task.initial.unsqueeze(0))
    assert torch.allclose(got[0], torch.cat([g.flatten() for g in whole]), rtol=1e-10)


def test_a_model_without_dropout_pays_nothing():
    module = nn.Sequential(nn.Flatten(), nn.Linear(36, 4)).double()
    oracle = Oracle(module, Layout.of(module), CrossEntropy())
    assert not oracle.dropout
    assert not any(isinstance(layer, Masked) for layer in module.modules())
    cohort = Cohort((0, 1), 0, make_task(module), oracle)
    cohort.grad(torch.zeros(2, 148, dtype=torch.float64), next(cohort.everything()))
    assert "_masks" not in vars(cohort), "no key was made"


class Reused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.drop = nn.Linear(36, 36), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.layer(self.drop(x.flatten(1))))[:, :4]


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(36, 4)

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.layer(x.flatten(1)), 0.5, self.training)


class TimeFirst(Reused):
    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.layer(x.flatten(1)).T).T[:, :4]


@pytest.mark.parametrize(
    ("module", "complaint"),
    [
        (Reused(), "dropout layer 'drop' is used twice"),
        (TimeFirst(), "first axis is not the batch"),
        (Functional(), "draws random numbers of its own in training"),
    ],
)
def test_what_cannot_be_kept_apart_by_client_is_refused(module, complaint):
    with pytest.raises(ValueError, match=complaint):
        fit(make_task(module.double()), (0, 1))


def test_other_kinds_of_dropout_are_refused():
    with pytest.raises(ValueError, match=r"'0' is a AlphaDropout: use nn\.Dropout"):
        Dropout(nn.Sequential(nn.AlphaDropout(), nn.Linear(3, 3)))


def test_dropping_everything():
    dropout = Dropout(nn.Sequential(nn.Dropout(1.0)))
    masks = dropout.masks(torch.ones(1, 6, 2), streams(dropout, 7), torch.float32)
    assert set(masks["0.mask"].unique().tolist()) == {0.0}


def test_dropping_nothing_costs_nothing():
    module = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.0))
    assert not Dropout(module)
    x = torch.ones(6, 2)
    assert torch.equal(module.train()(x), module[0](x))
