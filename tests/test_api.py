"""What `import fedddp` promises: the examples of the documentation, in a script, on ranks and in a notebook."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import fedddp
from tests import small_transformer

TREE = Path(__file__).parent.parent
SMALL = {"data.test_fraction": 0.85, "evaluation.histograms": 0, "local.epochs": 1}


class Halved(fedddp.Method):
    """Federated averaging that goes half of the way."""

    strength: float = 0.5

    def client_step(self, server, clients, cohort, local):
        fit = local.minimise(cohort, server.theta, clients.solver)
        return fedddp.Clients(fit.memory), {"theta": fedddp.Mean(fit.theta, weight=cohort.num_examples)}

    def server_step(self, server, total, task):
        return fedddp.Server(torch.lerp(server.theta, total["theta"], self.strength))


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def problem():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(300, 5, generator=generator)
    targets = (inputs @ torch.randn(5, 3, generator=generator)).argmax(1)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    clients = {"rome": (inputs[:80], targets[:80]), "oslo": (inputs[80:200], targets[80:200])}
    return net, clients, (inputs[200:], targets[200:])


def test_everything_promised_is_there():
    for name in fedddp.__all__:
        assert getattr(fedddp, name) is not None
    assert set(fedddp.__all__) <= set(dir(fedddp))
    with pytest.raises(AttributeError, match="no attribute 'rnu'"):
        _ = fedddp.rnu


def test_a_published_experiment_by_its_name_is_what_the_command_line_runs(here):
    run = fedddp.run("digits", method="bayes_admm", seed=1, ranks=2, rounds=2, settings=SMALL, quiet=True)
    words = [f"{key}={value}" for key, value in SMALL.items()]
    command = ["run", "digits", "method=bayes_admm", "seed=1", "federation.rounds=2", *words, "--out", "other"]
    subprocess.run([sys.executable, "-m", "fedddp", *command], check=True, capture_output=True)
    told = json.loads(Path("other/summary.json").read_text())
    assert (run.summary["checksum"], run.summary["config_hash"]) == (told["checksum"], told["config_hash"])
    assert list(run.metrics["round"]) == [1, 2]
    assert run.folder.parent == Path("runs/digits")
    assert run.posterior.sample(3).shape == (3, run.summary["parameters"])
    again = fedddp.load(run.folder)
    assert torch.equal(again.posterior.mean, run.posterior.mean)
    assert repr(again).startswith("Run('runs/digits/bayes_admm-")


def test_own_module_and_clients_give_the_same_bits_on_one_and_two_ranks(here):
    net, clients, test = problem()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    common = {"model": net, "clients": clients, "test": test, "rounds": 3, "quiet": True}
    runs = [fedddp.run(**common, method=Halved(strength=0.7), ranks=n, folder=f"{n}") for n in (1, 2)]
    assert runs[0].summary["checksum"] == runs[1].summary["checksum"]
    assert [run.summary["world_size"] for run in runs] == [1, 2]
    assert runs[0].summary["method"] == "Halved"
    assert runs[0].config["method"]["name"] == f"{__name__}:Halved"
    assert runs[0].config["method"]["strength"] == 0.7
    assert list(runs[1].clients["client"]) == ["rome", "oslo"]
    assert list(runs[1].clients["examples"]) == [80, 120]
    assert runs[0].predict(test[0][:4])["probabilities"].shape == (4, 3)
    outputs = runs[0].model(test[0][:4]).softmax(1)
    assert torch.allclose(outputs.double(), runs[0].predict(test[0][:4])["probabilities"], atol=1e-6)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items()), "ours was not touched"
    with pytest.raises(ValueError, match=r"hand in one like it: fedddp\.load\(folder, model=net\)"):
        _ = fedddp.load("1", trust=True).model
    again = fedddp.load("1", model=net).predict(test[0][:4])["probabilities"]
    assert torch.equal(again, runs[0].predict(test[0][:4])["probabilities"])


def test_a_module_starts_where_its_parameters_are(here):
    net, clients, test = problem()
    with fedddp.federation(model=net, clients=clients, test=test) as federation:
        start = nn.utils.parameters_to_vector(net.parameters()).detach()
        assert torch.equal(federation.server.theta, start)


def test_one_data_set_and_a_split(here):
    net, clients, test = problem()
    inputs, targets = (torch.cat(parts) for parts in zip(*clients.values(), strict=True))
    common = {"model": net, "test": test, "split": {"name": "iid", "clients": 4}, "rounds": 1, "quiet": True}
    run = fedddp.run(**common, data=(inputs, targets), local={"name": "adam", "lr": 0.01})
    assert run.config["split"]["clients"] == 4
    assert run.config["local"]["lr"] == 0.01
    other = fedddp.run(**common, data=TensorDataset(inputs, targets), local={"name": "adam", "lr": 0.01}, folder="set")
    assert other.summary["checksum"] == run.summary["checksum"]

    class Pairs(Dataset):
        def __len__(self):
            return len(targets)

        def __getitem__(self, index):
            return inputs[index], int(targets[index])

    third = fedddp.run(**common, data=Pairs(), local={"name": "adam", "lr": 0.01}, folder="pairs")
    assert third.summary["checksum"] == run.summary["checksum"]


def test_a_finished_run_is_returned_and_another_configuration_is_another_run(here):
    net, clients, test = problem()
    common = {"model": net, "clients": clients, "test": test, "rounds": 1, "quiet": True}
    first = fedddp.run(**common, method=Halved())
    stamp = (first.folder / "summary.json").stat().st_mtime_ns
    assert fedddp.run(**common, method=Halved()).folder == first.folder
    assert (first.folder / "summary.json").stat().st_mtime_ns == stamp
    assert fedddp.run(**common, method=Halved(strength=0.1)).folder != first.folder
    clients["rome"][0][0, 0] += 1  # one number of the data
    assert fedddp.run(**common, method=Halved()).folder != first.folder
    with torch.no_grad():
        net[0].weight[0, 0] += 1
    assert fedddp.run(**common, method=Halved()).folder != first.folder
    with pytest.raises(RuntimeError, match="holds this run already"):
        fedddp.run(**common, method=Halved(), resume=False, folder=fedddp.run(**common, method=Halved()).folder)


def test_round_by_round(here):
    with fedddp.federation("digits", method="fedavg", settings=SMALL) as federation:
        for result in federation:
            if result.round == 2:
                break
        assert torch.equal(nn.utils.parameters_to_vector(federation.model.parameters()), federation.server.theta)
    run = fedddp.run("digits", method="fedavg", rounds=2, settings=SMALL, quiet=True)
    assert result.metrics["accuracy"] == run.summary["accuracy"]


def test_mistakes_name_the_remedy(here):
    _, clients, test = problem()
    for options, message in (
        ({"clients": clients}, "test: give a pair"),
        ({"clients": clients, "test": test, "split": "iid"}, "leave out data and split"),
        ({"clients": {}, "test": test}, "there are none"),
        ({"clients": {"a": 3}, "test": test}, r"clients\['a'\]: must be a pair"),
        ({"clients": {"a": (test[0], test[1][:3])}, "test": test}, "100 inputs and 3 targets"),
        ({"test": test}, "brings its own test examples"),
        ({"method": "fedavgg"}, "did you mean fedavg"),
        (
            {"method": Halved(), "local": "ivon"},
            "does not fit method=Halved, which needs a point solver; choose local=",
        ),
        ({"settings": {"federation.round": 3}}, "did you mean federation.rounds"),
    ):
        with pytest.raises(ValueError, match=message):
            fedddp.run(**options)
    with pytest.raises(ValueError, match="no run here"):
        fedddp.load("nowhere")


class Failing(Halved):
    def client_step(self, server, clients, cohort, local):
        raise ZeroDivisionError("on purpose")


def test_a_failure_on_another_process_comes_back_with_its_trace(here):
    net, clients, test = problem()
    with pytest.raises(fedddp.RunFailed) as failure:
        fedddp.run(model=net, clients=clients, test=test, method=Failing(), ranks=2, quiet=True)
    assert "ZeroDivisionError: on purpose" in str(failure.value)
    assert "test_api.py" in str(failure.value)
    assert 'raise ZeroDivisionError("on purpose")' in str(failure.value)


SCRIPT = """
import os, fedddp, torch
from torch import nn
torch.manual_seed(0)
x = torch.randn(60, 4); y = (x.sum(1) > 0).long()
run = fedddp.run(model=nn.Linear(4, 2), clients=[(x[:20], y[:20]), (x[20:40], y[20:40])], test=(x[40:], y[40:]),
                 rounds=2, quiet=True, folder="script")
