"""`fedddp init`: everything in the folder runs."""

import pytest

import fedddp
from fedddp.cli import main

FILES = {"README.md", "experiment.yaml", "method.py", "model.py", "test_method.py"}


def init(folder) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["init", str(folder)])
    return int(ended.value.code or 0)


def test_the_folder_has_what_its_page_says(tmp_path):
    assert init(tmp_path / "mine") == 0
    assert {path.name for path in (tmp_path / "mine").iterdir()} == FILES
    assert (tmp_path / "mine" / "README.md").read_text().startswith("# mine\n")


def test_its_experiment_and_its_method_run(tmp_path, monkeypatch):
    """Its own tests take longer, and run in tests/long with the page that speaks of them."""
    init(tmp_path / "mine")
    monkeypatch.chdir(tmp_path / "mine")
    run = fedddp.run("experiment.yaml", rounds=3, quiet=True)
    assert run.summary["method"] == "Nudged"
    assert run.summary["accuracy"] > 0.5


def test_what_is_there_is_not_touched(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("mine")
    assert init(tmp_path) == 2
    assert "is there already" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
