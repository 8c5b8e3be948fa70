"""What a round would take on a GPU, from what it is asked to do: a prediction; beside it the measured time, on a GPU.

A local step of a cohort takes the longest of

    launches     kernels (counted on the pretended device) x LAUNCH: the host asks for one after the other
    memory       bytes that must be read and written / the device's bandwidth
    arithmetic   operations (counted) / the device's float32 rate; TF32 and bf16 are off unless asked for

and a round adds int64 sums over devices: a ring sends 2 (n - 1)/n of them over each device's link. Peak rates are the
makers' data sheets'; no kernel reaches them, so the device's part is a lower bound. Bytes are a model: parameters,
gradient and the solver's rows once each way, and three times what autograd keeps of a batch.
"""

import argparse
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import torch
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from fedddp.checks import launches
from fedddp.config import loading as configuration
from fedddp.core.check import check
from fedddp.core.device import own_device
from fedddp.core.task import Task
from fedddp.exchange.group import Exchange
from fedddp.rounds.plan import default_width
from fedddp.runs.build import make_federation, make_task
from fedddp.runs.footprint import saved

LAUNCH = 4e-6  # seconds of the host for a kernel, from Python through torch; a guess
CLIENTS, EXAMPLES, BATCH = 64, 640, 32  # of the federation: all take part, 20 steps each


class Device(NamedTuple):
    flops: float  # float32 a second, without tensor cores
    bandwidth: float  # bytes a second of its memory
    link: float  # bytes a second in one direction to others of its machine


DEVICES = {  # NVIDIA's data sheets
    "A100": Device(19.5e12, 2.039e12, 300e9),  # 80 GB SXM; NVLink 600 GB/s both ways
    "H100": Device(67e12, 3.35e12, 450e9),  # SXM; NVLink 900 GB/s both ways
    "V100": Device(15.7e12, 0.9e12, 150e9),  # SXM2; NVLink 300 GB/s both ways
    "A10": Device(31.2e12, 0.6e12, 32e9),  # PCIe 4.0 x16
    "L4": Device(30.3e12, 0.3e12, 32e9),  # PCIe 4.0 x16
    "4090": Device(82.6e12, 1.008e12, 32e9),  # PCIe 4.0 x16
}
ROWS = {"sgd": 3, "adam": 7, "ivon": 17}  # [P] that a client's step reads or writes, beside its products
IMAGES = ["data=fedddp.bench.images:Source", "data.examples=16", "split=iid", "split.clients=2", "split.minimum=1"]
MODELS = {
    "mlp": [*IMAGES, "model=mlp", "model.hidden=[200,100]"],
    "lenet": [*IMAGES, "model=lenet"],
    "resnet18": [*IMAGES, "data.channels=3", "data.size=32", "model=resnet", "model.depth=18"],
}
METHODS = {"fedavg": ["method=fedavg", "local=sgd"], "bayes_admm": ["method=bayes_admm", "local=ivon"]}
SUMMED = {"fedavg": 1, "bayes_admm": 2}  # [P] that a round adds up


class Step(NamedTuple):
    """Seconds of a cohort's step, by what bounds it."""

    launches: float
    memory: float
    arithmetic: float


def step(device: Device, kernels: float, task: Task, solver: str, width: int) -> Step:
    params = task.layout.numel * task.dtype.itemsize
    touched = width * (ROWS[solver] * params + 2 * params + 3 * BATCH * saved(task))
    return Step(kernels * LAUNCH, touched / device.bandwidth, width * BATCH * operations(task) / device.flops)


def operations(task: Task) -> float:
    """Of one example, forward and backward, as torch counts them."""
    theta = task.initial.clone().requires_grad_()
    with torch.enable_grad(), FlopCounterMode(display=False) as counter:
        inputs = task.data.prepare(task.data.train.inputs[:2], task.dtype)
        outputs = functional_call(task.module, task.layout.views(theta), (inputs,))
        task.objective.loss(outputs, task.data.train.targets[:2]).sum().backward()
    return counter.get_total_flops() / 2


def exchange(device: Device, params: int, fields: int, devices: int) -> float:
    """Seconds of a ring of int64; one device adds nothing up."""
    return 2 * (devices - 1) / devices * 8 * params * fields / device.link


def line(name: str, method: str, model: str, devices: int, kernels: float) -> str:
    config = configuration.load(None, [*METHODS[method], *MODELS[model]])
    task, device = make_task(config, torch.device("cpu")), DEVICES[name]
    width = _width(task, devices)
    found = step(device, kernels, task, config["local.name"], width)
    steps = -(-CLIENTS // (width * devices)) * (EXAMPLES // BATCH)
    sums = exchange(device, task.layout.numel, SUMMED[method], devices)
    bound = max(zip(found, found._fields, strict=True))[1]
    graph = max(found.memory, found.arithmetic)
    parts = "  ".join(f"{part} {1e6 * value:.0f}" for part, value in found._asdict().items())
    return (
        f"{method:<11}{model:<9}{devices} x {name}  cohorts of {width:>2}, {kernels:.0f} kernels; us a step: {parts} "
        f"round {1e3 * (steps * max(found) + sums):.1f} ms ({bound}), as a graph {1e3 * (steps * graph + sums):.1f}, "
        f"of it sums {1e3 * sums:.2f}"
    )


def _width(task: Task, devices: int) -> int:
    """The rule's for a GPU, as far as every device has clients."""
    return min(default_width(task.layout.numel, False, CLIENTS, "cuda"), CLIENTS // devices)


def measured(method: str, model: str) -> float:
    """Median seconds of a round on this machine's GPU."""
    device = own_device(deterministic=True)
    words = [*METHODS[method], *MODELS[model], f"data.examples={CLIENTS * EXAMPLES}", f"split.clients={CLIENTS}"]
    config = configuration.load(None, [*words, "split=iid", f"local.batch_size={BATCH}", "local.epochs=1"])
    group = Exchange.connect(device)
    federation = make_federation(config, make_task(config, device), group)
    server, seconds = federation.method.init_server(federation.task), []
    for number in range(6):
        server, report = federation.round(server, number)
        torch.cuda.synchronize()
        seconds.append(sum(report.seconds.values()))
    group.close()
    return median(seconds[1:])


def call(arguments: argparse.Namespace, words: Sequence[str]) -> int:
    """`fedddp bench gpu [device=A100] [model=mlp]`: a line for each method, model and number of devices."""
    given = dict(word.split("=", 1) for word in words)
    name, wanted = given.get("device", "A100"), given.get("model", "")
    check("device", name, name in DEVICES, ", ".join(DEVICES))
    check("model", wanted, wanted in ("", *MODELS), ", ".join(MODELS))
    print(f"predicted, not measured: {CLIENTS} clients, {EXAMPLES // BATCH} steps of {BATCH} examples each", flush=True)
    cases = [(method, model) for method in METHODS for model in MODELS if wanted in ("", model)]
    two = "federation.cohort_width=2"
    counted = launches.count([[*METHODS[method], *MODELS[model], two] for method, model in cases])
    for (method, model), row in zip(cases, counted, strict=True):
        for devices in (1, 8):
            print(line(name, method, model, devices, row.kernels), flush=True)
        if torch.cuda.is_available():
            seconds = measured(method, model)
            print(f"{'':<20}measured on one {torch.cuda.get_device_name()}: {1e3 * seconds:.1f} ms", flush=True)
    return 0
