"""run an experiment on this machine, or as one rank of torchrun or srun"""

import argparse
import os
from pathlib import Path
from typing import Any

from fedddp.commands import experiment, split_words


def add(parser: argparse.ArgumentParser) -> None:
    experiment(parser)
    parser.add_argument("--ranks", type=int, help="processes on this machine (default: one per GPU or core)")
    parser.add_argument("--out", type=Path, help="the run's folder (default: runs/EXPERIMENT/METHOD-HASH)")
    parser.add_argument("--resume", action="store_true", help="go on with what the folder holds")


def call(arguments: argparse.Namespace) -> int:
    from fedddp import config as configuration
    from fedddp import launch

    name, overrides = split_words(arguments.words)
    config = configuration.load(name, overrides)
    if arguments.ranks is not None and arguments.ranks < 1:
        raise ValueError(f"--ranks {arguments.ranks}: must be at least 1")
    out = arguments.out or default_folder(name, config)
    if "RANK" not in os.environ:
        ranks = arguments.ranks or launch.default_ranks(config)
        if ranks > 1:
            return launch.start(ranks, arguments.all_words, config.federation.threads)
    launch.end_with_parent()
    return work(config, out, arguments.resume)


def default_folder(experiment: str | None, config: Any) -> Path:
    """A run's folder is named by its configuration."""
    return Path("runs") / Path(experiment or "digits").stem / f"{config['method.name']}-{config.hash}"


def work(config: Any, out: Path, resume: bool) -> int:
    """This process as one rank of a run."""
    import torch

    from fedddp import launch
    from fedddp.device import own_device
    from fedddp.exchange import Exchange
    from fedddp.job import Job, Stop

    stop = Stop()
    stop.listen()
    torch.set_num_threads(config.federation.threads)
    launch.keep_memory()
    device = own_device(config.federation.deterministic)
    exchange = Exchange.connect(device, config.federation.timeout)
    summary = Job(config, out, exchange, device, stop=stop).run(resume)
    if exchange.rank == 0 and summary is not None:
        _print_summary(summary, out)
    exchange.close()
    return 0 if summary is not None else 130


def _print_summary(summary: dict[str, Any], out: Path) -> None:
    metrics = "  ".join(f"{k} {summary[k]:.4f}" for k in ("accuracy", "nll", "ece", "rmse") if k in summary)
    print(
        f"{summary['method']}: {summary['rounds']} rounds in {summary['seconds']:.1f} s on "
        f"{summary['world_size']} rank(s)  {metrics}  checksum {summary['checksum']}\n{out}"
    )
