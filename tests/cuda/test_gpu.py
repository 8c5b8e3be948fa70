"""What a GPU must do as a CPU does: exact sums by nccl, every method, equal bits, graphs, copies to the host.

./launch/test --cuda runs these; without a GPU they are skipped.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fedddp.config import loading as configuration
from fedddp.core.device import to_host
from fedddp.core.rng import stream
from fedddp.exchange.group import Exchange, Sockets
from fedddp.exchange.messages import Gather, Mean, Sum
from fedddp.exchange.reduce import Reduction
from fedddp.rounds.store import PLACES
from fedddp.runs.job import Job
from tests.small import METHODS, MODELS, fresh, settings

pytestmark = pytest.mark.cuda
GPU, CPU = torch.device("cuda"), torch.device("cpu")


def run(words, folder, resume=False, kill_after=0):
    """tests.small.run, on the GPU."""
    exchange = Exchange(GPU)
    job = Job(configuration.load(None, words), Path(folder), exchange, GPU, quiet=True)
    job.after_round = lambda finished: setattr(job.stop, "asked", finished == kill_after)
    return job.run(resume)


def totals(device):
    exchange = Exchange(device)
    reduction = Reduction(4)
    for number in range(4):
        value = torch.randn(1, 3_000_000, generator=stream("gpu", number)).to(device)
        message = {"mean": Mean(value, weight=2.0), "sum": Sum(value.double() * 1e9), "row": Gather(value[:, :5])}
        reduction.add(message, torch.tensor([number]))
    scales = exchange.agree(reduction.exponents())
    return {name: total.cpu() for name, total in reduction.total(exchange, scales, 4, device).items()}


def test_sums_on_a_gpu_have_the_bits_of_sums_on_a_cpu(gpu):
    there, here = gpu(totals, GPU), gpu(totals, CPU)
    assert all(torch.equal(there[name], here[name]) for name in here)


def test_a_client_left_out_on_a_gpu_adds_nothing(gpu):
    assert gpu(leave_out) == [2.0, [[2.0], [0.0]]]


def leave_out():
    reduction, value = Reduction(2), torch.tensor([[2.0], [float("nan")]], device=GPU)
    good = torch.tensor([True, False], device=GPU)
    reduction.add({"sum": Sum(value), "row": Gather(value)}, torch.tensor([0, 1]), good)
    total = reduction.total(Exchange(GPU), reduction.exponents(), 1, GPU)
    return [float(total["sum"]), total["row"].tolist()]


def test_sums_of_gpu_tensors_go_by_nccl(gpu):
    assert gpu(backends) == ["nccl", "gloo", "Sockets", "cuda"]


def backends():
    group = torch.distributed.distributed_c10d._get_default_group()
    transport = Exchange(GPU).transport(1 << 20, GPU)
    assert isinstance(transport, Sockets)
    return [*(group._get_backend(d).name() for d in (GPU, CPU)), type(transport).__name__, transport.source.device.type]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs_and_gives_the_same_bits_again(gpu, tmp_path, method):
    words = settings(method, *MODELS["conv"], "federation.participation=0.6", "federation.rounds=2")
    first, again = (gpu(run, words, fresh(tmp_path, name)) for name in ("first", "again"))
    assert first["checksum"] == again["checksum"]
    assert "CUDA" in first["gpu"]


@pytest.mark.parametrize("method", ["fedavg", "bayes_admm"])
def test_a_gpu_learns_what_a_cpu_learns(gpu, worlds, tmp_path, method):
    from tests.small import run as on_cpu

    words = settings(method, *MODELS["mlp"], "federation.rounds=3")
    there, here = gpu(run, words, fresh(tmp_path, "gpu")), worlds(1).run(on_cpu, words, fresh(tmp_path, "cpu"))[0]
    assert there["nll"] == pytest.approx(here["nll"], rel=0.02)


@pytest.mark.parametrize("method", ["fedavg", "bayes_admm"])
def test_same_bits_after_a_stop(gpu, tmp_path, method):
    words = settings(method, *MODELS["conv"], "checkpoint.every=1", "local.keep=true")
    whole = gpu(run, words, fresh(tmp_path, "whole"))
    folder = fresh(tmp_path, "parts")
    assert gpu(run, words, folder, False, 1) is None
    assert gpu(run, words, folder, True)["checksum"] == whole["checksum"]


@pytest.mark.parametrize("place", PLACES)
def test_same_bits_wherever_rows_are_kept_and_sums_wait(gpu, tmp_path, place):
    words = settings("bayes_admm", *MODELS["mlp"], "federation.rounds=2")
    plain = gpu(run, words, fresh(tmp_path, "plain"))
    other = gpu(run, [*words, f"federation.rows={place}"], fresh(tmp_path, place))
    assert plain["checksum"] == other["checksum"]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("autocast", ["none", "bf16"])
def test_graphs_do_not_change_a_bit(gpu, tmp_path, model, autocast):
    words = settings("fedavg", *MODELS[model], f"federation.autocast={autocast}")
    plain = gpu(run, words, fresh(tmp_path, "plain"))
    graphed = gpu(run, [*words, "federation.graphs=true"], fresh(tmp_path, "graphed"))
    assert plain["checksum"] == graphed["checksum"]


def test_what_goes_to_the_host_is_what_was_there():
    values = {"a": torch.randn(1000, 1000, device=GPU), "b": torch.arange(5), "c": torch.zeros(0, device=GPU)}
    doubled = {name: 2 * value for name, value in values.items()}  # still on its way when the copy is asked for
    for name, copy in to_host(doubled).items():
        assert copy.device == CPU
        assert torch.equal(copy, doubled[name].cpu())
    assert to_host(doubled)["a"].is_pinned()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("method", ["fedavg", "bayes_admm"])
def test_same_bits_on_one_gpu_and_on_two(tmp_path, method):
    sums = set()
    for ranks in (1, 2):
        words = [*settings(method, *MODELS["conv"]), "--ranks", str(ranks), "--out", fresh(tmp_path, str(ranks))]
        done = subprocess.run([sys.executable, "-m", "fedddp", "run", *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        sums.add(re.search(r"checksum (\w+)", done.stdout).group(1))
    assert len(sums) == 1
