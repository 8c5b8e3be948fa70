"""TensorBoard gets the duals and precisions that a method has."""

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.small import fresh, run, settings

USUAL = {"clients/message_norm", "clients/train_loss"}
TAGS = {
    "fedavg": set(),
    "feddyn": {"clients/dual"},
    "bayes_admm": {"clients/dual", "clients/dual_precision", "server/precision"},
}


@pytest.mark.parametrize("method", TAGS)
def test_histograms(exchange, method, tmp_path):
    folder = fresh(tmp_path, method)
    words = settings(method, "federation.rounds=3", "evaluation.histograms=2")
    assert run(words, folder) is not None
    board = EventAccumulator(folder, size_guidance={"histograms": 0}).Reload()
    found = {tag for tag in board.Tags()["histograms"] if not tag.startswith("test/")}
    assert found == USUAL | TAGS[method]
    for tag in found:
        assert [event.step for event in board.Histograms(tag)] == [1, 2, 3]  # the first, every second, the last
    if method == "bayes_admm":
        assert board.Histograms("server/precision")[-1].histogram_value.min > 0
