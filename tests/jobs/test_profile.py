"""Profiles, sizes, and the script that sbatch gets."""

import sys
from pathlib import Path

import pytest

from fedddp.jobs import profile
from fedddp.jobs.grid import points
from fedddp.jobs.planned import plan
from fedddp.jobs.profile import Profile, Size
from fedddp.jobs.slurm import Cluster

RECORDED = Path(__file__).with_name("recorded.sbatch")


def test_the_built_in_profiles():
    assert profile.names() == ["cpu", "gpu", "sandbox"]
    loaded = {name: profile.load(name) for name in profile.names()}
    assert loaded["gpu"].gpus_per_node == 1
    assert loaded["cpu"].gpus_per_node == 0
    assert loaded["sandbox"].gloo_interface == "lo"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("partitoin: gpu", "did you mean profile.partition"),
        ("time: soon", r"profile\.time=soon: must be of type int"),
        ("retries: -1", r"profile\.retries=-1"),
        ("- gpu", "must hold settings"),
        ("partition: ${oc.env:HOME}", r"profile\.partition=\$\{oc\.env:HOME\}: .* is not filled in here"),
        ("nodes: 100000000000000000000", r"profile\.nodes=100000000000000000000: must be an integer of 64 bits"),
        ("memory: -1", r"profile\.memory=-1\.0: must be above 0"),
        ("memory: .inf", r"profile\.memory=inf: must be a finite number"),
        ("setup: module load", r"profile\.setup=module load: must be of type list\[str\]"),
        ("time: [", "not a readable YAML file"),
        ("time: 1\ntime: 2", "found duplicate key time in line 2"),
    ],
)
def test_mistakes_in_a_profile(tmp_path, text, message):
    path = tmp_path / "my.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        profile.load(str(path))


def test_an_unknown_profile():
    with pytest.raises(ValueError, match="did you mean sandbox"):
        profile.load("sandbx")


@pytest.mark.parametrize(
    ("nodes", "gpus", "ranks", "expected"),
    [
        (None, None, None, (1, 1, 0)),
        (2, None, 4, (2, 4, 0)),
        (2, None, 3, (2, 3, 0)),
        (2, 4, None, (2, 8, 4)),
        (None, 2, None, (1, 2, 2)),
    ],
)
def test_sizes(nodes, gpus, ranks, expected):
    assert Size.of(Profile(), nodes, gpus, ranks) == Size(*expected)


def test_ranks_are_spread_over_the_nodes():
    assert Size(2, 3, 0).ranks_per_node == 2
    with pytest.raises(ValueError, match="every node needs a rank"):
        Size.of(Profile(), 3, None, 2)


def test_the_script_is_the_recorded_one(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))  # no Slurm to ask: no limit on arrays
    mine = Profile(
        partition="gpu",
        account="lab",
        time=90,
        memory=64,
        gpus_per_node=4,
        cpus_per_rank=8,
        setup=["module load cuda"],
        nccl_interface="ib0",
        options={"constraint": "a100", "exclusive": True},
    )
    cluster = Cluster("fedddp-digits", mine, Size.of(mine, 2, None, None), tmp_path, parallel=2)
    text = cluster.script(plan("digits", points(["seed=0..2"]), tmp_path))
    assert text.replace(str(tmp_path), "OUT").replace(sys.executable, "PYTHON") == RECORDED.read_text()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"partition": "gpu\nrm -rf /"}, r"partition='gpu\\nrm -rf /': must be one line"),
        ({"options": {"comment": "a\nb"}}, r"comment='a\\nb'"),
        ({"options": {"bad key\n": "1"}}, "is no option of sbatch"),
        ({"options": {"wrap=x": "1"}}, "is no option of sbatch"),
        ({"setup": ["module load cuda\nevil"]}, "setup="),
        ({"gloo_interface": "lo\nevil"}, "setup="),
    ],
)
def test_nothing_gets_a_line_of_its_own_into_the_script(tmp_path, changes, message):
    cluster = Cluster("fedddp-digits", Profile(**changes), Size(1, 1, 0), tmp_path)
    with pytest.raises(ValueError, match=message):
        cluster.script(plan("digits", points([]), tmp_path))


def test_values_are_quoted(tmp_path):
    profile_ = Profile(gloo_interface="lo; evil", options={"comment": "it's; evil $(x)"})
    text = Cluster("fedddp-digits", profile_, Size(1, 1, 0), tmp_path).script(plan("digits", points([]), tmp_path))
    assert "export GLOO_SOCKET_IFNAME='lo; evil'" in text
    assert "#SBATCH --comment='it'\"'\"'s; evil $(x)'" in text
