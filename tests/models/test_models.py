"""Parameter counts of the published models, and that each can be vectorised over clients."""

import pytest
import torch
from torch import nn

from fedddp.clients.oracle import Oracle
from fedddp.core import registry
from fedddp.core.objective import CrossEntropy, MultiLabel, NextToken
from fedddp.core.params import Layout, refuse_batch_norm
from fedddp.core.rng import stream

GRAY, COLOUR = (28, 28), (3, 32, 32)
WORDS = {"embedding": 96, "hidden": 670, "layers": 1, "projection": 96, "predict": "all"}
COUNTS = [
    ("logistic", {}, GRAY, 10, 7_850),
    ("logistic", {"pool": 4}, GRAY, 10, 500),
    ("logistic", {"pool": 5}, COLOUR, 10, 1_090),
    ("logistic", {}, (10_000,), 500, 5_000_500),  # StackOverflow's tags
    ("mlp", {"hidden": [200, 100], "activation": "sigmoid"}, GRAY, 10, 178_110),
    ("mlp", {"hidden": [200, 200]}, GRAY, 10, 199_210),
    ("lenet", {}, GRAY, 10, 44_190),
    ("lenet", {}, (1, 28, 28), 10, 44_190),
    ("zenke_cnn", {}, COLOUR, 10, 1_250_858),
    ("acar_cnn", {}, COLOUR, 10, 797_962),
    ("fedbens_cnn", {}, COLOUR, 10, 939_616),
    ("fedbens_cnn", {"pool": 2}, COLOUR, 10, 153_184),
    ("hwa_cnn", {}, COLOUR, 10, 356_810),
    ("hwa_cnn", {"pool": 2}, COLOUR, 10, 160_202),
    ("leaf_cnn", {}, GRAY, 62, 6_603_710),
    ("emnist_cnn", {}, GRAY, 62, 1_206_590),
    ("resnet", {"depth": 20}, COLOUR, 10, 269_722),
    ("resnet", {"depth": 20}, COLOUR, 100, 275_572),
    ("resnet", {"depth": 56}, COLOUR, 10, 853_018),
    ("resnet", {"depth": 18}, COLOUR, 100, 11_220_132),
    ("resnet", {"depth": 18, "norm": "none", "bias": False}, COLOUR, 100, 11_210_432),
    ("lstm", {}, (80,), 80, 817_872),
    ("lstm", WORDS, (20,), 10_004, 4_050_748),
    ("gpt", {}, (80,), 80, 417_280 + 80 * 128),
]


