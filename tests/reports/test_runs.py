"""Runs are found, read once, and read again only when their files have changed."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from fedddp.reports.index import INDEX
from fedddp.reports.runs import read
from tests.reports.conftest import POINTS, ROUNDS, records, write_run


def values(folders, name="accuracy"):
    return {run.folder.name: run.column(name).tolist() for run in read(folders)}


def test_a_run_is_what_its_files_say(sweep):
    runs = {run.folder.name: run for run in read([sweep])}
    assert len(runs) == len(POINTS)
    for name, run in runs.items():
        told = records(sweep / name)
        assert run.column("round").tolist() == list(range(1, ROUNDS + 1))
        for metric in ("accuracy", "nll", "seconds", "bytes"):
            assert run.column(metric).tolist() == [r[metric] for r in told]
        assert run.summary == json.loads((sweep / name / "summary.json").read_text())
        assert run.config["data.validation"] == 100
        assert not any(key.startswith(("published", "checkpoint.")) for key in run.config)


def test_folders_that_overlap_give_each_run_once(sweep):
    assert len(read([sweep, sweep / "0", sweep.parent])) == len(POINTS)


def test_what_has_not_changed_is_not_read_again(tmp_path):
    path = write_run(tmp_path / "a", {}, {"accuracy": [0.1, 0.2, 0.3]}) / "metrics.jsonl"
    assert values([tmp_path]) == {"a": [0.1, 0.2, 0.3]}
    stat = path.stat()
    path.write_text(path.read_text().replace("0.3", "0.9"))  # the same size, and the same time below
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert values([tmp_path]) == {"a": [0.1, 0.2, 0.3]}
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert values([tmp_path]) == {"a": [0.1, 0.2, 0.9]}


def test_what_has_changed_is_read_again(tmp_path):
    write_run(tmp_path / "a", {}, {"accuracy": [0.1]})
    write_run(tmp_path / "b", {}, {"accuracy": [0.2]})
    assert values([tmp_path]) == {"a": [0.1], "b": [0.2]}
    with open(tmp_path / "a" / "metrics.jsonl", "a") as file:
        file.write('{"round": 2, "accuracy": 0.5}\n{"round": 3, "accu')  # cut short by a kill
    shutil.rmtree(tmp_path / "b")
    write_run(tmp_path / "c" / "deep", {}, {"accuracy": [0.3]})
    assert values([tmp_path]) == {"a": [0.1, 0.5], "deep": [0.3]}


@pytest.mark.parametrize("broken", [b"", b"not an index", bytes(1000)])
def test_a_broken_index_is_made_anew(tmp_path, broken):
    write_run(tmp_path / "a", {}, {"accuracy": [0.1]})
    read([tmp_path])
    (tmp_path / INDEX).write_bytes(broken)
    assert values([tmp_path]) == {"a": [0.1]}
    assert (tmp_path / INDEX).read_bytes() != broken


def test_rounds_without_a_number_are_nan(tmp_path):
    folder = write_run(tmp_path / "a", {}, {"accuracy": [0.1, None, 0.3], "train_loss": [None] * 3})
    run = read([folder])[0]
    assert run.series("accuracy")[0].tolist() == [1, 3]
    assert np.isnan(run.column("train_loss")).all()
    assert np.isnan(run.column("never recorded")).all()


def test_no_run_and_no_folder_are_clear_errors(tmp_path):
    with pytest.raises(ValueError, match="no run below"):
        read([tmp_path])
    with pytest.raises(ValueError, match="nowhere: no such folder"):
        read([tmp_path / "nowhere"])


def test_a_known_folder_is_reported_without_torch_and_pandas(sweep):
    read([sweep])
    code = f"import sys; from fedddp import reports; reports.make([{str(sweep)!r}]); print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "pandas"} & set(result.stdout.split())
