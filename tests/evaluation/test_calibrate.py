"""Sets that hold the true class as often as promised, temperatures, and what is told of a final model's answers."""

import json
from math import ceil

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

import fedddp
from fedddp.cli import main
from fedddp.config import loading as configuration
from fedddp.core.files import read_record
from fedddp.data.digits import Source
from fedddp.evaluation.calibrate import FILE, Answers, auroc, calibrating
from fedddp.evaluation.conformal import BINS, histogram, scores, sets, temper, threshold
from fedddp.evaluation.evaluators import make_calibration, make_evaluator
from fedddp.evaluation.parts import Parts
from tests.small import MODELS, fresh, run, settings

ON = ["evaluation.calibration=0.5", "evaluation.samples=4", "federation.rounds=2"]


def words(method: str, *more: str) -> list[str]:
    return settings(method, *MODELS["mlp"], *ON, *more)


def test_the_threshold_is_the_sorted_scores_up_to_the_grid():
    generator = torch.Generator().manual_seed(0)
    for clients, count, coverage in ((1, 9, 0.9), (3, 200, 0.5), (10, 400, 0.95), (4, 30, 0.9)):
        values = torch.rand(count, generator=generator, dtype=torch.float64)
        rank = ceil(round((count + clients) * coverage, 9))
        q = threshold(histogram(values), clients, coverage)
        exact = float(values.sort().values[rank - 1]) if rank <= count else 1.0
        assert exact <= q <= exact + 1 / BINS
    assert threshold(torch.zeros(BINS, dtype=torch.long), 0, 0.9) == 1.0
    with pytest.raises(ValueError, match=r"coverage=1: must be in \(0, 1\)"):
        threshold(histogram(torch.rand(9)), 1, 1)


@pytest.mark.parametrize("coverage", [0.8, 0.9])
def test_coverage_is_what_was_promised_of_partially_exchangeable_clients(coverage):
    """Clients whose scores differ; a new one of client k comes with probability (n_k + 1)/(N + K)."""
    generator = np.random.default_rng(0)
    sizes, tries = np.array([5, 40, 15]), 4000
    held = 0
    for _ in range(tries):
        parts = [generator.beta(1 + k, 2, n) for k, n in enumerate(sizes)]
        q = threshold(histogram(torch.from_numpy(np.concatenate(parts))), 3, coverage)
        client = generator.choice(3, p=(sizes + 1) / (sizes.sum() + 3))
        held += generator.beta(1 + client, 2) <= q
    deviation = (coverage * (1 - coverage) / tries) ** 0.5
    assert coverage - 4 * deviation < held / tries < coverage + 3 / (sizes.sum() + 3) + 4 * deviation


def test_a_temperature_is_the_minimum_of_the_summed_nll(exchange, tmp_path):
    run(words("fedavg"), str(tmp_path / "run"))
    learned = read_record(tmp_path / "run" / FILE)["kinds"]["point"]
    config = configuration.load(None, words("fedavg"))
    from fedddp.runs.build import make_federation, make_task

    federation = make_federation(config, make_task(config, torch.device("cpu")), exchange)
    parts = Parts.of(federation.task, config.seed_of("split"))
    chosen = calibrating(parts, 0.5, config.seed_of("split"))
    test = federation.task.data.test
    found = fedddp.load(tmp_path / "run").predict(test.inputs[chosen])["probabilities"]

    def nll(temperature: float) -> float:
        return float(torch.nn.functional.nll_loss(temper(found, temperature).log(), test.targets[chosen]))

    best = learned["temperature"]
    assert nll(best) <= min(nll(best * 0.995), nll(best * 1.005), nll(1.0))


def test_a_share_of_every_training_clients_part_calibrates():
    parts = Parts(torch.tensor([0] * 10 + [1] * 6 + [-1] * 3 + [2] * 8)[torch.randperm(27)], 3, unseen=1)
    chosen = calibrating(parts, 0.5, 1)
    assert torch.bincount(parts.owner[chosen], minlength=3).tolist() == [5, 3, 0]
    assert torch.equal(chosen, calibrating(parts, 0.5, 1))
    assert not torch.equal(chosen, calibrating(parts, 0.5, 2))


def test_histograms_tell_the_auroc():
    generator = torch.Generator().manual_seed(0)
    inside, outside = torch.rand(300, generator=generator), torch.rand(200, generator=generator).sqrt()
    truth = roc_auc_score([0] * 300 + [1] * 200, torch.cat([inside, outside]).numpy())
    assert auroc(histogram(inside).double(), histogram(outside).double()) == pytest.approx(truth, abs=1e-4)


