"""A pretrained folder with adapters: what is trained, what is shared, and the same bits on any number of ranks."""

import math
from pathlib import Path

import pytest
import torch
from torch import nn

import fedddp
from fedddp.config import loading as configuration
from fedddp.core.mapped import tensors
from fedddp.runs.build import make_federation, make_oracle, make_task
from tests import small_transformer
from tests.small import fresh, run

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    small_transformer.needs()
    folder = tmp_path_factory.mktemp("folder")
    small_transformer.make(folder / "bert")
    small_transformer.make(folder / "gpt", language=True)
    small_transformer.texts(folder / "texts.jsonl")
    return folder


def words(place: Path, *more: str, model: str = "bert") -> list[str]:
    return [
        "data=text", f"data.file={place}/texts.jsonl", "data.label=role", "data.client=who", "split=natural",
        f"data.tokenizer={place}/{model}", "model=transformers", f"model.path={place}/{model}", "model.lora.rank=2",
        "local.batch_size=8", "local.epochs=1", "federation.rounds=2", "evaluation.samples=2", *more,
    ]  # fmt: skip


LANGUAGE = ["data.label=''", "model.task=language", "model.lora.targets=[c_attn]"]


def task_of(place, *more, model="bert"):
    return make_task(configuration.load(None, words(place, *more, model=model)), CPU)


def test_adapters_and_new_layers_are_trained_and_start_where_the_pretrained_model_is(place):
    task = task_of(place, "model.pool=mean")
    kinds = {name.rpartition("lora_")[2][:1] if "lora_" in name else name for name in task.layout.names}
    assert kinds == {"A", "B", "head.weight", "head.bias"}
    import transformers

    body = transformers.AutoModel.from_pretrained(place / "bert").eval()
    inputs = task.data.prepare(task.data.test.inputs[:3], torch.float32)
    with torch.no_grad():
        states = body(input_ids=inputs[:, 0], attention_mask=inputs[:, 1]).last_hidden_state
        weight = inputs[:, 1].unsqueeze(-1)
        mean = nn.functional.layer_norm((states * weight).sum(1) / weight.sum(1), (16,))
        views = task.layout.views(task.initial)
        wanted = mean @ views["head.weight"].T + views["head.bias"]
        torch.testing.assert_close(task.outputs(task.initial, task.data.test.inputs[:3]), wanted)


@pytest.mark.parametrize("more", [["model.pool=mean"], ["model.pool=library"], LANGUAGE])
def test_frozen_weights_lie_in_the_folders_file(place, more):
    model = "gpt" if more is LANGUAGE else "bert"
    task = task_of(place, *more, model=model)
    held = dict(tensors(place / model / "model.safetensors"))
    maps = Path("/proc/self/maps").read_text().splitlines()
    ranges = [line.split()[0].split("-") for line in maps if line.endswith(f"{model}/model.safetensors")]
    frozen = [own for own in task.module.parameters() if not own.requires_grad]
    inside = [any(int(a, 16) <= own.data_ptr() < int(b, 16) for a, b in ranges) for own in frozen]
    assert len(frozen) >= 20
    assert all(inside)
    assert sum(value.numel() for value in held.values()) >= sum(own.numel() for own in frozen)


def test_with_frozen_a_the_mean_of_products_is_the_product_of_means(place):
    both, ffa = task_of(place), task_of(place, "model.lora.train=B")
    assert ffa.layout.numel < both.layout.numel
    assert not any("lora_A" in name for name in ffa.layout.names)
    assert any("lora_A" in name and own.abs().sum() > 0 for name, own in ffa.module.named_parameters())


def test_padding_changes_nothing(place):
    """A text alone, and padded beside a longer one; and its loss in a batch."""
    task = task_of(place)
    inputs = task.data.test.inputs
    lengths = task.data.lengths(inputs)
    order = lengths.argsort()
    alone = torch.cat([task.outputs(task.initial, inputs[n : n + 1]) for n in order[[0, -1]].tolist()])
    beside = task.outputs(task.initial, inputs[order])[[0, -1]]
    torch.testing.assert_close(alone, beside, rtol=1e-4, atol=1e-5)
    assert task.data.prepare(inputs[order[:1]], torch.float32).shape[-1] == math.ceil(int(lengths.min()) / 8) * 8


def test_language_predicts_what_follows_and_knows_the_tokenisers_words_only(place):
    task = task_of(place, *LANGUAGE, model="gpt")
    inputs, targets = task.data.test.inputs, task.data.test.targets
    real = inputs[:, 1] != 0
    assert torch.equal(targets[:, :-1][real[:, 1:]], inputs[:, 0, 1:][real[:, 1:]].long())
    assert task.outputs(task.initial, inputs[:2]).shape[-1] == task.data.classes < 35
    config = configuration.load(None, words(place, *LANGUAGE, model="gpt"))
    rows = torch.arange(4)[None]
    grad, loss = make_oracle(config, task)(task.initial[None], *task.data.gather(rows, task.dtype))
    assert grad.norm() > 0
    assert 0.5 * math.log(task.data.classes) < float(loss) < 2 * math.log(task.data.classes)


