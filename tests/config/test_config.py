"""A mistake in a file or in a word is one line with the key, the value and the remedy; the rest means what it says."""

import re
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from fedddp.config import loading as configuration
from fedddp.runs.build import cohort_width, make_federation, make_task

CPU = torch.device("cpu")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "mine.yaml"


def refused(message: str, experiment: Path | None = None, *words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as found:
        configuration.load(None if experiment is None else str(experiment), words)
    assert len(str(found.value).splitlines()) == 1


def test_a_name_alone_stands_for_its_section(file):
    file.write_text("data: digits\nsplit: iid\nmethod: fedprox\nevaluation:\ncheckpoint: null\n")
    config = configuration.load(str(file), ["evaluation.every=3"])
    assert config["method.name"] == "fedprox"
    assert config["split.name"] == "iid"
    assert config.evaluation.every == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("federation: 5", "federation=5: is a section"),
        ("data: [digits]", "data=['digits']: is a section"),
        ("local: {name: 5}", "local=5: must be a name"),
        ("local: {name: }", "local=null: must be a name"),
        ("data: {root: a}\ndata: {root: b}", "found duplicate key data in line 2"),
        ("local: {lr: 0.1, lr: 0.2}", "found duplicate key lr"),
        ("- digits", "must hold sections such as data:"),
        ("local: [", "not a readable YAML file"),
        ("seed: {a: 1}", "seed={'a': 1}: must be of type int"),
        ("lr: 0.1", "lr: unknown key; did you mean local.lr?"),
        ("methods: 5", "methods=5: is a section"),
        ("methods: {fedprx: {local: {lr: 1}}}", "methods.fedprx: unknown; did you mean fedprox?"),
        ("methods: {fedprox: 5}", "methods.fedprox=5: must hold sections"),
        ("methods: {fedprox: {local: 5}}", "local=5: is a section"),
        ("methods: {fedprox: {method: {delt: 1}}}", "methods.fedprox: method.delt: unknown key; did you mean"),
        ("methods: {fedprox: {local: {lr: -1}}}", "methods.fedprox: local.lr=-1.0: must be a number above 0"),
        ("methods: {fedprox: {loca: {lr: 1}}}", "methods.fedprox: loca: unknown key; did you mean local?"),
        ("federation: {measured_width: 4}", "federation.measured_width=4: is what a run found"),
        ("methods: {fedavg: {federation: {measured_width: 4}}}", "federation.measured_width=4: is what a run found"),
        ("data: {root: '${oc.env:HOME}'}", "data.root=${oc.env:HOME}: ${...} is not filled in here"),
        ("data: {root: '${'}", "data.root: no viable alternative"),
        ("local:\n  lr: ???", "local.lr=???: stands for a value that is missing"),
    ],
)
def test_mistakes_in_a_file(file, text, message):
    file.write_text(text)
    refused(message, file)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("method=fedprx", "method=fedprx: unknown; did you mean fedprox?"),
        ("method=null", "method=null: must be a name"),
        ("method=", "method=null: must be a name"),
        ("lr=0.1", "lr: unknown key; did you mean local.lr?"),
        ("rounds=5", "rounds: unknown key; did you mean federation.rounds?"),
        ("epoch=5", "epoch: unknown key; did you mean local.epochs?"),
        ("every=5", "every: unknown key; did you mean evaluation.every or checkpoint.every?"),
        ("federation=5", "federation=5: is a section (command line); write federation.<key>=<value>"),
        ("federation.rounds.x=5", "federation.rounds={'x': 5}: must be of type int"),
        ("data.root=", "data.root=null: must be of type str; write data.root='' for an empty one"),
        ("local.lr=null", "local.lr=null: must be of type float"),
        ("local.lr=???", "local.lr=???: stands for a value that is missing"),
        ("local.lr=${oc.env:HOME}", "local.lr=${oc.env:HOME}: ${...} is not filled in here; write the value itself"),
        ("federation.fits=${seed}", "federation.fits=${seed}: ${...} is not filled in"),
        ("local.lr=[1,", "local.lr=[1,: not understood as YAML"),
        ("local.lr=nan", "local.lr=nan: must be a finite number"),
        ("local.lr=1e400", "local.lr=inf: must be a finite number"),
        ("local.lr=true", "local.lr=true: must be of type float"),
        ("local.clip=.inf", "local.clip=inf: must be a finite number"),
        ("local.lr=1e39", "local.lr=1e+39: must be 0, or between 1.2e-38 and 3.4e38 in size"),
        ("local.epochs=2.5", "local.epochs=2.5: must be of type int"),
        ("local.epochs=true", "local.epochs=true: must be of type int"),
        ("local.weight_decay=-1", "local.weight_decay=-1.0: must be at least 0"),
        ("local.decay=-0.5", "local.decay=-0.5: must be in (0, 1]"),
        ("seed=abc", "seed=abc: must be of type int"),
        ("seed=true", "seed=true: must be of type int"),
        ("seed=[1]", "seed=[1]: must be of type int"),
        (f"seed={2**70}", f"seed={2**70}: must be an integer of 64 bits"),
        ("split.seed=abc", "split.seed=abc: must be of type int"),
        ("split.seed=[1,2]", "split.seed=[1, 2]: must be of type int"),
        ("split.seed=true", "split.seed=true: must be of type int"),
        ("model.seed=2.5", "model.seed=2.5: must be of type int"),
        (f"federation.seed={2**70}", f"federation.seed={2**70}: must be an integer of 64 bits"),
        ("model.loss=crossentropy", "model.loss=crossentropy: must be auto or cross_entropy or"),
        ("model.hidden=[64,0]", "model.hidden=0: must be from 1 to"),
        ("model.hidden=[-1]", "model.hidden=-1: must be from 1 to"),
        ("model.hidden=[1e9]", "model.hidden=1000000000.0: must be of type int"),
        ("model.hidden=64", "model.hidden=64: must be of type list[int]"),
        ("data.test_fraction=0", "data.test_fraction=0.0: must be in (0, 1)"),
        ("data.test_fraction=-0.5", "data.test_fraction=-0.5: must be in (0, 1)"),
        ("data.test_fraction=1", "data.test_fraction=1.0: must be in (0, 1)"),
        ("data.test_fraction=2", "data.test_fraction=2.0: must be in (0, 1)"),
        ("split.clients=100000000000000000000", "split.clients=100000000000000000000: must be an integer of 64 bits"),
        ("split.clients=1000000000000", "split.clients=1000000000000: must be from 1 to 100,000,000"),
        ("split.alpha=1e-320", "split.alpha=1e-320: must be 0, or between"),
        ("split.alpha=1e-35", "split.alpha=1e-35: must be from 1e-30 to 1e30"),
        ("split.alpha=1e300", "split.alpha=1e+300: must be 0, or between"),
        (f"federation.rounds={10**20}", f"federation.rounds={10**20}: must be an integer of 64 bits"),
        (f"federation.rounds={10**18}", f"federation.rounds={10**18}: must be from 0 to"),
        ("federation.threads=100000", "federation.threads=100000: must be from 1 to 4,096"),
        ("federation.timeout=inf", "federation.timeout=inf: must be a finite number"),
        ("federation.timeout=nan", "federation.timeout=nan: must be a finite number"),
        ("federation.timeout=0", "federation.timeout=0.0: must be above 0, and at most a year"),
        ("federation.timeout=1e30", "federation.timeout=1e+30: must be above 0, and at most a year"),
        ("federation.vectorise=5", "federation.vectorise=5: must be of type bool"),
        ("federation.autocast=off", "federation.autocast=false: must be of type str; a text such as 'yes' is written"),
        ("federation.cohort_width=1.5", "federation.cohort_width=1.5: must be of type int or of type str"),
        (
            "federation.measured_width=0",
            "federation.measured_width=0: is what a run found; set federation.cohort_width",
        ),
        ("exchange.keep=0", "exchange.keep=0.0: must be in (0, 1]"),
        ("exchange.keep=nan", "exchange.keep=nan: must be a finite number"),
        ("evaluation.samples=-1", "evaluation.samples=-1: must be from 0 to 100,000"),
        ("evaluation.every=0", "evaluation.every=0: must be at least 1"),
        ("evaluation.ood=fashion_mnst", "evaluation.ood=fashion_mnst: unknown; did you mean fashion_mnist?"),
        ("checkpoint.share=2", "checkpoint.share=2.0: must be in (0, 1]"),
        ("checkpoint.every=-1", "checkpoint.every=-1: must be at least 0"),
        ("method.source=abc", "method.source: unknown key"),
    ],
)
def test_mistakes_in_a_word(word, message):
    refused(message, None, word)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["local=adam", "local.eps=-1"], "local.eps=-1.0: must be above 0"),
        (["model=cnn", "model.channels=[]"], "model.channels=[]: must be a list of at least one"),
        (["model=cnn", "model.channels=[16,0]"], "model.channels=0: must be from 1"),
        (["model=cnn", "model.groups=3"], "model.groups=3: must be a divisor of each of model.channels=[16, 32]"),
        (["model=cnn", "model.groups=0"], "model.groups=0: must be a divisor"),
        (["model=lstm", "model.hidden=0"], "model.hidden=0: must be from 1"),
        (["model=lstm", "model.projection=-1"], "model.projection=-1: must be from 0"),
        (["model=fedbens_cnn", "model.pool=0"], "model.pool=0: must be from 1"),
        (["method=fedfisher", "method.eps=-1"], "method.eps=-1.0: must be above 0"),
        (["method=dense", "method.momentum=1"], "method.momentum=1.0: must be in [0, 1)"),
        (["method=pvi", "method.damping=true"], "method.damping=true: must be of type float or of type str"),
        (["method=pvi", "method.damping=2"], "method.damping=2.0: must be a number in (0, 1], 1/K or N_k/N"),
        (
            ["method=pvi", "local=laplace", "local.args.lrr=1"],
            "local.args.lrr: not a setting of adam; did you mean lr?",
        ),
        (["method=pvi", "local=laplace", "local.args.eps=nan"], "local.args.eps=nan: must be a finite number"),
        (["model.args=3", "model.args.x=1"], "args was given a value of its own before"),
    ],
)
def test_mistakes_that_need_a_choice(words, message):
    refused(message, None, *words)