again = fedddp.run(model=nn.Linear(4, 2), clients=[(x[:20], y[:20]), (x[20:40], y[20:40])], test=(x[40:], y[40:]),
                   rounds=1, quiet=True, folder="second")  # another world in the same processes
open("said-" + os.environ.get("RANK", "alone"), "w").write(" ".join(r.summary["checksum"] for r in (run, again)))
"""


def test_a_script_under_torchrun_is_the_same_run(here):
    Path("script.py").write_text(SCRIPT)
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "script.py"], check=True, capture_output=True, env=env)
    for name in ("script", "second"):
        Path(name).rename(f"{name}-alone")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    subprocess.run([*launcher, "script.py"], check=True, capture_output=True, env=env)
    assert len({Path(f"said-{who}").read_text() for who in ("alone", "0", "1")}) == 1
    assert fedddp.load("script").summary["world_size"] == 2


def test_a_sweep_and_a_report(here):
    grid = {"method": ["fedavg", "fedprox"], "seed": range(2), "federation.rounds": 1, **SMALL}
    script = f"import fedddp; print(len(fedddp.sweep('digits', {grid!r})))"  # without any guard for __main__
    Path("sweep.py").write_text(script)
    result = subprocess.run([sys.executable, "sweep.py"], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "4"
    frame = fedddp.report("runs", out="table.md")
    assert sorted(frame["method.name"]) == ["fedavg", "fedavg", "fedprox", "fedprox"]
    assert "fedprox" in Path("table.md").read_text()


@pytest.mark.parametrize("tutorial", ["first_federation", "own_text"])
def test_a_tutorial_runs_as_a_notebook(here, tutorial):
    import jupytext
    import nbclient

    if tutorial == "own_text":
        small_transformer.needs()
    notebook = jupytext.read(TREE / "docs" / "tutorials" / f"{tutorial}.py")
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    texts = [
        "".join(o.get("text", o.get("data", {}).get("text/plain", "")))
        for c in notebook.cells
        for o in c.get("outputs", ())
    ]
    assert any("accuracy" in text for text in texts)
    assert any(("rome" if tutorial == "first_federation" else "mutual_information") in text for text in texts)


def test_ranks_start_from_within_a_world(exchange, tmp_path):
    """An open federation's threads would not live on behind a fork, and its group would be taken for the ranks' own."""
    run = fedddp.run("digits", method="fedavg", rounds=1, ranks=2, settings=SMALL, folder=tmp_path / "run")
    assert run.summary["world_size"] == 2
