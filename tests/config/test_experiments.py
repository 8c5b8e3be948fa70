"""Every experiment file resolves, is well formed, and runs two rounds on a small file of its data's true format."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from scipy.io import savemat

from fedddp.config import loading as configuration
from fedddp.core import registry
from fedddp.evaluation.evaluate import evaluate
from fedddp.records.records import read_metrics
from fedddp.runs.build import make_federation, make_task
from fedddp.runs.job import Job
from tests import toy
from tests.data import writers
from tests.data.test_tables import crx, hospitals

NAMES = [name for name in configuration.experiments() if name != "digits"]
PRETRAINED = {"speeches"}  # their model's folder is no data file; docs/text.md says how it was run
METHODS = registry.names("method")
SECTIONS = {"data", "split", "model", "method", "local", "federation", "evaluation"}
METRICS = {"accuracy", "nll", "averaged_accuracy", "averaged_nll", "precision", "recall_at_5", "macro_f1", "micro_f1"}
METRICS |= {"clients_accuracy_mean", "clients_server_accuracy_mean"}


def read(name: str) -> dict:
    return yaml.safe_load((configuration.folder("experiment") / f"{name}.yaml").read_text())


def test_the_published_tables_are_all_there():
    wanted = {"fmnist_10p_homog", "fmnist_10p_heterog", "fmnist_heterog100", "mnist_2class100", "hwa_femnist", "heart"}
    wanted |= {"cifar10_zenke", "cifar10_acar", "cifar100_resnet20", "credit_heterog", "credit_homog"}
    wanted |= {f"hwa_{data}_{kind}" for data in ("mnist", "fmnist", "cifar10") for kind in ("iid", "type1", "type2")}
    wanted |= {f"fedbens_{data}_a{a}" for data in ("fmnist", "svhn", "cifar10") for a in ("005", "01", "02", "04")}
    wanted |= {f"fedbens_fmnist_c{clients}" for clients in (10, 20, 40)}
    wanted |= {f"fedpa_{task}" for task in ("emnist", "cifar100", "stackoverflow_nwp", "stackoverflow_lr")}
    assert wanted <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_resolves_with_every_method_it_has_settings_for(name):
    path = configuration.folder("experiment") / f"{name}.yaml"
    assert path.read_text().startswith("# "), "the first line says what it is"
    blocks = read(name).get("methods", {})
    assert all(set(block) <= SECTIONS for block in blocks.values())
    configuration.load(name)
    for method in set(blocks) & set(METHODS):
        config = configuration.load(name, [f"method={method}"])
        assert config["method.name"] == method
        config.method.init_clients(1, toy.task(), config.local)  # refuses a solver that does not fit the method
        for section, settings in blocks[method].items():
            for key, value in settings.items():
                assert config[f"{section}.{key}"] == value


@pytest.mark.parametrize("name", NAMES)
def test_published_numbers_are_by_method_metric_and_round(name):
    file = read(name)
    rounds = file["federation"]["rounds"]
    for method, metrics in file.get("published", {}).items():
        known = {"fedavg", "fedbens_last", *file["methods"]}
        assert method in known, f"{method} has numbers but no settings"
        assert set(metrics) <= METRICS
        for metric, by_round in metrics.items():
            for at, number in by_round.items():
                assert isinstance(at, str)
                assert 1 <= int(at) <= rounds
                assert 0 < number < (5 if metric.endswith("nll") else 1)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small file of every format."""
    root = tmp_path_factory.mktemp("data")
    for folder in ("mnist", "fashion-mnist"):
        writers.mnist(root / folder, train=80)
    labels = (np.arange(40, dtype=np.uint8) % 10)[:, None]
    for batch in range(1, 6):
        writers.cifar_rows(root / f"cifar-10-batches-bin/data_batch_{batch}.bin", labels[:10], seed=batch)
    writers.cifar_rows(root / "cifar-10-batches-bin/test_batch.bin", labels[:10])
    fine = np.arange(3, 100, 4, dtype=np.uint8)[:, None]  # some classes, and the last one
    for part in ("train", "test"):
        writers.cifar_rows(root / f"cifar-100-binary/{part}.bin", np.hstack([fine // 5, fine]))
    (root / "svhn").mkdir()
    for part, count in (("train", 40), ("test", 10)):
        pictures = {"X": writers.pixels(32, 32, 3, count), "y": labels[:count] + 1}
        savemat(root / f"svhn/{part}_32x32.mat", pictures)
    crx(root / "credit/crx.data")
    hospitals(root / "heart")
    pixels = (writers.pixels(12, 784) / 255).tolist()
    words = [
        "how",
        "do",
        "i",
        "sort",
        "a",
        "list",
        "in",
        "python",
        "when",
        "the",
        "keys",
        "are",
        "equal",
        "and",
        "the",
        "list",
        "is",
        "long",
    ]
    for part in ("train", "test"):
        drawn = {f"writer{w}": {"x": pixels[w : w + 6], "y": list(range(w, w + 6))} for w in range(6)}
        writers.leaf(root / f"leaf/femnist/{part}/all.json", drawn)
        posts = {
            f"user{u}": {"x": [" ".join(words[p : p + 5 + u]) for p in range(8)], "y": ["python|list", "sorting"] * 4}
            for u in range(5)
        }
        writers.leaf(root / f"stackoverflow/{part}/all.json", posts)
    speeches = 7 * ["to be or not to be, that is the question " * 100]
    plays = [{"play": "p", "role": f"r{r}", "speeches": speeches} for r in (1, 2)]
    (root / "shakespeare").mkdir()
    (root / "shakespeare/roles.jsonl").write_text("".join(f"{json.dumps(play)}\n" for play in plays))
    return root


def small(name: str) -> list[str]:
    """What makes an experiment small, and keeps its kind."""
    config = configuration.load(name)
    split, model = config["split.name"], config["model.name"]
    words = ["federation.rounds=2", "local.epochs=1", "local.batch_size=8", "evaluation.every=1"]
    words += ["evaluation.histograms=0"]  # no pictures
    words += ["split.clients=4"] * hasattr(config.split, "clients")
    words += {
        "classes": ["split.points=4", "split.clients=5"],
        "credit": ["split.clients=10", "split.sizes=[1,2]"],
    }.get(split, [])
    words += ["federation.participation=0.6"] * (config.federation.participation < 1)
    words += ["data.validation=10"] * bool(config["data"].get("validation"))
    words += ["data.roles=2", "model.width=16"] * (model == "gpt")
    words += ["model.depth=20"] * (config["model"].get("depth") == 18)
    return words + {"leaf_cnn": ["model.hidden=32"], "lstm": ["model.hidden=24"]}.get(model, [])


@pytest.mark.parametrize("name", [name for name in NAMES if name not in PRETRAINED])
def test_runs_two_rounds_on_a_small_file_of_the_true_format(name, tiny, tmp_path, exchange):
    config = configuration.load(name, [*small(name), f"data.root={tiny}", "data.fraction=1.0"])
    summary = Job(config, tmp_path / "run", exchange, torch.device("cpu"), quiet=True).run(resume=False)
    assert summary is not None
    records = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [record["round"] for record in records] == [1, 2]
    assert all(np.isfinite(record["nll"]) and np.isfinite(record["train_loss"]) for record in records)
    metrics = {metric for numbers in read(name)["published"].values() for metric in numbers}
    assert {metric for metric in metrics if not metric.startswith("averaged_")} <= set(records[-1])


REAL = {
    "fmnist_10p_heterog": ["data.fraction=0.01"],
    "mnist_2class100": ["data.fraction=0.01"],
    "cifar10_zenke": ["data.fraction=0.001"],
    "cifar100_resnet20": ["data.fraction=0.01"],
    "fedpa_cifar100": ["data.fraction=0.01"],
    "fedbens_cifar10_a005": ["data.fraction=0.001"],
    "credit_homog": [],
    "heart": [],
}


@pytest.mark.data
@pytest.mark.parametrize("name", REAL)
def test_runs_two_rounds_on_the_real_files(name, data_root, exchange):
    config = configuration.load(name, [*small(name), *REAL[name], f"data.root={data_root}"])
    task = make_task(config, torch.device("cpu"))
    few = task.data.test.take(torch.arange(min(100, len(task.data.test))))
    federation = make_federation(config, task, exchange)
    server = config.method.init_server(task)
    for number in range(2):
        server, report = federation.round(server, number)
        assert np.isfinite(report.train_loss)
    metrics = evaluate(replace(task, data=replace(task.data, test=few)), exchange, server.theta.unsqueeze(0))
    assert np.isfinite(metrics["nll"])


@pytest.mark.data
def test_the_credit_split_of_the_paper_fits_the_real_file(data_root):
    config = configuration.load("credit_heterog", [f"data.root={data_root}"])
    task = make_task(config, torch.device("cpu"))
    targets = task.data.train.targets
    assert len(targets) == 520
    assert task.num_examples.tolist() == [36] * 5 + [67] * 5
    positives = [int(targets[task.shards.of_client(k)].sum()) for k in range(10)]
    assert positives == [2] * 5 + [44] * 4 + [45]  # the file has one negative too few for 44


@pytest.mark.data
def test_the_real_two_digit_split_has_300_points_of_each(data_root):
    config = configuration.load("mnist_2class100", [f"data.root={data_root}"])
    task = make_task(config, torch.device("cpu"))
    for client in range(100):
        labels = task.data.train.targets[task.shards.of_client(client)]
        assert sorted(labels.bincount()[labels.unique()].tolist()) == [300, 300]


DECAYED = [name for name in NAMES if "weight_decay" in str(read(name).get("methods", {}).get("feddyn"))]
ONE_SHOT = [f"fedbens_{data}_{n}" for data in ("fmnist", "svhn", "cifar10") for n in ("a005", "a01", "c10", "c40")]


@pytest.mark.parametrize(
    ("name", "method", "settings"),
    [
        ("mnist_homog", "fedlap_func", {"method.steps": 3000, "method.lr": 5e-4, "method.points": 1}),
        ("mnist_heterog", "fedlap_func", {"method.steps": 3000, "method.lr": 5e-4, "method.points": 1}),
        ("credit_heterog", "fedlap_func", {"method.steps": 5000, "method.lr": 1e-3, "method.points": 1}),
        ("fmnist_heterog100", "fedlap_func", {"method.steps": 5000, "method.lr": 1e-3, "method.points": 1}),
        ("cifar10_zenke", "fedlap_func", {"method.steps": 500, "method.lr": 5e-4, "method.points": 2}),
        ("cifar10_zenke", "fedlap_func", {"method.warmup": 10, "method.damping": "1/K", "method.tau": 0.01}),
        ("cifar10_zenke", "fedlap", {"method.warmup": 10, "method.damping": "1/K"}),
        ("cifar10_acar", "fedlap", {"method.damping": "1/K"}),
        ("mnist_2class100", "fedavg", {"local.batch_size": 64, "split.dealing": "numpy", "split.numpy_seed": 62}),
        ("mnist_2class100", "fedavg", {"evaluation.at": [25, 50, 100]}),
        ("fedpa_emnist", "fedpa", {"federation.participation": pytest.approx(100 / 3400, rel=1e-4)}),
        ("hwa_mnist_type1", "hwa", {"data.pixels": "standardised", "method.curvature": "examples"}),
        *(
            (name, "fedbens", {"split.name": "fedbens", "method.clip": 1.0, "method.median": "lower"})
            for name in ONE_SHOT
        ),
        *((name, "fedbens", {"data.validation": 500, "data.keep_validation": True}) for name in ONE_SHOT),
        *((name, "regmean", {"method.choices": [0.1, 0.9]}) for name in ONE_SHOT),
        *((name, "fisher_merge", {"method.bits": 15}) for name in ONE_SHOT),
        ("fedbens_fmnist_a01", "fedbens", {"data.pixels": "mnist"}),
        ("fedbens_cifar10_a01", "fedbens", {"data.augment": "crops"}),
    ],
)
def test_the_papers_protocols_are_in_the_files(name, method, settings):
    """What appendices and released programs say; docs and the files' remarks say what else is used, and why."""
    config = configuration.load(name, [f"method={method}"])
    assert {key: config[key] for key in settings} == settings


@pytest.mark.parametrize(
    "name", [name for name in NAMES if "weight_decay" in str(read(name).get("methods", {}).get("feddyn"))]
)
def test_feddyns_decay_is_on_the_mean_loss_as_its_authors_have_it(name):
    settings = read(name)["methods"]["feddyn"]["method"]
    assert settings["decay_scale"] == "mean" or name.startswith("ranking")
    assert 1e-6 <= settings["weight_decay"] <= 1e-3
