"""Clients keep the names that the data has for them, in the run's files, tables and pictures."""

import json
from pathlib import Path

import torch

from fedddp.config import loading as configuration
from fedddp.core.data import Dataset, Examples
from fedddp.core.shards import Shards
from fedddp.exchange.group import Exchange
from fedddp.runs.clients import natural
from fedddp.runs.finished import Run
from fedddp.runs.job import Job

CITIES = ("oslo", "rome", "bonn")


def table(folder: Path) -> Path:
    rows = [f"{n % 7},{n % 3},{CITIES[n % 3]},{'ab'[n % 2]}" for n in range(90)]
    (folder / "mine.csv").write_text("\n".join(["x,y,city,kind", *rows]) + "\n")
    return folder / "mine.csv"


def test_a_run_on_an_own_table_names_its_clients(exchange, tmp_path, capsys):
    data = ["data=csv", f"data.file={table(tmp_path)}", "data.target=kind", "data.client=city", "split=natural"]
    config = configuration.load("", [*data, "federation.rounds=1"])
    Job(config, tmp_path / "run", Exchange(), torch.device("cpu"), quiet=True).run(False)
    assert list(Run(tmp_path / "run").clients["client"]) == ["bonn", "oslo", "rome"]
    assert json.loads((tmp_path / "run" / "pictures.json").read_text())["split"]["clients"] == ["bonn", "oslo", "rome"]

    from fedddp.cli import _parse

    arguments = _parse(["split", *data, "--out", str(tmp_path / "split.svg")])
    assert arguments.call(arguments) == 0
    printed = capsys.readouterr().out
    assert all(city in printed for city in CITIES)
    assert "fedddp/runs" not in printed


def test_only_clients_that_are_the_datas_own_have_its_names():
    owners = torch.tensor([2, 2, 0, 0, 1])
    examples = Examples(torch.zeros(5, 1), torch.zeros(5, dtype=torch.long), owners)
    data = Dataset(examples, examples, 1, client_names=CITIES)
    whole = Shards.of([torch.tensor([0, 1]), torch.tensor([2])])
    assert natural(whole, data) == ["bonn", "oslo"]  # one was left out, one cut short
    assert natural(Shards.of([torch.tensor([0, 2])]), data) == []  # two put together
    assert natural(Shards.of([torch.tensor([0]), torch.tensor([1])]), data) == []  # one in two parts
