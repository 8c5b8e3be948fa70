"""Fits that methods share are bit for bit what each would have trained."""

import pytest

from tests.small import SMALL, run, settings

ONE_SHOT = ["fedbens", "fedfisher", "fisher_merge", "regmean"]
MORE = ["federation.rounds=1", "model.name=mlp", "model.hidden=[12]"]


def play(method: str, folder, fits=None, *words: str) -> str:
    given = [] if fits is None else [f"federation.fits={fits}"]
    return run(settings(method, *MORE, *given, *words), str(folder))["checksum"]


def files(folder) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_methods_train_their_clients_once(worlds, tmp_path):
    fits = tmp_path / "fits"
    alone = {m: worlds(1).run(play, m, tmp_path / f"{m}-alone")[0] for m in ONE_SHOT}
    shared = {m: worlds(1).run(play, m, tmp_path / m, fits)[0] for m in ONE_SHOT}
    assert shared == alone
    assert worlds(2).run(play, "fedbens", tmp_path / "two", fits)[0] == alone["fedbens"]
    # fedbens goes first: three cohorts (of 3, 3 and 1 clients), two members each; the others take its first members
    assert len(files(fits)) == 6


def test_what_is_kept_is_what_is_used(worlds, tmp_path):
    fits = tmp_path / "fits"
    expected = worlds(1).run(play, "fisher_merge", tmp_path / "a", fits)[0]
    for path in fits.iterdir():
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])  # a damaged file is trained again
    assert worlds(1).run(play, "fisher_merge", tmp_path / "b", fits)[0] == expected
    for path in fits.iterdir():
        data = bytearray(path.read_bytes())
        data[-198] ^= 64  # a file with other numbers is believed: so it was not trained again
        path.write_bytes(bytes(data))
    assert worlds(1).run(play, "fisher_merge", tmp_path / "c", fits)[0] != expected


@pytest.mark.parametrize(
    "word", ["seed=5", "local.lr=0.05", "local.batch_size=4", "split.alpha=0.3", "model.activation=tanh"]
)
def test_another_fit_is_not_taken(worlds, tmp_path, word):
    fits = tmp_path / "fits"
    worlds(1).run(play, "fisher_merge", tmp_path / "a", fits)
    before = files(fits)
    expected = worlds(1).run(play, "fisher_merge", tmp_path / "b", None, word)[0]
    assert worlds(1).run(play, "fisher_merge", tmp_path / "c", fits, word)[0] == expected
    assert len(files(fits)) == 2 * len(before)


def test_later_rounds_are_not_kept(worlds, tmp_path):
    fits = tmp_path / "fits"
    rounds = worlds(1).run(play, "fedavg", tmp_path / "a", fits, "federation.rounds=3")[0]
    assert rounds == worlds(1).run(play, "fedavg", tmp_path / "b", None, "federation.rounds=3")[0]
    assert len(files(fits)) == 3


MODULE = """
import torch
from torch import nn

class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x):
        return self.layer(x.flatten(1){more})
"""


def test_a_module_that_prints_alike_but_computes_otherwise_is_another(worlds, tmp_path):
    fits = tmp_path / "fits"
    for number, more in enumerate(("", ".square()")):
        path = tmp_path / f"own{number}.py"
        path.write_text(MODULE.format(more=more))
        words = ["method=fedavg", *SMALL, "federation.rounds=1", f"model.name={path}:Own", f"federation.fits={fits}"]
        worlds(1).run(run, words, str(tmp_path / str(number)))
        assert len(files(fits)) == 3 * (number + 1)


def test_a_client_goes_from_or_comes_to_a_finished_run_and_nobody_trains_again(worlds, tmp_path):
    """FedBEns' mixtures are remade from kept fits; each client is a cohort of its own, whoever else is there."""
    fits, alone = tmp_path / "fits", "federation.cohort_width=1"
    whole = worlds(1).run(play, "fedbens", tmp_path / "whole", fits, alone)[0]
    before = files(fits)
    without = worlds(1).run(play, "fedbens", tmp_path / "without", fits, alone, "method.join=[2]")[0]
    assert files(fits) == before
    planned = [alone, "method.leave=[2]", "federation.rounds=2"]
    assert without == worlds(1).run(play, "fedbens", tmp_path / "left", None, *planned)[0]
    assert worlds(1).run(play, "fedbens", tmp_path / "back", fits, alone)[0] == whole != without
    assert files(fits) == before


def test_a_method_that_asks_for_the_solvers_rate_works_with_the_folder(worlds, tmp_path):
    """scaffold divides by the length of the path; its fits have a site, so none is kept."""
    words = ["federation.rounds=2", "local.name=sgd"]
    alone = worlds(1).run(play, "scaffold", tmp_path / "alone", None, *words)[0]
    assert worlds(1).run(play, "scaffold", tmp_path / "kept", tmp_path / "fits", *words)[0] == alone
