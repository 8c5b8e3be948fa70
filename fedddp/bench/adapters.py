"""Rounds of adapters on the pretrained sentence model (experiment `speeches`): time, and memory of all ranks together.

    step     fedddp's round beside a plain loop with peft and torch's Adam, on the same texts, client after client
    frozen   what all ranks hold of the model's file (proportional set size), beside the file's length
    peak     what a rank's round adds to its memory, predicted beforehand and measured

Texts have at least as many tokens as are used, so that nobody computes padding.
"""

import argparse
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedddp.bench.measure import Ours, in_turn
from fedddp.bench.memory import MB, resident, settled
from fedddp.bench.plain import Plain
from fedddp.config import loading as configuration
from fedddp.core.files import folder as folder_named
from fedddp.core.live import Live
from fedddp.exchange.group import Exchange
from fedddp.jobs import here
from fedddp.runs.build import make_federation, make_task
from fedddp.runs.footprint import footprint
from fedddp.runs.rank import keep_memory

SETTINGS = ["data.words=40", "data.fraction=0.25", "data.validation=0", "federation.autocast=none"]


class PlainAdapters(Plain):
    """The trained parameters alone are averaged; texts go in by name."""

    def _optimiser(self, theta: Tensor) -> Any:
        own = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        torch.nn.utils.vector_to_parameters(theta.clone(), own)
        return torch.optim.Adam(own, lr=self.lr)

    def _backward(self, optimiser: Any, inputs: Tensor, targets: Tensor) -> None:
        optimiser.zero_grad()
        texts = inputs[..., : int(inputs[:, 1].sum(1).max())]
        outputs = self.module(input_ids=texts[:, 0], attention_mask=texts[:, 1])
        self.task.objective.loss(outputs, targets).mean().backward()

    def _parameters(self) -> Tensor:
        own = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        return torch.nn.utils.parameters_to_vector(own).detach()


def call(arguments: argparse.Namespace, words: list[str]) -> int:
    return here.start(partial(_rank, words, arguments.rounds), arguments.ranks)


def _rank(words: list[str], rounds: int) -> int:
    torch.set_num_threads(1)
    keep_memory()
    exchange = Exchange.connect(torch.device("cpu"))
    row = measure([*SETTINGS, *words], rounds, exchange)
    if exchange.rank == 0:
        print(line(row), flush=True)
    exchange.close()
    return 0


def measure(words: list[str], rounds: int, exchange: Exchange) -> dict[str, Any]:
    config = configuration.load("speeches", words)
    task = make_task(config, exchange.device)
    federation = make_federation(config, task, exchange)
    told = footprint(config, task, exchange.world_size, "device")
    with tempfile.TemporaryDirectory() as folder:
        ours = Ours(federation, rounds, Path(folder))
        plain = PlainAdapters(task, config, federation.plan.at_home(exchange.rank).tolist(), exchange)
        found = in_turn({"fedddp": ours, "plain": plain}, rounds, exchange)
        before = settled()
        ours.round(rounds)
        adds = resident("VmHWM") - before
        with Live() as live:
            ours.round(rounds + 1)
    (file,) = folder_named("model.path", config["model.path"]).glob("*.safetensors")
    held, least, most = zip(*exchange.gather([pages(file), adds, live.ledger.most]), strict=True)
    memory = {"held": sum(held), "file": file.stat().st_size, "told": told.round + told.activations}
    return {"ranks": exchange.world_size, **found, **memory, "adds": max(least), "tensors": max(most)}


def line(row: dict[str, Any]) -> str:
    ratios = [row["plain"][clock] / row["fedddp"][clock] for clock in ("processor", "seconds")]
    return (
        f"{row['ranks']} ranks  beside the loop {ratios[0]:.3f}x by the processor, {ratios[1]:.3f}x by the clock  "
        f"frozen {row['held'] / MB:.1f} of {row['file'] / MB:.1f} MB  peak told {row['told'] / MB:.1f} MB, "
        f"tensors {row['tensors'] / MB:.1f} MB, process {row['adds'] / MB:.1f} MB"
    )


def pages(file: Path) -> int:
    """Bytes of a mapped file that this process holds, each page divided by those who hold it (Linux)."""
    total, inside = 0, False
    for entry in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in entry.split(" ", 1)[0] and not entry.split(" ", 1)[0].endswith(":"):
            inside = entry.endswith(str(file.resolve()))
        elif inside and entry.startswith("Pss:"):
            total += 1024 * int(entry.split()[1])
    return total