def test_uncertainty_is_made_of_its_parts():
    each = torch.tensor([[[0.9, 0.1], [0.5, 0.5]], [[0.1, 0.9], [0.5, 0.5]]], dtype=torch.float64)
    single = -(each * each.log()).sum(-1).mean(0)
    answers = Answers(torch.arange(2), each.mean(0), single, torch.tensor([0, 1]))
    total, aleatoric, epistemic = answers.uncertainty.T
    torch.testing.assert_close(total, aleatoric + epistemic)
    assert float(epistemic[1]) == pytest.approx(0, abs=1e-15)
    assert float(total[0]) == pytest.approx(np.log(2))


@pytest.mark.parametrize("method", ["bayes_admm", "fedavg"])
def test_the_same_bits_on_any_number_of_ranks_and_after_a_stop(worlds, tmp_path, method):
    config = configuration.load(None, words(method, "checkpoint.every=1", "evaluation.ood=digits", "split.unseen=1"))
    worlds(1).run(run, config, fresh(tmp_path, "1"))
    assert worlds(3).run(run, config, fresh(tmp_path, "3"), False, 2) == [None] * 3
    worlds(2).run(run, config, str(tmp_path / "3"), True)
    assert (tmp_path / "1" / FILE).read_text() == (tmp_path / "3" / FILE).read_text()
    kinds = read_record(tmp_path / "1" / FILE)["kinds"]
    assert set(kinds) == ({"point", "averaged"} if method == "bayes_admm" else {"point"})
    for kind in kinds.values():
        assert 0.3 < kind["ood_auroc"]["entropy"] < 0.7, "the same data are no strangers"
        assert kind["selective"]["answered"][0] == 1.0
        assert kind["selective"]["accuracy"][0] == pytest.approx(kind["plain"]["accuracy"])
        assert kind["entropy"] == pytest.approx(kind["aleatoric"] + kind["epistemic"])
        assert kind["tempered"]["accuracy"] == kind["plain"]["accuracy"]


def test_predict_gives_the_sets_that_were_judged(exchange, tmp_path, capsys):
    folder = tmp_path / "run"
    run(words("bayes_admm", "split.name=iid"), str(folder))
    learned = read_record(folder / FILE)["kinds"]["averaged"]["coverage"]["0.9"]
    test = Source(test_fraction=0.85).load().test
    np.savez(tmp_path / "in.npz", inputs=test.inputs.numpy())
    command = ["predict", str(folder), str(tmp_path / "in.npz"), "--out", str(tmp_path / "p.npz"), "--coverage", "0.9"]
    with pytest.raises(SystemExit) as end:
        main([*command, "--samples", "4"])
    assert end.value.code == 0
    found = np.load(tmp_path / "p.npz")
    held = found["sets"][np.arange(len(test)), test.targets.numpy()].mean()
    assert held == pytest.approx(learned["reached"], abs=0.02)
    assert held > 0.9 - 3 * (0.09 / len(test)) ** 0.5
    assert np.array_equal(found["sets"], 1 - found["probabilities"] <= learned["threshold"])
    np.testing.assert_allclose(found["tempered"].sum(1), 1)
    with pytest.raises(SystemExit):
        main([*command, "--samples", "7"])
    assert "samples=7: the run was calibrated with 4 samples" in capsys.readouterr().err
    assert fedddp.load(folder).calibration["share"] == 0.5


def test_what_cannot_be_calibrated_is_refused(exchange, tmp_path):
    from fedddp.runs.build import make_federation, make_task

    config = configuration.load(None, words("local"))
    federation = make_federation(config, make_task(config, torch.device("cpu")), exchange)
    with pytest.raises(ValueError, match=r"evaluation\.calibration=0\.5: not for method=local"):
        make_calibration(config, make_evaluator(config, federation))
    run(settings("fedavg", *MODELS["mlp"]), str(tmp_path / "run"))
    with pytest.raises(ValueError, match=r"no calibration\.json there"):
        fedddp.load(tmp_path / "run").predict(torch.zeros(1, 8, 8), coverage=0.9)
    assert json.dumps(read_record(tmp_path / "run" / "summary.json"))


def test_scores_and_sets():
    probabilities = torch.tensor([[0.7, 0.2, 0.1], [0.4, 0.35, 0.25]], dtype=torch.float64)
    assert scores(probabilities, torch.tensor([0, 2])).tolist() == pytest.approx([0.3, 0.75])
    assert sets(probabilities, 0.65).tolist() == [[True, False, False], [True, True, False]]
