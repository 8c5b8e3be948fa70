"""Sums that hide their parts have the bits of plain ones, on any number of ranks, and after a stop."""

import sys
from pathlib import Path

import pytest

from fedddp.config import loading as configuration
from fedddp.exchange import masks
from fedddp.exchange.group import Exchange
from fedddp.records.records import read_metrics
from tests.small import METHODS, MODELS, fresh, run, settings

pytestmark = pytest.mark.skipif(bool(masks.available()), reason=f"exchange.secure {masks.available()}")
GATHER = {"fedbens", "fedlap_func", "fedlap_func_cov", "fednl", "ot_fusion", "dense"}
SUMS = [method for method in METHODS if method not in GATHER]
RANGE = ["exchange.range.all=1000000", "evaluation.every=1"]


def load(method, *more):
    return configuration.load(None, settings(method, *MODELS["mlp"], *RANGE, *more))


@pytest.mark.parametrize("method", SUMS)
def test_the_bits_of_the_plain_sum_on_any_number_of_ranks(worlds, tmp_path, method):
    plain = worlds(1).run(run, load(method), fresh(tmp_path, "plain"))[0]["checksum"]
    secure = load(method, "exchange.secure=rank")
    all_of_them = method in ("fedavg", "bayes_admm")  # the others on one rank, and in turn on two, three or four
    for ranks in (1, 2, 3, 4) if all_of_them else (1, 2 + SUMS.index(method) % 3):
        assert worlds(ranks).run(run, secure, fresh(tmp_path, f"{ranks}"))[0]["checksum"] == plain
    (record, *_) = read_metrics(Path(tmp_path) / str(ranks) / "metrics.jsonl")
    assert record["clipped"] == 0
    assert "seconds_idle" not in record


@pytest.mark.parametrize("method", ["fedavg", "bayes_admm", "scaffold"])
def test_clients_behind_masks_of_their_own(worlds, tmp_path, method):
    config = load(method, "exchange.secure=client", "federation.participation=0.6")
    sums = {ranks: worlds(ranks).run(run, config, fresh(tmp_path, f"{ranks}"))[0]["checksum"] for ranks in (1, 2, 4)}
    assert len(set(sums.values())) == 1, sums


def test_a_stopped_run_goes_on_behind_new_masks(worlds, tmp_path):
    config = load("bayes_admm", "exchange.secure=rank", "checkpoint.every=1")
    whole = worlds(1).run(run, config, fresh(tmp_path, "whole"))[0]["checksum"]
    folder = fresh(tmp_path, "parts")
    assert worlds(3).run(run, config, folder, False, 2) == [None] * 3
    assert worlds(2).run(run, config, folder, True)[0]["checksum"] == whole


def test_the_training_loss_is_that_of_the_plain_run(exchange, tmp_path):
    for name, more in {"plain": [], "secure": ["exchange.secure=rank"]}.items():
        run(load("fedavg", *more), fresh(tmp_path, name))
    plain, secure = (read_metrics(tmp_path / name / "metrics.jsonl") for name in ("plain", "secure"))
    assert [r["train_loss"] for r in secure] == pytest.approx([r["train_loss"] for r in plain], rel=1e-6)


@pytest.mark.parametrize("method", sorted(GATHER))
def test_a_method_that_gathers_rows_says_so(exchange, tmp_path, method):
    with pytest.raises(RuntimeError, match=r"gathers \w+ .* exchange.gathered="):
        run(load(method, "exchange.secure=rank"), fresh(tmp_path, method))


def overheard(config, folder):
    """What this rank says of itself in each exchange, beside sums and new keys."""
    said, agree = [], Exchange.agree

    def listening(self, numbers):
        if sys._getframe(1).f_code.co_name == "_agree":
            said.append(list(numbers))
        return agree(self, numbers)

    Exchange.agree = listening
    try:
        run(config, folder)
    finally:
        Exchange.agree = agree
    return said


def test_what_ranks_agree_on_depends_on_nobodys_numbers(worlds, tmp_path):
    """Other steps, other numbers, the same words; without `secure` the scales tell how large they are."""
    for secure, same in (("rank", True), ("client", True), ("none", False)):
        more = [] if secure == "none" else [*RANGE, f"exchange.secure={secure}"]
        heard = [
            worlds(2).run(
                overheard,
                configuration.load(None, settings("fedavg", *MODELS["mlp"], f"local.lr={lr}", *more)),
                fresh(tmp_path, f"{secure}{lr}"),
            )
            for lr in (0.01, 0.5)
        ]
        assert all(len(said) == 3 for said in heard[0])
        assert (heard[0] == heard[1]) == same


def test_numbers_beyond_the_range_are_clipped_and_counted(exchange, tmp_path):
    words = settings("fedavg", *MODELS["mlp"], "exchange.range.all=0.01", "exchange.secure=rank")
    run(words, fresh(tmp_path, "small"))
    assert all(record["clipped"] > 0 for record in read_metrics(tmp_path / "small" / "metrics.jsonl"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["exchange.secure=rank"], "needs public grids"),
        (["exchange.secure=ranks", "exchange.range.all=1"], "exchange.secure=ranks: must be none or rank or client"),
        (["exchange.range.theta=-1"], "exchange.range.theta=-1.0: must be above 0"),
    ],
)
def test_bad_settings_name_the_remedy(words, said):
    with pytest.raises(ValueError, match=said):
        configuration.load(None, words)