def build(name: str, settings: dict, shape: tuple[int, ...], classes: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return registry.find("model", name)(**settings).build(shape, classes)


def inputs_for(name: str, shape: tuple[int, ...], *lead: int, tokens: int = 10) -> torch.Tensor:
    generator = stream("inputs", name)
    if name == "lstm":
        return torch.randint(tokens, (*lead, *shape), generator=generator)
    return torch.rand(*lead, *shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(("name", "settings", "shape", "classes", "count"), COUNTS)
def test_parameter_counts(name, settings, shape, classes, count):
    with torch.device("meta") if name == "lstm" else torch.device("cpu"):
        module = build(name, settings, shape, classes)
    assert Layout.of(module).numel == count


SMALL = [
    ("logistic", {}, (3, 5)),
    ("mlp", {"hidden": [6]}, (3, 5)),
    ("cnn", {"channels": [4], "groups": 2}, (8, 8)),
    ("lenet", {}, (16, 16)),
    ("lenet", {"bias": True}, (3, 16, 16)),
    ("acar_cnn", {}, (3, 16, 16)),
    ("fedbens_cnn", {}, (1, 16, 16)),
    ("zenke_cnn", {"dropout": False}, (12, 12)),
    ("hwa_cnn", {"hidden": 5}, (3, 8, 8)),
    ("leaf_cnn", {"hidden": 6}, (8, 8)),
    ("emnist_cnn", {"dropout": False}, (8, 8)),
    ("resnet", {"depth": 20}, (3, 8, 8)),
    ("resnet", {"depth": 18, "norm": "none"}, (3, 8, 8)),
    ("lstm", {"hidden": 6, "embedding": 3}, (7,)),
    ("lstm", {"hidden": 6, "embedding": 3, "projection": 4, "predict": "all"}, (7,)),
]


@pytest.mark.parametrize(("name", "settings", "shape"), SMALL)
def test_vectorised_over_clients_is_a_loop_over_clients(name, settings, shape):
    module = build(name, settings, shape, 10).double()
    refuse_batch_norm(module)
    layout = Layout.of(module)
    start = layout.flatten(dict(module.named_parameters()))
    theta = torch.stack([start, 0.9 * start])
    inputs = inputs_for(name, shape, 2, 3)
    every = settings.get("predict") == "all"
    targets = torch.randint(10, (2, 3, 7) if every else (2, 3), generator=stream("targets"))
    objective = NextToken() if every else CrossEntropy()
    grads = {}
    for vectorise in (True, False):
        grad, loss = Oracle(module, layout, objective, vectorise)(theta, inputs, targets)
        assert bool(grad.isfinite().all())
        grads[vectorise] = grad, loss
    assert torch.allclose(grads[True][0], grads[False][0], rtol=1e-8, atol=1e-10)
    assert torch.allclose(grads[True][1], grads[False][1], rtol=1e-10)
    for parameter, piece in layout.views(grads[True][0]).items():
        assert bool((piece != 0).any()), f"no gradient reaches {parameter}"


def test_images_without_a_channel_axis_are_images_with_one():
    flat, deep = build("lenet", {}, GRAY, 10).double(), build("lenet", {}, (1, *GRAY), 10).double()
    images = inputs_for("lenet", GRAY, 2)
    assert torch.equal(flat(images), deep(images.unsqueeze(1)))


def test_the_written_out_recurrence_is_torchs_lstm():
    ours = build("lstm", {"hidden": 6, "embedding": 3, "layers": 1, "predict": "all"}, (7,), 10)[:2].double()
    theirs = nn.LSTM(3, 6, batch_first=True).double()
    order = torch.tensor([0, 1, 3, 2])  # torch has input, forget, new, output
    layer = ours[1]

    def gates(rows: torch.Tensor) -> torch.Tensor:
        return rows.reshape(4, 6, -1)[order].reshape(rows.shape)

    with torch.no_grad():
        theirs.weight_ih_l0.copy_(gates(layer.inward.weight))
        theirs.weight_hh_l0.copy_(gates(layer.onward.weight))
        theirs.bias_ih_l0.copy_(gates(layer.inward.bias))
        theirs.bias_hh_l0.zero_()
    tokens = inputs_for("lstm", (7,), 5)
    assert torch.allclose(ours(tokens), theirs(ours[0](tokens))[0], rtol=1e-12)


def test_multi_label_logistic_regression():
    module = build("logistic", {}, (30,), 4).double()
    layout = Layout.of(module)
    theta = layout.flatten(dict(module.named_parameters())).unsqueeze(0)
    inputs = torch.rand(1, 20, 30, generator=stream("x"), dtype=torch.float64)
    targets = torch.randint(2, (1, 20, 4), generator=stream("y"))
    grad, loss = Oracle(module, layout, MultiLabel())(theta, inputs, targets)
    errors = torch.sigmoid(module(inputs[0])) - targets[0]  # the gradient of logistic regression
    assert torch.allclose(layout.views(grad[0])["1.weight"], errors.T @ inputs[0] / 20)
    assert float(loss) > 0


@pytest.mark.parametrize("name", ["lenet", "resnet", "cnn"])
def test_what_is_no_image_is_said(name):
    with pytest.raises(ValueError, match=r"takes images \[H, W\] or \[C, H, W\]; the data's inputs are \[46\]"):
        build(name, {}, (46,), 2)


def test_other_mistakes_are_said():
    with pytest.raises(ValueError, match="too small for this model"):
        build("lenet", {}, (8, 8), 10)
    with pytest.raises(ValueError, match="a row of tokens"):
        build("lstm", {}, GRAY, 10)
    with pytest.raises(ValueError, match=r"model.depth=19: must be 18, 20"):
        build("resnet", {"depth": 19}, COLOUR, 10)


def test_every_model_is_counted():
    assert {name for name, *_ in COUNTS} | {"cnn", "transformers"} == set(registry.names("model"))
