"""What a run was asked for: in its config.yaml, its folder's name and the command that repeats it; not in its hash."""

import pytest

from fedddp.config import loading as configuration
from fedddp.config.asked import LONGEST, command, name
from fedddp.jobs.planned import place, plan
from fedddp.runs.claim import default_folder, home, write_config

WORDS = ["method=feddyn", "method.alpha=0.3", "local.lr=0.05", "seed=2", "federation.timeout=9", "data.root=/tmp"]


def test_it_names_the_run_and_leaves_its_hash(tmp_path):
    config = configuration.load("digits", WORDS)
    assert config.run_name == "feddyn-alpha0.3-lr0.05-seed2"
    assert config.folder_name == f"feddyn-alpha0.3-lr0.05-seed2-{config.hash}"
    assert config.chosen == {"method.name": "feddyn", "method.alpha": 0.3, "local.lr": 0.05, "seed": 2}
    assert not [key for key in config.relevant if key.startswith("asked")]
    assert command(config.values) == f"fedddp run digits {' '.join(WORDS)}"
    same = configuration.load(None, more={"method": {"name": "feddyn", "alpha": 0.3}, "local": {"lr": 0.05}, "seed": 2})
    assert same.hash == config.hash


def test_it_survives_a_start_from_the_runs_own_file(tmp_path):
    """As a rank of a sweep or of Slurm is started."""
    config = configuration.load("digits", WORDS)
    write_config(tmp_path, config.values)
    again = configuration.load(str(tmp_path / "config.yaml"))
    assert again.values["asked"] == config.values["asked"]
    assert again.folder_name == config.folder_name
    more = configuration.load(str(tmp_path / "config.yaml"), ["local.lr=0.9"])
    assert more.chosen["local.lr"] == 0.9
    assert command(more.values).endswith("data.root=/tmp local.lr=0.9")


def test_a_run_said_in_other_words_is_the_same_run(tmp_path):
    """Its folder is found by the hash, whatever it is called."""
    plain, said = configuration.load("digits"), configuration.load("digits", ["method=fedavg", "local.lr=0.05"])
    assert plain.hash == said.hash or plain["local.lr"] != 0.05
    spoken = configuration.load("digits", ["method=fedavg", f"local.lr={plain['local.lr']}"])
    assert spoken.hash == plain.hash
    assert spoken.folder_name != plain.folder_name
    (tmp_path / spoken.folder_name).mkdir()
    assert default_folder(tmp_path, plain, resume=True).name == spoken.folder_name
    assert [run.folder.name for run in plan("digits", [[]], tmp_path)] == [spoken.folder_name]
    old = tmp_path / "old"
    (old / f"fedavg-{plain.hash}").mkdir(parents=True)  # as folders were named before
    assert default_folder(old, plain, resume=False).name == f"fedavg-{plain.hash}"


def test_a_name_is_fit_for_a_folder():
    long = {f"method.k{number}": 10**number for number in range(40)}
    assert len(name("fedavg", long, 12)) <= LONGEST
    assert name("fedavg", {"data.file": "/a b/c*.csv", "local.name": "adam", "x.y": [1, 2]}, 0) == (
        "fedavg-adam-file_a_b_c_.csv-y_1_2-seed0"
    )


@pytest.mark.parametrize(
    ("words", "folder"),
    [
        ([], "digits"),
        (["data=csv", "data.file=/my/patients.csv"], "patients"),
        (["data=sklearn", "data.table=wine"], "sklearn"),
        (["data=npz", "data.file=scans.npz"], "scans"),
    ],
)
def test_runs_without_an_experiment_go_where_their_data_is_named(words, folder):
    assert home(None, configuration.load(None, words)) == folder
    assert place(None, [words]).name == folder
    assert home("digits", configuration.load("digits", words)) == "digits"
