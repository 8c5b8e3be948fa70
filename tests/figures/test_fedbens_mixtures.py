"""The picture of accuracy against mixture components, and that its shortcut is no other method."""

import pytest

from fedddp.cli import main
from fedddp.config import loading as configuration
from fedddp.figures import fedbens_mixtures
from tests.small import MODELS, fresh, run, settings

WORDS = settings("fedbens", *MODELS["mlp"], "federation.rounds=1", "method.members=3")


def test_first_components_of_one_training_are_smaller_runs(exchange, tmp_path):
    found = fedbens_mixtures.accuracies(configuration.load(None, WORDS), exchange, 3)
    for members in (1, 3):
        summary = run([*WORDS, f"method.members={members}"], fresh(tmp_path, f"{members}"))
        assert found[members - 1] == pytest.approx(summary["accuracy"], abs=1e-12)


def test_a_picture_is_drawn(exchange, tmp_path):
    path = tmp_path / "mixtures.png"
    last = dict(word.split("=", 1) for word in [*WORDS[1:], "method.members=2", "split.alpha=0.3,1.0"])
    fedbens_mixtures.draw(path, None, [f"{key}={value}" for key, value in last.items()], exchange)
    assert path.stat().st_size > 5000


def test_figures_of_no_experiment_take_no_settings(capsys):
    with pytest.raises(SystemExit):
        main(["figure", "fedpa_toy", "seed=1"])
    assert "takes no settings" in capsys.readouterr().err
