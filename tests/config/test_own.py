"""A user's own classes through the whole life of a run: command line, resume, edits, predictions, reports, sweeps."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

import fedddp
from fedddp import reports
from fedddp.config import loading as configuration
from fedddp.core import registry
from fedddp.runs import predict
from tests import forked

METHOD = '''
from fedddp import Clients, Mean, Method, Server

class Mine(Method):
    """Part of the way."""

    strength: float = 0.5

    def client_step(self, server, clients, cohort, local):
        fit = local.minimise(cohort, server.theta, clients.solver)
        return Clients(fit.memory), {"theta": Mean(fit.theta, weight=cohort.num_examples)}

    def server_step(self, server, total, task):
        return Server(server.theta + self.strength * (total["theta"] - server.theta))
'''
SOLVER = '''
from fedddp.local import sgd

class Mine(sgd.Solver):
    """SGD with a smaller step."""

    lr: float = 0.05
'''
SPLIT = '''
import torch
from fedddp import Split

class Mine(Split):
    """Every third example."""

    def deal(self, examples, generator):
        return [torch.arange(k, len(examples), 3) for k in range(3)]
'''
DATA = '''
import torch
from fedddp import Dataset, Examples, Source

class Mine(Source):
    """Points on a plane."""

    count: int = 60

    def load(self):
        x = torch.randn(self.count, 2, generator=torch.Generator().manual_seed(0))
        made = Examples(x, (x[:, 0] > 0).long())
        return Dataset(made, made, classes=2)
'''
MODEL = '''
from torch import nn
from fedddp import Model

class Mine(Model):
    """Linear."""

    bias: bool = True

    def build(self, shape, outputs):
        return nn.Sequential(nn.Flatten(), nn.Linear(shape[0], outputs, self.bias))

class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, 2))

    def forward(self, x):
        return self.layers(x)
'''
QUICK = ["federation.rounds=2", "data.test_fraction=0.85", "local.epochs=1", "evaluation.histograms=0"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    texts = {"method": METHOD, "solver": SOLVER, "split": SPLIT, "data": DATA, "model": MODEL}
    for name, text in texts.items():
        (tmp_path / f"my_{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def summary(folder):
    return json.loads((Path(folder) / "summary.json").read_text())


def test_all_five_kinds_together(here):
    words = ["method=my_method.py:Mine", "local=my_solver.py:Mine", "split=my_split.py:Mine", "data=my_data.py:Mine"]
    words += ["model=my_model.py:Mine", "data.count=90", "federation.rounds=2"]
    for ranks, name in ((1, "one"), (2, "two")):
        result = forked.fedddp("run", *words, "--out", name, "--ranks", 1, ranks=ranks, cwd=here)
        assert result.returncode == 0, result.stderr
    assert summary("one")["checksum"] == summary("two")["checksum"]
    config = OmegaConf.load("one/config.yaml")
    assert config.method.name == f"{here}/my_method.py:Mine"
    assert config.data.count == 90
    assert sorted(path.name for path in Path("one/source").rglob("*.py")) == [f"my_{k}.py" for k in KINDS]


KINDS = ("data", "method", "model", "solver", "split")


def test_a_method_of_ones_own_takes_the_experiments_solver(here):
    config = configuration.load(None, ["method=my_method.py:Mine"])
    assert config["local.name"] == "sgd"
    assert config["local.epochs"] == 5
    text = METHOD.replace("Method, Server", "Method, PosteriorSolver, Server").replace(
        "    strength", "    needs = PosteriorSolver\n    strength"
    )
    Path("posterior.py").write_text(text)
    assert configuration.load(None, ["method=posterior.py:Mine"])["local.name"] == "ivon"


def test_the_hash_follows_the_content_and_not_the_place(here):
    first = configuration.load(None, ["method=my_method.py:Mine"]).hash
    Path("moved").mkdir()
    shutil.copy("my_method.py", "moved/other_name.py")
    assert configuration.load(None, ["method=moved/other_name.py:Mine"]).hash == first
    path = Path("my_method.py")
    path.write_text(path.read_text() + "# a comment\n")
    assert configuration.load(None, ["method=my_method.py:Mine"]).hash != first


def test_an_edited_file_is_another_run_and_the_run_keeps_its_own_copy(here):
    run = ["run", "method=my_method.py:Mine", *QUICK, "--ranks", 1, "--out", "run"]
    assert forked.fedddp(*run, cwd=here).returncode == 0
    before = Path("my_method.py").read_text()
    Path("my_method.py").write_text(before.replace("self.strength *", "0.1 * self.strength *"))
    result = forked.fedddp(*run, "--resume", cwd=here)
    assert result.returncode == 1
    assert "holds a run of another configuration: method.source=" in result.stderr
    assert Path("run/source/method/my_method.py").read_text() == before
    config = configuration.load("run/config.yaml")  # as a queued job does: with what the run was made with
    assert config.hash == summary("run")["config_hash"]
    Path("my_method.py").unlink()
    assert configuration.load("run/config.yaml").hash == config.hash
    Path("run/source/method/my_method.py").write_text("class Mine: pass\n")
    with pytest.raises(ValueError, match=r"must be a class that derives from fedddp\.Method"):
        configuration.load("run/config.yaml")


def test_a_run_whose_method_is_gone_still_reports_and_says_so(here):
    assert forked.fedddp("run", "method=my_method.py:Mine", *QUICK, "--ranks", 1, cwd=here).returncode == 0
    Path("my_method.py").unlink()
    made = reports.make(["runs"])
    assert "Mine" in made.table.text()
    assert any(f"method={here}/my_method.py:Mine: is gone" in note for note in made.table.notes)
    status = forked.fedddp("status", cwd=here)
    assert status.returncode == 0
    assert "done" in status.stdout


def test_predictions_import_a_users_model_only_if_trusted(here):
    words = ["data=my_data.py:Mine", "split=my_split.py:Mine", "federation.rounds=1"]
    for name, more in (("model", []), ("net", ["model.args.width=3"])):
        kind = f"my_model.py:{'Mine' if name == 'model' else 'Net'}"
        run = ["run", *words, f"model={kind}", *more, "--ranks", 1, "--out", name]
        result = forked.fedddp(*run, cwd=here)
        assert result.returncode == 0, result.stderr
        with pytest.raises(ValueError, match="--trust"):
            predict.load(Path(name))
        trained = predict.load(Path(name), trust=True)
        assert predict.predict(trained, torch.zeros(3, 2))["probabilities"].shape == (3, 2)
    Path("my_model.py").unlink()  # the copy in the run's folder serves
    assert predict.predict(predict.load(Path("net"), trust=True), torch.zeros(3, 2))["entropy"].shape == (3,)


def test_predictions_take_an_installed_model_but_never_the_folders_copy_of_it(here, tmp_path_factory, monkeypatch):
    """An entry point is trusted as the installation is; what lies in a run's folder is not."""
    site = tmp_path_factory.mktemp("site")
    info = site / "my_models-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-models\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[fedddp.models]\nmy_installed = module_with_my_model:Mine\n")
    (site / "module_with_my_model.py").write_text(MODEL)
    monkeypatch.syspath_prepend(str(site))
    registry.installed.cache_clear()
    try:
        words = ["data=my_data.py:Mine", "split=my_split.py:Mine", "model=my_installed", "federation.rounds=1"]
        config = configuration.load(None, words)
        fedddp.run(model="my_installed", data=config.data, split=config.split, rounds=1, quiet=True, folder="run")
        assert predict.predict(predict.load(Path("run")), torch.zeros(3, 2))["entropy"].shape == (3,)
        (site / "module_with_my_model.py").write_text(MODEL + "# another version\n")
        with pytest.raises(ValueError, match="has changed since this run was made"):
            predict.load(Path("run"))
    finally:
        registry.installed.cache_clear()


