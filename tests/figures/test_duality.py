"""The pictures of Bayesian duality, in small, and what they must show."""

from fedddp.figures import duality_logistic, duality_outlier, duality_ridge


def test_bayes_admm_solves_ridge_regression_in_one_round_and_the_others_do_not():
    found = duality_ridge.curves(duality_ridge.problem("digits", count=40, side=3), rounds=3)
    assert found["BayesADMM"][1] < 1e-10
    assert min(found["ADMM"][1:]) > 0.01
    assert min(found["BregmanADMM"][1:]) > 0.01


def test_with_an_outlier_bayes_admm_settles_sooner():
    """How far the server's boundary still moves after the second round."""
    task = duality_outlier.problem()
    moves = {}
    for name, (_, means) in duality_outlier.paths(task, rounds=5).items():
        angle = (means[:, 0, 1] / means[:, 0, 0]).atan()
        moves[name] = float((angle[4] - angle[1]).abs())
    assert moves["BayesADMM"] < 0.25 * moves["ADMM"]


def test_the_outlier_is_drawn(tmp_path):
    path = tmp_path / "outlier.png"
    duality_outlier.draw(path, rounds=2)
    assert path.stat().st_size > 5000


def test_on_logistic_regression_bayes_admm_is_faster_than_damped_pvi_and_bregman_admm(tmp_path):
    path = tmp_path / "logistic.png"
    duality_logistic.draw(path, source="digits", count=8, side=2, rounds=1)
    assert path.stat().st_size > 5000
    found = duality_logistic.curves(duality_logistic.problem("digits", 12, 2), rounds=3)
    best = found["all data"][0]
    above = {name: values[3] - best for name, values in found.items() if name != "all data"}
    assert all(value > -1 for value in above.values())
    assert above["BayesADMM"] < 0.5 * min(above["PVI, damped"], above["BregmanADMM"])
