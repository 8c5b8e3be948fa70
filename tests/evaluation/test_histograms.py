"""TensorBoard gets the duals and precisions that a method has."""

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.small import fresh, run, settings

USUAL = {"5_clients/message_norm", "5_clients/train_loss"}
TEST = ("2_uncertainty/test_entropy", "2_uncertainty/test_averaged_entropy")
TAGS = {
    "fedavg": set(),
    "feddyn": {"6_duals/dual"},
    "bayes_admm": {"6_duals/dual", "6_duals/dual_precision", "2_uncertainty/precision"},
}


@pytest.mark.parametrize("method", TAGS)
def test_histograms(exchange, method, tmp_path):
    folder = fresh(tmp_path, method)
    words = settings(method, "federation.rounds=3", "evaluation.histograms=2")
    assert run(words, folder) is not None
    board = EventAccumulator(folder, size_guidance={"histograms": 0}).Reload()
    found = {tag for tag in board.Tags()["histograms"] if tag not in TEST}
    assert found == USUAL | TAGS[method]
    for tag in found:
        assert [event.step for event in board.Histograms(tag)] == [1, 2, 3]  # the first, every second, the last
    if method == "bayes_admm":
        assert board.Histograms("2_uncertainty/precision")[-1].histogram_value.min > 0