def test_a_sweep_over_ones_own_method_and_a_built_in_one(here):
    grid = ["method=my_method.py:Mine,fedavg", "seed=0..1", "method.strength=0.2,0.9", *QUICK]
    result = forked.fedddp("sweep", *grid, "--wait", "--out", "swept", cwd=here)
    assert result.returncode == 0, result.stdout + result.stderr
    names = sorted(path.name.partition("-")[0] for path in Path("swept").iterdir() if (path / "summary.json").exists())
    assert names == ["Mine"] * 4 + ["fedavg"] * 2
    table = reports.make(["swept"], by=["method", "method.strength"]).table.text()
    assert "Mine" in table
    assert "0.9" in table


def test_list_says_where_a_name_comes_from(here, tmp_path_factory):
    site = tmp_path_factory.mktemp("site")
    info = site / "my_package-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text("[fedddp.methods]\nmy_method = my_module:Mine\nbroken = nowhere:Mine\n")
    (site / "my_module.py").write_text(METHOD)
    started = forked.start("list", "methods", cwd=here, PYTHONPATH=str(site)).wait()
    lines = {line.split()[0]: line for line in started.stdout.splitlines()}
    if "my_method" not in lines:  # the forked process has read PYTHONPATH already
        import subprocess
        import sys

        command = [sys.executable, "-m", "fedddp", "list", "methods"]
        env = {"PYTHONPATH": f"{site}:{Path(reports.__file__).parent.parent.parent}", "PATH": "/usr/bin:/bin"}
        text = subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout
        lines = {line.split()[0]: line for line in text.splitlines()}
    assert lines["my_method"].endswith("Part of the way. [my-package 1.2: my_module:Mine]")
    assert "cannot be used: method=broken: nowhere: cannot be imported" in lines["broken"]