def test_a_whole_number_is_a_number_where_words_are_allowed_too():
    for method in ("pvi", "fedlap", "fedlap_cov"):
        assert configuration.load(None, [f"method={method}", "method.damping=1"])["method.damping"] == 1.0
    assert configuration.load(None, ["federation.cohort_width=4"]).federation.cohort_width == 4


def test_seeds_are_any_integers_of_64_bits():
    words = ["seed=-3", f"split.seed={2**63 - 1}", f"model.seed={-(2**63)}", "federation.seed=0x10"]
    config = configuration.load(None, [*words, "federation.rounds=1"])
    assert [config.seed, config["split.seed"], config["model.seed"]] == [-3, 2**63 - 1, -(2**63)]
    assert config["federation.seed"] == 16
    assert make_task(config, CPU).num_clients == 10


def test_what_auto_measured_stays_with_its_run(tmp_path):
    """In a run's own config.yaml, and only as long as auto is asked for."""
    config = configuration.load(None, ["federation.cohort_width=auto"])
    config.values["federation"]["measured_width"] = 8
    path = tmp_path / "config.yaml"
    path.write_text(OmegaConf.to_yaml(OmegaConf.create(config.values)))
    again = configuration.load(str(path))
    assert again.federation.measured_width == 8
    assert again.hash == config.hash
    task = make_task(again, CPU)
    assert cohort_width(again, task) == 8
    other = configuration.load(str(path), ["federation.cohort_width=4"])
    assert other.federation.measured_width == 0
    assert cohort_width(other, task) == 4
    refused("federation.measured_width=2: is what a run found", path, "federation.measured_width=2")
    config.values["federation"]["cohort_width"] = 4
    path.write_text(OmegaConf.to_yaml(OmegaConf.create(config.values)))
    refused("federation.measured_width=8: must be 0, or what a run with federation.cohort_width=auto wrote", path)


