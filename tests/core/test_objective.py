"""Losses, predictions, and metrics that add up over chunks."""

import pytest
import torch
import torch.nn.functional as F
from sklearn import metrics as sk

from fedddp.core.data import Dataset, Examples
from fedddp.core.objective import OBJECTIVES, Binary, CrossEntropy, MultiLabel, NextToken, SquaredError, choose
from fedddp.core.rng import stream

N = 203


def some(kind: str, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs and targets of N examples."""
    generator = stream("objective", kind)
    random = lambda *shape: torch.randn(*shape, generator=generator, dtype=dtype)  # noqa: E731
    integers = lambda high, *shape: torch.randint(high, shape, generator=generator)  # noqa: E731
    if kind == "next_token":
        targets = integers(11, N, 6)
        length = integers(7, N, 1)  # some examples have no real token at all
        return random(N, 6, 11), torch.where(torch.arange(6) < length, targets, -100)
    return {
        "cross_entropy": (2 * random(N, 7), integers(7, N)),
        "binary": (2 * random(N, 1), integers(2, N)),
        "multi_label": (random(N, 9) - 1, (integers(4, N, 9) == 0).to(torch.uint8)),
        "squared_error": (random(N, 1), random(N)),
    }[kind]


def dataset(targets: torch.Tensor, classes: int, tokens: bool = False) -> Dataset:
    examples = Examples(torch.zeros(len(targets), 3), targets)
    return Dataset(examples, examples, classes=classes, tokens=tokens)


@pytest.mark.parametrize("kind", OBJECTIVES)
def test_chunked_is_whole(kind):
    objective, (outputs, targets) = OBJECTIVES[kind](), some(kind)
    probabilities = objective.probabilities(outputs)
    whole = objective.tally(probabilities, targets)
    cuts = [slice(0, 0), slice(0, 1), slice(1, 50), slice(50, 120), slice(120, N)]  # one of them empty
    tallies = [objective.tally(probabilities[cut], targets[cut]) for cut in cuts]
    added = {name: sum(tally[name] for tally in tallies) for name in whole}
    for name, value in whole.items():
        assert value.dtype == torch.float64
        assert torch.allclose(added[name], value, rtol=1e-12), name
    assert objective.metrics(added) == pytest.approx(objective.metrics(whole), rel=1e-12)


@pytest.mark.parametrize("kind", OBJECTIVES)
def test_loss_is_a_number_for_each_example_also_under_vmap(kind):
    objective, (outputs, targets) = OBJECTIVES[kind](), some(kind)
    assert objective.loss(outputs, targets).shape == (N,)
    cut = 200
    stacked = (outputs[:cut].reshape(4, 50, *outputs.shape[1:]), targets[:cut].reshape(4, 50, *targets.shape[1:]))
    losses = torch.vmap(objective.loss)(*stacked)
    assert torch.allclose(losses.flatten(), objective.loss(outputs[:cut], targets[:cut]), rtol=1e-12)


def test_cross_entropy_metrics_are_those_of_scikit_learn():
    outputs, targets = some("cross_entropy")
    got = CrossEntropy().metrics(CrossEntropy().tally(CrossEntropy().probabilities(outputs), targets))
    choice, p = outputs.argmax(1), outputs.softmax(1)
    assert got["accuracy"] == pytest.approx(sk.accuracy_score(targets, choice))
    assert got["macro_f1"] == pytest.approx(sk.f1_score(targets, choice, average="macro"))
    assert got["nll"] == pytest.approx(sk.log_loss(targets, p))
    assert got["brier"] == pytest.approx(float((p - F.one_hot(targets, 7)).square().sum(1).mean()))


def test_binary_is_cross_entropy_with_logits_zero_and_z():
    outputs, targets = some("binary")
    both = torch.cat([torch.zeros_like(outputs), outputs], dim=1)
    assert torch.allclose(Binary().loss(outputs, targets), CrossEntropy().loss(both, targets), rtol=1e-12)
    assert torch.allclose(Binary().probabilities(outputs), CrossEntropy().probabilities(both), rtol=1e-12)
    got = Binary().metrics(Binary().tally(Binary().probabilities(outputs), targets))
    assert got["accuracy"] == pytest.approx(float(((outputs[:, 0] > 0) == targets).double().mean()))


def test_multi_label_metrics_are_those_of_scikit_learn():
    outputs, targets = some("multi_label")
    got = MultiLabel().metrics(MultiLabel().tally(MultiLabel().probabilities(outputs), targets))
    chosen = (outputs > 0).int()
    assert got["precision"] == pytest.approx(sk.precision_score(targets, chosen, average="micro"))
    assert got["micro_f1"] == pytest.approx(sk.f1_score(targets, chosen, average="micro"))
    assert got["macro_f1"] == pytest.approx(sk.f1_score(targets, chosen, average="macro"))
    top = torch.zeros_like(targets).scatter(1, outputs.topk(5).indices, 1)
    assert got["recall_at_5"] == pytest.approx(float((top * targets).sum() / targets.sum()))
    assert got["nll"] == pytest.approx(float(MultiLabel().loss(outputs, targets).mean()))


def test_multi_label_with_nothing_to_find():
    nothing = torch.zeros(3, 2)
    got = MultiLabel().metrics(MultiLabel().tally(nothing.double() + 0.1, nothing))
    assert [got[name] for name in ("precision", "recall_at_5", "micro_f1", "macro_f1")] == [0.0] * 4


def test_next_token_ignores_padding():
    outputs, targets = some("next_token")
    losses = NextToken().loss(outputs, targets)
    for example in range(20):
        real = targets[example] != -100
        alone = F.cross_entropy(outputs[example, real], targets[example, real]) if real.any() else torch.tensor(0.0)
        assert float(losses[example]) == pytest.approx(float(alone))
    got = NextToken().metrics(NextToken().tally(NextToken().probabilities(outputs), targets))
    real = targets != -100
    assert got["accuracy"] == pytest.approx(float((outputs.argmax(-1) == targets)[real].double().mean()))
    assert got["perplexity"] == pytest.approx(float(F.cross_entropy(outputs[real], targets[real]).exp()))


def test_squared_error():
    outputs, targets = some("squared_error")
    got = SquaredError().metrics(SquaredError().tally(outputs, targets))
    assert got["rmse"] == pytest.approx(sk.root_mean_squared_error(targets, outputs[:, 0]))
    two = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 0.0]])
    assert SquaredError().loss(*two).tolist() == [2.5]


def test_auto_goes_by_the_targets():
    one, several = torch.zeros(4, dtype=torch.long), torch.zeros(4, 3, dtype=torch.long)
    assert type(choose("auto", dataset(one, 10))) is CrossEntropy
    assert type(choose("auto", dataset(one.double(), 0))) is SquaredError
    assert type(choose("auto", dataset(several, 3))) is MultiLabel
    assert type(choose("auto", dataset(several, 80, tokens=True))) is NextToken
    assert type(choose("auto", dataset(one, 80, tokens=True))) is CrossEntropy  # one token that follows the whole text
    assert type(choose("binary", dataset(one, 2))) is Binary


def test_outputs_are_counted_by_the_objective():
    one, several = torch.zeros(4, dtype=torch.long), torch.zeros(4, 3)
    assert choose("auto", dataset(one, 2)).outputs(dataset(one, 2)) == 2
    assert choose("binary", dataset(one, 2)).outputs(dataset(one, 2)) == 1
    assert choose("auto", dataset(one.double(), 0)).outputs(dataset(one.double(), 0)) == 1
    assert choose("auto", dataset(several, 0)).outputs(dataset(several, 0)) == 3


def test_what_does_not_fit_is_said():
    one = dataset(torch.zeros(4, dtype=torch.long), 10)
    with pytest.raises(ValueError, match=r"model.loss=hinge: unknown; choose one of auto, cross_entropy"):
        choose("hinge", one)
    with pytest.raises(ValueError, match="needs targets with 2 axes"):
        choose("multi_label", one)
    with pytest.raises(ValueError, match="the data has 10 classes"):
        choose("binary", one).outputs(one)
