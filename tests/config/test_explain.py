"""`fedddp explain`: every key says what it means, in one place."""

import pytest

from fedddp.cli import main
from fedddp.config import loading as config
from fedddp.config.explain import ABOUT, every, explain, meaning_of
from fedddp.config.schema import PLAIN, flatten
from fedddp.core.registry import SECTIONS

OWN = '''
from fedddp import Method

class Mine(Method):
    """Averages with a strength."""

    strength: float = 0.5  # share of the way to the mean, in (0, 1]
    silent: int = 0

    def client_step(self, server, clients, cohort, local): ...
    def server_step(self, server, total, task): ...
'''


def test_every_key_has_a_meaning():
    silent = {f"{owner} {one.key}".strip() for owner, one in every() if len(one.meaning.split()) < 2}
    assert not silent, "write a comment behind the field that says meaning, unit and range"


def test_every_section_is_told():
    assert set(ABOUT) == {*SECTIONS, *PLAIN}


@pytest.mark.parametrize("method", ["fedavg", "bayes_admm"])
def test_every_key_of_a_configuration_is_explained(method):
    found = config.load("digits", [f"method={method}", "exchange.range.all=3.0"])
    names = {section: str(found.values[section]["name"]) for section in SECTIONS}
    assert all(meaning_of(key, names) for key, _ in flatten(found.values))
    assert meaning_of("published.accuracy", names) == ""


def test_a_name_shows_equations_settings_and_the_usual_solver():
    text = explain("method=bayes_admm")
    assert "dual_k <- dual_k + damping rho (lam_k - lam)" in text
    assert "method.rho=0.1 (float): weight of the KL divergence" in text
    assert "usual: method.rho=1.0 method.damping=0.1 method.temperature=0.1 local=ivon local.lr=0.1" in text
    assert explain("bayes_admm") == text == explain("method.name=bayes_admm")


def test_a_key_is_found_by_its_whole_name_and_by_its_last_part():
    assert (
        explain("federation.rounds") == explain("rounds") == "federation.rounds=20 (int): rounds to train, at least 0"
    )
    assert "of method=federated_admm" in explain("method.rho")
    assert "path/file.py:Class" in explain("model.name")


def test_sections_and_experiments():
    assert "checkpoint.share=0.05" in explain("checkpoint")
    assert "choose local=NAME from adam" in explain("local")
    assert "seed=0 (int)" in explain("")
    assert explain("mnist_2class100").startswith("experiment mnist_2class100\n\n  # ")


def test_what_is_not_known_is_guessed():
    with pytest.raises(ValueError, match=r"explain metod.rho: neither a key nor a name; did you mean method.rho\?"):
        explain("metod.rho")


def test_a_class_of_ones_own_is_explained(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    text = explain(f"method={tmp_path}/own.py:Mine")
    assert "Averages with a strength." in text
    assert "method.strength=0.5 (float): share of the way to the mean, in (0, 1]" in text
    assert "method.silent=0 (int): its author does not say" in text


def test_an_error_says_what_the_key_means():
    with pytest.raises(ValueError, match=r"method.rho=-1.0: must be above 0 \(method.rho: weight of the KL"):
        config.load("digits", ["method=bayes_admm", "method.rho=-1"])
    with pytest.raises(ValueError, match=r"local.lr=abc: must be of type float \(local.lr: learning rate"):
        config.load("digits", ["local.lr=abc"])


def test_commands(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["explain", "rounds"])
    assert capsys.readouterr().out == "federation.rounds=20 (int): rounds to train, at least 0\n"
    with pytest.raises(SystemExit, match="0"):
        main(["show", "digits", "--explain"])
    assert "federation.rounds: 30              # rounds to train, at least 0" in capsys.readouterr().out
