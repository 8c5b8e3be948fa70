"""A small sweep of real runs, made once: two methods, two learning rates for one of them, three seeds."""

import json
from pathlib import Path

import pytest
import torch
import yaml

from fedddp.config import loading as configuration
from fedddp.exchange.group import Exchange
from fedddp.runs.job import Job

ROUNDS = 5
PUBLISHED = {"fedavg": {"accuracy": {"3": 0.5, "5": 0.75}, "nll": {"5": 1.25}}}
EXPERIMENT = {
    "data": {"name": "digits", "test_fraction": 0.6, "validation": 100},
    "split": {"name": "dirichlet", "clients": 4, "alpha": 1.0, "minimum": 4},
    "model": {"name": "mlp", "hidden": [12]},
    "local": {"epochs": 2, "batch_size": 16},
    "federation": {"rounds": ROUNDS},
    "published": PUBLISHED,
}
POINTS = [
    *(["method=fedavg", f"local.lr={lr}", f"seed={seed}"] for lr in (0.02, 0.2) for seed in (0, 1, 2)),
    *(["method=fedprox", "local.lr=0.1", f"seed={seed}"] for seed in (0, 1, 2)),
]


def make_run(folder: Path, experiment: Path, words: list[str]) -> None:
    torch.set_num_threads(1)
    Job(configuration.load(str(experiment), words), folder, Exchange(), torch.device("cpu"), quiet=True).run(False)


@pytest.fixture(scope="session")
def sweep(exchange, tmp_path_factory) -> Path:
    """Record folders by number, in the order of POINTS. To be read, not changed."""
    folder = tmp_path_factory.mktemp("sweep")
    experiment = folder / "experiment.yaml"
    experiment.write_text(yaml.safe_dump(EXPERIMENT))
    for number, words in enumerate(POINTS):
        draw = "evaluation.histograms=0" if number else "evaluation.histograms=10"
        make_run(folder / "runs" / f"{number}", experiment, [*words, draw])
    return folder / "runs"


def records(folder: Path) -> list[dict]:
    """A run's rounds, read as anyone would read them."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def write_run(folder: Path, settings: dict, metrics: dict[str, list[float]], published: dict | None = None) -> Path:
    """A finished run's files, written by hand: `metrics` has a number for every round."""
    folder.mkdir(parents=True)
    config = {"seed": 0, "method": {"name": "fedavg"}, "federation": {"rounds": 3}, **settings}
    (folder / "config.yaml").write_text(yaml.safe_dump(config | ({"published": published} if published else {})))
    rows = [dict(zip(metrics, values, strict=True)) for values in zip(*metrics.values(), strict=True)]
    lines = [json.dumps({"round": number, **row}) for number, row in enumerate(rows, 1)]
    (folder / "metrics.jsonl").write_text("".join(line + "\n" for line in lines))
    (folder / "summary.json").write_text(json.dumps({"method": config["method"]["name"]}))
    return folder
