"""What is known of the method: `python -m pytest`."""

from pathlib import Path
from typing import Any

import pytest
from method import Nudged

import fedddp

EXPERIMENT = str(Path(__file__).with_name("experiment.yaml"))


def train(folder: Path, method: Any, rounds: int = 3, ranks: int = 1) -> fedddp.Run:
    return fedddp.run(EXPERIMENT, method=method, rounds=rounds, ranks=ranks, folder=folder, quiet=True)


def test_without_the_nudge_it_is_federated_averaging(tmp_path: Path) -> None:
    same = {"name": "sgd", "lr": 0.1, "epochs": 2, "batch_size": 16}
    mine = train(tmp_path / "mine", Nudged(part=0.0))
    theirs = fedddp.run(EXPERIMENT, method="fedavg", local=same, rounds=3, folder=tmp_path / "theirs", quiet=True)
    assert mine.summary["accuracy"] == pytest.approx(theirs.summary["accuracy"], abs=0.01)


def test_the_same_bits_on_two_ranks(tmp_path: Path) -> None:
    one, two = (train(tmp_path / str(ranks), Nudged(), ranks=ranks) for ranks in (1, 2))
    assert one.summary["checksum"] == two.summary["checksum"]


def test_it_learns(tmp_path: Path) -> None:
    assert train(tmp_path / "run", Nudged(), rounds=15).summary["accuracy"] > 0.85


def test_a_part_of_one_is_refused() -> None:
    with pytest.raises(ValueError, match=r"method\.part=1\.0"):
        Nudged(part=1.0)
