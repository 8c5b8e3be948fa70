"""`python -m tests.pretend METHOD...` runs each on a pretended device and on the CPU: both checksums."""

import json
import sys
import tempfile
from pathlib import Path

import torch

from fedddp.checks import pretend
from fedddp.config import loading as configuration
from fedddp.exchange.group import Exchange
from fedddp.runs.job import Job
from tests.small import MODELS, settings

CPU = torch.device("cpu")


def main(methods: list[str]) -> None:
    device, exchange = pretend.install(), Exchange.connect(CPU)
    torch.set_num_threads(1)
    for method in methods:
        words = settings(method, *MODELS["mlp"], "federation.rounds=1", "federation.participation=0.6")
        config = configuration.load(None, words)
        with tempfile.TemporaryDirectory() as folder:
            on_cpu = Job(config, Path(folder, "cpu"), exchange, CPU, quiet=True).run(False)["checksum"]
            on_device = pretend.run(config, Path(folder, "device"), exchange, device)
        print(json.dumps([method, on_cpu, on_device]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
