"""Grids and points become runs, one for each configuration."""

import pytest

from fedddp.jobs.grid import points, values
from fedddp.jobs.planned import plan


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.1,0.5", ["0.1", "0.5"]),
        ("0..2", ["0", "1", "2"]),
        ("-1..1,7", ["-1", "0", "1", "7"]),
        ("[64],[64,32]", ["[64]", "[64,32]"]),
        ("{a: 1, b: 2}", ["{a: 1, b: 2}"]),
        ("'a,b',c", ["'a,b'", "c"]),
        ("1e-3", ["1e-3"]),
        ("", [""]),
    ],
)
def test_values(text, expected):
    assert values(text) == expected


def test_a_grid_is_every_combination_in_order():
    assert points(["seed=0..1", "local.lr=0.1,0.5"]) == [
        ["seed=0", "local.lr=0.1"],
        ["seed=0", "local.lr=0.5"],
        ["seed=1", "local.lr=0.1"],
        ["seed=1", "local.lr=0.5"],
    ]
    assert points([]) == [[]]


def test_points_of_a_file_are_multiplied_by_the_grid(tmp_path):
    path = tmp_path / "points.yaml"
    path.write_text("- {method: fedprox, method.delta: 0.1}\n- {method: fedavg, model: {hidden: [8, 4]}}\n")
    assert points(["seed=0,1"], path) == [
        ["method=fedprox", "method.delta=0.1", "seed=0"],
        ["method=fedprox", "method.delta=0.1", "seed=1"],
        ["method=fedavg", "model.hidden=[8, 4]", "seed=0"],
        ["method=fedavg", "model.hidden=[8, 4]", "seed=1"],
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["seed=3..1"], "1..3"),
        (["seed=0", "seed=1"], "seed=A,B"),
        (["seed=0..1000000000"], r"0\.\.1000000000: a grid of 1,000,000,001 points, more than 100,000; ask for fewer"),
        (["seed=0..999", "split.seed=0..999"], "a grid of 1,000,000 points, more than 100,000"),
    ],
)
def test_mistakes_in_a_grid(words, message):
    with pytest.raises(ValueError, match=message):
        points(words)


def test_a_file_that_is_no_list(tmp_path):
    (tmp_path / "points.yaml").write_text("method: fedavg\n")
    with pytest.raises(ValueError, match="YAML list of points"):
        points([], tmp_path / "points.yaml")
    with pytest.raises(ValueError, match="cannot be read"):
        points([], tmp_path / "none.yaml")
    (tmp_path / "points.yaml").write_text("- {seed: [")
    with pytest.raises(ValueError, match=r"points.yaml: not a readable YAML file"):
        points([], tmp_path / "points.yaml")


def test_a_file_of_points_is_multiplied_only_so_far(tmp_path):
    (tmp_path / "points.yaml").write_text("- {seed: 1}\n" * 200)
    with pytest.raises(ValueError, match="a grid of 200,000 points"):
        points(["split.seed=0..999"], tmp_path / "points.yaml")


def test_a_mistake_in_every_point_is_said_once(tmp_path):
    with pytest.raises(ValueError, match=r"local\.lr=nan: must be a finite number"):
        plan("digits", points(["local.lr=nan", "seed=0..1"]), tmp_path)
    with pytest.raises(ValueError, match=r"lr: unknown key; did you mean local\.lr\?"):
        plan("digits", points(["lr=0.1,0.2"]), tmp_path)


def test_a_key_of_one_method_is_left_out_for_the_others(tmp_path):
    runs = plan("digits", points(["method=fedavg,fedprox", "method.delta=0.1,0.5", "seed=0..1"]), tmp_path)
    assert [run.words for run in runs if run.config["method.name"] == "fedavg"] == [
        ("method=fedavg", "seed=0"),
        ("method=fedavg", "seed=1"),
    ]
    assert len(runs) == 2 + 4
    assert len({run.folder for run in runs}) == len(runs)
    assert {run.folder.name.removesuffix(f"-{run.config.hash}") for run in runs} == {
        *(f"fedavg-seed{seed}" for seed in (0, 1)),
        *(f"fedprox-delta{delta}-seed{seed}" for delta in (0.1, 0.5) for seed in (0, 1)),
    }


def test_a_key_that_no_point_has_is_a_mistake(tmp_path):
    with pytest.raises(ValueError, match=r"method\.delt: unknown key; did you mean method\.delta"):
        plan("digits", points(["method=fedavg,fedprox", "method.delt=0.1"]), tmp_path)
    with pytest.raises(ValueError, match=r"federation\.rounds"):
        plan("digits", points(["method=fedavg,fedprox", "federation.rounds=-1"]), tmp_path)


def test_points_that_cannot_differ_are_one_run(tmp_path):
    assert len(plan("digits", points(["federation.timeout=60,600"]), tmp_path)) == 1


def test_the_configuration_is_frozen_when_the_run_is_prepared(tmp_path):
    experiment = tmp_path / "mine.yaml"
    experiment.write_text("federation: {rounds: 3}\n")
    (run,) = plan(str(experiment), [[]], tmp_path / "out")
    run.prepare()
    experiment.write_text("federation: {rounds: 4}\n")
    (again,) = plan(str(run.folder / "config.yaml"), [[]], tmp_path / "out")
    assert again.config.hash == run.config.hash
    assert again.config.federation.rounds == 3
