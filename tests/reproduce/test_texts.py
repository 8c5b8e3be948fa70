"""The tables of docs/text.md: their settings resolve, and the page has the kept runs' numbers."""

from pathlib import Path

import pytest

from fedddp.config import loading as configuration
from fedddp.reproduce import ranking, texts

PAGE = Path(__file__).parents[2] / "docs" / "text.md"


@pytest.mark.parametrize(("task", "name"), [(task, name) for task, rows in texts.ROWS.items() for name in rows])
def test_every_row_is_a_run_with_its_own_rate(task, name):
    row = texts.ROWS[task][name]
    config = configuration.load(task, texts.words(task, name, 2, 3.0))
    assert config["method.name"] == row.method
    assert config["local.lr"] == pytest.approx(3 * row.rate)
    if task == "speeches":
        trained = {"FFA-LoRA": "B", "FLoRA": "stack"}.get(name, "both")
        assert {"rank": 8, "train": trained}.items() <= ({"train": "both"} | config["model.lora"]).items()


def test_the_page_has_the_numbers_of_the_kept_runs():
    entries = ranking.read(ranking.file("texts"))
    assert texts.filled(PAGE.read_text(), entries) == PAGE.read_text()


def test_the_chosen_rate_is_the_one_that_held_out_texts_like():
    def entry(factor, validation, seed=1, **more):
        found = {"validation_accuracy": validation, "validation_nll": 1.0, "megabytes": 6.0, "accuracy": 0.5, **more}
        return ranking.Entry("letters", "FedAvg", seed, factor, found)

    entries = [entry(1.0, 0.2, accuracy=0.9), entry(3.0, 0.3), entry(3.0, 0.0, 2, accuracy=0.7)]
    (line,) = (row for row in texts._of(entries, "letters").splitlines() if row.startswith("| FedAvg"))
    assert "| 0.006 | 2 | 60.0 ± 14.1 |" in line
    assert texts._of([], "letters").count("not run") == 2