def test_the_environment_is_never_read(file, monkeypatch):
    monkeypatch.setenv("SECRET", "12345")
    file.write_text("seed: ${oc.env:SECRET}\npublished: {by: '${oc.env:SECRET}'}\n")
    refused("seed=${oc.env:SECRET}: ${...} is not filled in here", file)
    file.write_text("published: {by: '${oc.env:SECRET}'}\n")
    assert "12345" not in str(configuration.load(str(file)).values)


WRONG = """
from torch import nn

class Outputs(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 3))

class Inputs(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(63, 10))

class Pair(nn.Linear):
    def __init__(self):
        super().__init__(8, 10)
    def forward(self, x):
        return x, x
"""


def build(words: list[str], exchange) -> None:
    config = configuration.load(None, words)
    make_federation(config, make_task(config, CPU), exchange)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["model=wrong.py:Outputs"],
            "model=Outputs: gives [1, 3] for one input of shape [8, 8], wanted [1, 10]; change",
        ),
        (["model=wrong.py:Inputs"], "model=Inputs: fails on an input of shape [8, 8]: mat1 and mat2"),
        (["model=wrong.py:Pair"], "model=Pair: gives tuple for one input of shape [8, 8], wanted [1, 10]"),
        (["data.test_fraction=0.0001"], "data.test_fraction=0.0001: must be such that some of 1797 images are left"),
        (["data.test_fraction=0.9999"], "data.test_fraction=0.9999: must be such that some of 1797 images are left"),
        (["data=sklearn", "data.test_fraction=0.001"], "data.test_fraction=0.001: 0.001 leaves none of 569 examples"),
        (
            ["data=sklearn", "data.test_fraction=0.9999"],
            "nothing is left to train on; choose a smaller data.test_fract",
        ),
        (
            ["split=iid", "split.clients=100000"],
            "split.clients=100000: more than the 1438 training examples; use fewer",
        ),
        (
            ["split=class_dirichlet", "split.minimum=0", "split.alpha=0.001"],
            "or split.minimum=1: an empty client cannot",
        ),
        (["data.fraction=0.0001"], "data.fraction=0.0001: 0.0001 leaves none of 1438 examples; choose a larger"),
        (["model=lstm"], "model.name=lstm: takes a row of tokens"),
        (["model=fedbens_cnn"], "model.name: images of [8, 8] are too small"),
    ],
)
def test_mistakes_that_the_build_finds(words, message, exchange, tmp_path, monkeypatch):
    (tmp_path / "wrong.py").write_text(WRONG)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=re.escape(message)) as found:
        build(words, exchange)
    assert len(str(found.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["model.hidden=[100000,100000]"],
            "model=mlp: needs at least 10,006,500,000 parameters: 37 GB of memory, this",
        ),
        (["model.hidden=[1000000000]"], "model=mlp: needs at least 64,000,000,000 parameters: 238 GB of memory"),
        (["split=resample", "split.clients=100000000", "split.most=1000"], "split.clients=100000000: 746 GB of memory"),
    ],
)
def test_what_no_memory_could_hold_is_never_asked_for(words, message, exchange, monkeypatch):
    monkeypatch.setattr("fedddp.core.check.os.sysconf", lambda _: 2**15)  # a machine of 1 GB
    with pytest.raises(ValueError, match=re.escape(message)):
        build(words, exchange)


