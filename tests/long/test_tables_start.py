"""Every kind of row of the published tables starts, with small files of its data's true format."""

import numpy as np
import pytest
import torch

from fedddp.config.written import parse
from fedddp.jobs.planned import fit
from fedddp.records.records import read_metrics
from fedddp.reproduce import protocol, state
from fedddp.runs.job import Job
from tests.config.test_experiments import small, tiny  # noqa: F401  a fixture

KEPT = ("method", "data", "local", "federation.streams", "evaluation.samples", "split.name", "split.dealing")
FEW = {
    "fedbens": ["method.steps=2"],
    "fedlap_func": ["method.steps=2"],
    "fedfisher": ["method.steps=2"],
    "dense": ["method.epochs=1"],
}


def rows() -> dict[str, tuple[str, list[str]]]:
    """A name for every row on its data and model, once: {name: (experiment, words)}."""
    found, seen = {}, set()
    for name in protocol.names():
        chosen = protocol.read(name)
        for row, column in chosen.cells():
            experiment = chosen.columns[column].experiment
            words = [w for w in chosen.words(row, column, {}) if w.startswith(KEPT) and "data.fraction" not in w]
            file = state.experiment(experiment)
            kind = (file["data"]["name"], file["model"]["name"], *words)
            if kind not in seen:
                found[f"{name}-{row}-{len(seen)}"] = (experiment, words)
            seen.add(kind)
    return found


ROWS = rows()


@pytest.mark.parametrize("name", ROWS)
def test_every_row_starts(name, tiny, tmp_path, exchange):  # noqa: F811
    experiment, words = ROWS[name]
    settings = parse(words)
    little = [*small(experiment), "federation.rounds=1", f"data.root={tiny}", "data.fraction=1.0"]
    little += FEW.get(settings["method"]["name"], [])
    little += ["split.clients=5"] * ("mixtures" in settings["method"])
    if "validation" in settings.get("data", {}):
        little = [word for word in little if not word.startswith("data.validation")]
        words = [word.replace("data.validation=20", "data.validation=5") for word in words]
    _, config = fit(experiment, [*words, *little])
    assert Job(config, tmp_path, exchange, torch.device("cpu"), quiet=True).run(resume=False) is not None
    (record,) = read_metrics(tmp_path / "metrics.jsonl")
    assert np.isfinite(record["nll"])