def test_the_failing_line_of_the_users_code_is_named_and_the_trace_is_kept(here):
    text = METHOD.replace("        fit = local", "        wrong = cohort.no_such_thing\n        fit = local")
    Path("bad.py").write_text(text)
    result = forked.fedddp("run", "method=bad.py:Mine", *QUICK, "--out", "run", ranks=2, cwd=here)
    assert result.returncode == 1
    line = text.splitlines().index("        wrong = cohort.no_such_thing") + 1
    assert (
        f"AttributeError: 'Cohort' object has no attribute 'no_such_thing' (bad.py:{line} in client_step)"
        in result.stderr
    )
    assert len(result.stderr.strip().splitlines()) == 1
    trace = Path("run/traceback.txt").read_text()
    assert "wrong = cohort.no_such_thing" in trace
    shown = forked.fedddp("run", "method=bad.py:Mine", *QUICK, "--out", "shown", "--ranks", 1, "--debug", cwd=here)
    assert "Traceback (most recent call last)" in shown.stderr
    assert "wrong = cohort.no_such_thing" in shown.stderr
    Path("bad.py").write_text(METHOD.replace("return Server(", "return Servr("))
    result = forked.fedddp("run", "method=bad.py:Mine", *QUICK, "--out", "server", ranks=2, cwd=here)
    assert "the server's step failed in round 1: NameError: name 'Servr' is not defined (bad.py:" in result.stderr


def test_breakpoint_works_in_a_run_of_one_rank(here):
    import subprocess
    import sys

    Path("stop.py").write_text(METHOD.replace("        fit = local", "        breakpoint()\n        fit = local"))
    command = [sys.executable, "-m", "fedddp", "run", "method=stop.py:Mine", *QUICK, "--ranks", "1", "--debug"]
    text = "p len(cohort)\np 'seen', server.theta.shape\nq\n"
    result = subprocess.run([*command, "federation.cohort_width=2"], input=text, capture_output=True, text=True)
    assert "(Pdb) 2" in result.stdout
    assert "'seen', torch.Size(" in result.stdout


def test_a_data_file_is_found_from_the_current_folder(here):
    rows = "\n".join(f"{i % 7},{i % 3},{'yes' if i % 2 else 'no'}" for i in range(60))
    Path("pat.csv").write_text(f"a,b,target\n{rows}\n")
    data = configuration.load(None, ["data=csv", "data.file=pat.csv"]).data.load()
    assert len(data.train) + len(data.test) == 60
    with pytest.raises(ValueError, match=f"other.csv: not found in {here}"):
        configuration.load(None, ["data=csv", "data.file=other.csv"]).data.load()


PAIRS = [
    ("pvi", "sgd"),
    ("bayes_admm", "adam"),
    ("fedavg", "ivon"),
    ("fedavg", "von"),
    ("fedpa", "sgd"),
    ("mime", "adam"),
]


@pytest.mark.parametrize(("method", "local"), PAIRS)
def test_a_pair_that_does_not_fit_is_refused_with_those_that_do(method, local):
    with pytest.raises(ValueError, match=f"local={local}: does not fit method={method}, which .*; choose local="):
        configuration.load(None, [f"method={method}", f"local={local}"])


def test_every_pair_runs_or_is_refused():
    """No pair of a method and a solver gets as far as a round and fails there for being a wrong pair."""
    refused = fitting = 0
    for method in registry.builtin("method"):
        for local in registry.builtin("local"):
            try:
                loaded = configuration.load(None, [f"method={method}", f"local={local}"])
            except ValueError as error:
                refused += "does not fit" in str(error)
            else:
                assert isinstance(loaded.local, registry.find("local", local))
                assert not loaded.method.mismatch(loaded.local)
                fitting += 1
    assert refused > 80
    assert refused + fitting == len(registry.builtin("method")) * len(registry.builtin("local"))