def test_one_look_at_the_model_changes_nothing(exchange):
    config = configuration.load(None, ["model=emnist_cnn", "data.fraction=0.1", "federation.rounds=1"])
    task = make_task(config, CPU)
    before, state = task.module.training, torch.get_rng_state()
    make_federation(config, task, exchange)
    assert task.module.training == before
    assert torch.equal(torch.get_rng_state(), state)


def test_a_key_that_nobody_has_is_said_also_where_its_section_is_replaced(file):
    file.write_text("split: {cliens: 5}\nlocal: {name: sgd, lrr: 0.1}\n")
    refused("split.cliens: unknown key; did you mean split.clients?", file, "split=iid", "local=sgd")
    file.write_text("local: {name: sgd, lrr: 0.1}\n")
    refused("local.lrr: unknown key; did you mean local.lr?", file, "local=adam")
    file.write_text("split: {alpha: 0.5, clients: 7}\n")
    assert configuration.load(str(file), ["split=iid"])["split.clients"] == 7  # alpha is the default split's


def test_a_key_of_a_dictionary_leaves_the_others_as_they_were():
    config = configuration.load("speeches", ["model.lora.train=B"])
    assert config["model.lora"] == {"rank": 8, "alpha": 16, "targets": ["query", "value"], "train": "B"}
    assert config.origin["model.lora.rank"] == "experiment speeches"
    again = configuration.load("speeches", [])
    assert "train" not in again["model.lora"], "layers are not written into"
