"""`fedddp report` as it is typed."""

import csv
import io

import pytest

from fedddp.cli import main


def say(capsys, *words) -> str:
    with pytest.raises(SystemExit) as stop:
        main(["report", *map(str, words)])
    assert stop.value.code in (0, None)
    return capsys.readouterr().out


def test_a_table_by_default(sweep, capsys):
    head, *rows = say(capsys, sweep).splitlines()
    assert head.split()[:3] == ["method", "local.lr", "seeds"]
    assert {"accuracy", "nll", "ece"} <= set(head.split())
    assert [row.split()[0] for row in rows].count("fedavg") == 2


def test_options(sweep, capsys):
    words = ["--by", "local.lr,method", "--at", "3,5", "--metric", "nll", "--best-over", "local.lr", "--format", "csv"]
    rows = list(csv.DictReader(io.StringIO(say(capsys, sweep, *words))))
    assert list(rows[0])[:5] == ["local.lr", "method", "seeds", "nll@3", "nll@3_std"]
    assert len(rows) == 2


@pytest.mark.parametrize(("name", "start"), [("a.md", "| method"), ("a.csv", "method,"), ("a.txt", "method ")])
def test_a_file_is_written_in_the_format_of_its_name(sweep, tmp_path, capsys, name, start):
    out = tmp_path / "new" / name
    assert say(capsys, sweep, "--out", out).strip() == str(out)
    assert out.read_text().startswith(start)


def test_a_page_lies_beside_the_runs_unless_told_otherwise(sweep, capsys):
    said = say(capsys, sweep, "--format", "html").strip()
    assert said == str(sweep / "report.html")
    assert (sweep / "report.html").read_text().startswith("<!doctype html>")
    (sweep / "report.html").unlink()


@pytest.mark.parametrize("at", ["0", "ten", "5,-1"])
def test_a_round_that_is_none(sweep, at, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["report", str(sweep), f"--at={at}"])
    assert stop.value.code == 2
    assert "--at" in capsys.readouterr().err