@pytest.mark.parametrize(
    "more",
    [
        ["method=bayes_admm", "local=ivon", "local.lr=0.01", "model.lora.dropout=0.3"],
        ["method=fedlap_cov", "local.samples=1", "local.lr=0.01"],
        ["method=fedavg", "local=adam", "local.lr=0.01", "model.lora.train=stack"],
        ["method=fedprox", "local=adam", "local.lr=0.01", *LANGUAGE],
    ],
    ids=["bayes_admm", "fedlap_cov", "stack", "language"],
)
def test_same_bits_on_any_number_of_ranks_and_after_a_stop(worlds, tmp_path, place, more):
    given = words(place, "checkpoint.every=1", *more, model="gpt" if more[-1] == LANGUAGE[-1] else "bert")
    done = {n: worlds(n).run(run, given, fresh(tmp_path, f"{n}"))[0] for n in (1, 2, 3)}
    assert len({(one["checksum"], one["nll"]) for one in done.values()}) == 1
    folder = fresh(tmp_path, "parts")
    assert worlds(2).run(run, given, folder, False, 2) == [None] * 2
    assert worlds(1).run(run, given, folder, True)[0]["checksum"] == done[1]["checksum"]


@pytest.mark.parametrize(
    "more",
    [
        ["method=bayes_admm", "local=ivon", "local.lr=0.01", "model.lora.dropout=0.3"],
        ["method=fedavg", "local=adam", "local.lr=0.01", "model.lora.train=stack", "federation.autocast=bf16"],
        ["method=fedprox", "local=adam", "local.lr=0.01", *LANGUAGE],
    ],
    ids=["dropout", "stack in bfloat16", "language"],
)
def test_activations_that_are_computed_twice_change_no_bit(exchange, tmp_path, place, more):
    given = words(place, *more, model="gpt" if more[-1] == LANGUAGE[-1] else "bert")
    once = run(given, fresh(tmp_path, "once"))
    assert run([*given, "local.recompute=true"], fresh(tmp_path, "twice"))["checksum"] == once["checksum"]


def test_a_finished_run_predicts_from_the_folder_and_adapters_alone(exchange, tmp_path, place):
    given = words(place, "method=bayes_admm", "local=ivon", "local.lr=0.01", "model.lora.train=B")
    done = run(given, fresh(tmp_path, "run"))
    task = make_task(configuration.load(None, given), CPU)
    found = fedddp.load(tmp_path / "run").predict(task.data.test.inputs, samples=2)
    metrics = task.objective.metrics(task.objective.tally(found["probabilities"], task.data.test.targets))
    assert metrics["nll"] == pytest.approx(done["averaged_nll"], rel=1e-5)
    size = (tmp_path / "run" / "posterior.safetensors").stat().st_size
    assert size < 2 * 4 * task.layout.numel + 10_000


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("model.lora.rnak=2", "unknown key; did you mean model.lora.rank"),
        ("model.lora.targets=[qery]", "no layer is called so; did you mean query"),
        ("model.lora.train=A", "must be both or B or stack"),
        ("model.path=nowhere", "no such folder, nor one of an installed package; nothing is downloaded"),
        ("model.freeze=false", "must be true with adapters"),
        ("model.task=summary", "must be classification or language"),
    ],
)
def test_mistakes_are_named(place, word, says):
    with pytest.raises(ValueError, match=says):
        task_of(place, word)


def test_stacking_adds_up_the_products_exactly(exchange, place):
    """The server's function is the mean of the clients' products, which plain means miss by adapter_gap."""
    config = configuration.load(None, words(place, "model.lora.train=stack", "local=adam", "local.lr=0.05"))
    task = make_task(config, CPU)
    federation = make_federation(config, task, exchange)
    server = federation.method.init_server(task)
    rows, inner = {}, federation.method._work

    def watch(phase, *given):
        memory, message = inner(phase, *given)
        rows.update(zip(given[2].ids, message["theta"].value, strict=True))
        return memory, message

    federation.method._work = watch
    for number in range(2):
        before = task.layout.of_buffers(server.buffers.clone())
        server, report = federation.round(server, number)
        share = task.num_examples / task.num_examples.sum()
        name = "bert.encoder.layer.1.attention.self.value"
        a, b = f"{name}.lora_A.default.weight", f"{name}.lora_B.default.weight"
        views = {client: task.layout.views(row) for client, row in rows.items()}
        wanted = sum(share[k] * views[k][b] @ views[k][a] for k in views)  # alpha/rank is 1
        merged = task.layout.of_buffers(server.buffers)[f"{name}.exact.weight"]
        torch.testing.assert_close(merged - before[f"{name}.exact.weight"], wanted, rtol=1e-5, atol=1e-7)
        assert task.layout.views(server.theta)[b].abs().sum() == 0
        assert 0.01 < report.metrics["adapter_gap"] < 1.5
    adapters = 2 * 2 * 2 * (16 + 16)  # layers, targets, rank
    assert report.bytes_down == 4 * (task.layout.numel + 2 * adapters)  # two clients
    assert report.bytes_up == pytest.approx(4 * task.layout.numel, abs=8)


def test_stacking_is_refused_for_methods_that_send_more(exchange, place):
    config = configuration.load(None, words(place, "model.lora.train=stack", "method=bayes_admm", "local=ivon"))
    with pytest.raises(ValueError, match=r"choose method=fedavg or fedprox, or model\.lora\.train=B"):
        make_federation(config, make_task(config, CPU), exchange)
