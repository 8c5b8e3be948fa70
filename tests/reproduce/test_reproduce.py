"""Tables by name: what they are made of, how far they have come, and the docs that are written from their results."""

import math
from dataclasses import replace
from importlib import import_module
from inspect import signature
from pathlib import Path

import numpy as np
import pytest

from fedddp.cli import main
from fedddp.config.loading import experiments
from fedddp.core import registry
from fedddp.jobs.planned import fit
from fedddp.reports.numbers import Number
from fedddp.reports.runs import Record
from fedddp.reproduce import docs, protocol, results, state
from fedddp.reproduce.protocol import Column, Protocol, Row
from fedddp.reproduce.results import Result
from fedddp.reproduce.state import Cell
from fedddp.reproduce.work import read_off

EVERY = protocol.names()
SMALL = """about: 'two methods on digits'
columns:
  after 2: {experiment: digits, at: 2, set: {federation.rounds: 2}, published: {FedAvg: 0.1, FedProx: 0.999}}
  NLL: {experiment: digits, metric: nll, set: {federation.rounds: 2}}
rows:
  FedAvg: {set: {method: fedavg}, minutes: 1}
  FedProx: {set: {method: fedprox}, minutes: 1}
seeds: [{seed: 1}, {seed: 2}]
"""


@pytest.mark.parametrize("name", EVERY)
def test_every_table_is_made_of_what_is_there(name):
    chosen = protocol.read(name)
    assert bool(chosen.columns) + bool(chosen.figure) == 1
    for column in chosen.columns.values():
        assert column.experiment in experiments()
        assert {*(column.published or {}), *column.deviation} <= {*chosen.rows}
    for row in chosen.rows.values():
        assert row.set["method"] in registry.names("method")
        assert row.minutes > 0
    if chosen.figure:
        draw = import_module(f"fedddp.figures.{chosen.figure}").draw
        signature(draw).bind(Path("picture.png"), **chosen.options)
        assert chosen.minutes > 0
    if chosen.columns:
        assert chosen.seeds
        wanted = [name for name, column in chosen.columns.items() if column.published is not None]
        known = [state.cell(chosen, row, column, {}).published for row in chosen.rows for column in wanted]
        own = chosen.name == "pfedbayes_mnist"  # others stand beside the method; their numbers are not at hand
        assert own or sum(value is not None for value in known) >= 0.7 * len(known)


@pytest.mark.parametrize("name", EVERY)
def test_every_row_and_column_takes_all_its_settings(name):
    """The first column of each row, and the first row of each column; another column differs by its own settings."""
    chosen = protocol.read(name)
    first = (next(iter(chosen.rows), ""), next(iter(chosen.columns), ""))
    edge = [(row, column) for row, column in chosen.cells() if row == first[0] or column == first[1]]
    cells = {(chosen.columns[c].experiment, *chosen.words(r, c, chosen.seeds[0])): None for r, c in edge}
    for experiment, *words in cells:
        taken, _ = fit(experiment, words)
        assert set(words) == set(taken)


def test_every_number_has_its_command_seeds_and_date():
    for table, rows in results.read().items():
        chosen = protocol.read(table)
        for row, cells in rows.items():
            for column, result in cells.items():
                assert result.command
                assert result.seeds
                assert len(result.date) == 10
                assert bool(result.values) != (result.mean is not None)
                assert len(result.values) in (0, len(result.seeds))
                if chosen.columns:
                    assert column in chosen.columns
                    assert row in chosen.rows


def test_the_docs_tables_are_those_of_the_results():
    """fedddp reproduce --docs docs/clients.md docs/results.md docs/results/*.md"""
    folder = Path(__file__).parents[2] / "docs"
    pages = {path: path.read_text() for path in folder.rglob("*.md")}
    for text in pages.values():
        assert docs.filled(text, results.read()) == text
    named = [name for text in pages.values() for _, name, _ in docs.REGION.findall(text)]
    assert len(named) == len(set(named)), "each table stands on one page"
    assert {"list", *(name for name in results.read() if protocol.read(name).columns)} <= set(named)


@pytest.mark.parametrize(
    ("mean", "std", "published", "metric", "said"),
    [
        (0.700, 0.02, 0.715, "accuracy", "met"),
        (0.700, 0.01, 0.715, "accuracy", "short by 1.5"),
        (0.700, None, 0.690, "accuracy", "above by 1.0"),
        (0.7004, None, 0.700, "accuracy", "met"),
        (0.60, 0.02, 0.50, "nll", "short by 0.10"),
        (0.40, 0.02, 0.50, "nll", "above by 0.10"),
        (0.40, 0.02, None, "nll", "nothing published"),
        (30.0, 1.0, 20.0, "seconds_local", "short by 10.0"),
        (3.6, None, 3.65, "bytes_up", "met"),
    ],
)
def test_a_cells_state(mean, std, published, metric, said):
    assert Cell(Number(mean, std, 3, 3), published, std or 0.0, metric).state == said


RISING = [0.5, 0.7, 0.6, 0.8, 0.75]


