"""What clients send and are sent is counted in the method's own number format, per client and round."""

from pathlib import Path

import pytest

from fedddp.records.records import read_metrics
from tests.small import MODELS, run, settings

NUMBER = 4  # bytes of a float32


@pytest.mark.parametrize(
    ("method", "up", "down"),
    [
        ("fedavg", 1, 1),
        ("fedadam", 1, 1),  # the server's moments stay at the server
        ("scaffold", 2, 2),
        ("mime", 2, 3),  # the gradient and the statistics come in the second phase
        ("mimelite", 2, 2),
        ("fedpa", 1, 1),
        ("fedcurv", 3, 3),
        ("fisher_merge", 2, 1),
        ("fedfisher", 2, 1),  # with a diagonal, at once, however many phases the server's descent takes
    ],
)
def test_vectors_sent_per_client_and_round(exchange, tmp_path, method, up, down):
    summary = run(settings(method, *MODELS["mlp"]), str(tmp_path))
    size = summary["parameters"] * NUMBER
    assert summary["bytes_up"] == pytest.approx(up * size, abs=8 * NUMBER)  # weights of means, and diagnostics
    assert summary["bytes_down"] == down * size
    for record in read_metrics(Path(tmp_path) / "metrics.jsonl"):
        assert record["bytes_up"] == summary["bytes_up"]
    both = summary["bytes_up"] + summary["bytes_down"]
    assert summary["bytes_clients"] == both * summary["rounds"] * summary["clients"]


def test_regmean_sends_its_parameters_and_the_second_moments_of_its_layers_inputs(exchange, tmp_path):
    summary = run(settings("regmean", "model.name=mlp", "model.hidden=[12]"), str(tmp_path))
    assert summary["bytes_up"] == (65 * 12 + 13 * 10) * NUMBER + (65**2 + 13**2) * 8  # moments are float64


def test_fedbens_sends_its_mixture_at_once(exchange, tmp_path):
    """Two modes with a diagonal and the last layer's block each; the server's four phases are our way to descend."""
    summary = run(settings("fedbens", *MODELS["mlp"], "federation.rounds=1"), str(tmp_path))
    assert summary["bytes_up"] == 2 * (2 * summary["parameters"] + (13 * 10) ** 2) * NUMBER
    assert summary["bytes_down"] == 2 * summary["parameters"] * NUMBER
