"""Every row of every published table starts, with small files of its data's true format; so do its unusual columns."""

import numpy as np
import pytest
import torch

from fedddp.config.written import parse
from fedddp.jobs.planned import fit
from fedddp.records.records import read_metrics
from fedddp.reproduce import protocol
from fedddp.runs.job import Job
from tests.config.test_experiments import small, tiny  # noqa: F401  a fixture

TABLES = [name for name in protocol.names() if protocol.read(name).columns]
KEPT = ("method", "data", "local.point", "federation.streams", "evaluation.samples", "split.name", "split.dealing")


def runs(chosen: protocol.Protocol) -> dict[tuple[str, ...], None]:
    """(experiment, words) of one cell for each row, and for each column of its own settings."""
    first, found, seen = next(iter(chosen.rows)), {}, set()
    for row, column in chosen.cells():
        place = chosen.columns[column]
        kind = (tuple(place.set), place.metric) if row == first else row
        if row == first or kind not in seen:
            found[place.experiment, *chosen.words(row, column, chosen.seeds[0])] = None
        seen.add(kind)
    return found


@pytest.mark.parametrize("name", TABLES)
def test_every_row_starts(name, tiny, tmp_path, exchange):  # noqa: F811
    for number, (experiment, *words) in enumerate(runs(protocol.read(name))):
        words = [word for word in words if word.startswith(KEPT) and not word.startswith("data.fraction")]
        little = [word for word in small(experiment) if word.split("=")[0] not in parse(words)]
        little += [f"data.root={tiny}", "data.fraction=1.0"]
        little.append("federation.rounds=1")
        little += ["method.steps=2"] if words[0] in ("method=fedbens", "method=fedfisher") else []
        little = [word for word in little if not (word.startswith("data.validation") and "data.validation=0" in words)]
        _, config = fit(experiment, [*words, *little])
        folder = tmp_path / str(number)
        assert Job(config, folder, exchange, torch.device("cpu"), quiet=True).run(resume=False) is not None
        assert all(np.isfinite(record["nll"]) for record in read_metrics(folder / "metrics.jsonl")), words