def record(values: list[float]) -> Record:
    table = np.stack([np.arange(1.0, len(values) + 1), np.array(values)], axis=1)
    return Record(Path("run"), {}, ["round", "accuracy"], table)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        (Column("digits"), (0.6 + 0.8 + 0.75) / 3),
        (Column("digits", at=3), 0.6),
        (Column("digits", best=True), 0.8),
        (Column("digits", at=3, best=True), 0.7),
        (Column("digits", window=1), 0.75),
        (Column("digits", window=2, unit=0.1), 7.75),
        (Column("digits", target=0.7), 2),
        (Column("digits", target=0.7, window=2), 4),
        (Column("digits", target=0.9), math.nan),
    ],
)
def test_a_column_is_a_mean_the_best_or_rounds_to_a_target(column, value):
    assert read_off(record(RISING), column) == pytest.approx(value, nan_ok=True)


@pytest.mark.parametrize(
    ("values", "published", "said"),
    [
        ([10.0, 12.0], 11, "met"),
        ([20.0, 20.0], 11, "short by 9.0"),
        ([5.0, 5.0], 11, "above by 6.0"),
        ([5.0, None], 11, "short: not reached"),
        ([5.0, None], None, "met"),  # where the paper has no number, some run of its own did not get there
        ([5.0, 5.0], None, "above: reached in 5.0"),
    ],
)
def test_rounds_to_a_target_need_every_run(values, published, said):
    place = Column("digits", target=0.75, published={"FedAvg": published} if published else {})
    table = Protocol("small", "", {"rounds": place}, {"FedAvg": Row({"method": "fedavg"})}, [{"seed": 1}, {"seed": 2}])
    found = {"FedAvg": {"rounds": Result("", ["seed=1", "seed=2"], "2026-11-18", values)}}
    assert state.cell(table, "FedAvg", "rounds", found).state == said
    assert ("not reached" in state.markdown(table, found)) == (None in values)
    assert state.cell(table, "FedAvg", "rounds", {}).state == "not run"


def test_a_column_of_a_figure_has_no_published_number():
    """Not even that of the experiment whose settings it changes."""
    for table, column in (("fedlap_d1", "after 20"), ("hwa_fig8", "alpha 10"), ("hwa_fig11", "noise 0.1")):
        chosen = protocol.read(table)
        assert {state.cell(chosen, row, column, {}).published for row in chosen.rows} == {None}


def test_what_is_not_run_says_so():
    chosen = protocol.read("fedbens_table2")
    assert state.summary(chosen, {}) == "of 21: 21 not run"
    assert state.left(chosen, {})["RegMean"] == 15
    assert "not run" in state.markdown(chosen, {})


def test_results_come_back_as_they_were_written(tmp_path):
    one = Result("fedddp run digits", ["seed=1"], "2026-11-18", [0.5])
    two = replace(one, values=[], mean=0.5, std=0.1, note="older")
    results.write({"a": {"b": {"c": one, "d": two}}}, tmp_path / "results.json")
    assert results.read(tmp_path / "results.json") == {"a": {"b": {"c": one, "d": two}}}


def call(words: list[str]) -> int:
    with pytest.raises(SystemExit) as end:
        main(words)
    return int(end.value.code or 0)


def test_a_table_from_its_runs_to_its_page(tmp_path, monkeypatch, capsys):
    """Runs a part, then what is missing, says before how long, keeps the numbers; then there is nothing to run."""
    (tmp_path / "small.yaml").write_text(SMALL)
    whole = protocol.folder
    monkeypatch.setattr(protocol, "folder", lambda kind: tmp_path if kind == "reproduce" else whole(kind))
    words = ["reproduce", "small", "--out", str(tmp_path / "runs"), "--results", str(tmp_path / "results.json")]
    assert call([*words, "--rows", "FedAvg", "--columns", "NLL", "--seeds", "1"]) == 0
    assert "1 runs left, about 1 minutes on one core" in capsys.readouterr().out
    assert len(results.read(tmp_path / "results.json")["small"]["FedAvg"]["NLL"].values) == 1
    assert call(words) == 0
    said = capsys.readouterr().out
    assert "3 runs left, about 3 minutes on one core" in said
    assert "of 4: 1 above, 1 short, 2 nothing published (worst: FedProx, after 2, short by" in said
    assert "fedprox" in (tmp_path / "runs" / "small.html").read_text()
    found = results.read(tmp_path / "results.json")["small"]
    assert len(found["FedAvg"]["after 2"].values) == 2
    assert found["FedAvg"]["NLL"].number.mean > 0.05
    assert call([*words, "--collect"]) == 0
    assert "0 runs left" in capsys.readouterr().out
    assert results.read(tmp_path / "results.json")["small"] == found


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rows", "FedAvgg"], "--rows FedAvgg: not in hwa_fig8; did you mean FedAvg?"),
        (["--columns", "alpha 2"], "--columns alpha 2: not in hwa_fig8; did you mean"),
        (["--seeds", "4"], "--seeds=4: must be from 1 to 3, as hwa_fig8 has"),
    ],
)
def test_a_part_that_is_not_there(words, said, capsys):
    assert call(["reproduce", "hwa_fig8", *words]) == 2
    assert said in capsys.readouterr().err


def test_an_unknown_table_names_the_closest(capsys):
    assert call(["reproduce", "fedbens_tabl1"]) == 2
    assert "fedbens_table1" in capsys.readouterr().err
