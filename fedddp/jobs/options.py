"""What sweeps and single jobs can be told about where and how they run; imported by the parser, so light."""

import argparse
from dataclasses import dataclass, fields
from pathlib import Path


@dataclass(frozen=True)
class Options:
    cluster: str = "local"  # slurm, or debug: one after another in this process
    profile: str | None = None  # of the Slurm cluster
    nodes: int | None = None
    gpus_per_node: int | None = None
    ranks: int | None = None  # of one job, over all its nodes
    max_parallel: int | None = None  # jobs at the same time
    out: Path | None = None
    wait: bool = False
    dry_run: bool = False

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> "Options":
        given = vars(arguments)
        return cls(**{own.name: given[own.name] for own in fields(cls)})


def launching(parser: argparse.ArgumentParser, cluster: str) -> None:
    parser.add_argument("--cluster", choices=("local", "slurm", "debug"), default=cluster, help=f"default: {cluster}")
    parser.add_argument("--profile", help="of the Slurm cluster: a name in slurm/ or a YAML file (default: cpu or gpu)")
    parser.add_argument("--nodes", type=_count, help="of one job")
    parser.add_argument("--gpus-per-node", type=_count, help="of one job, with a rank for each")
    parser.add_argument("--ranks", type=_count, help="of one job, over all its nodes")
    parser.add_argument("--max-parallel", type=_count, help="most jobs at the same time")
    parser.add_argument("--out", type=Path, help="where the runs' folders go (default: runs/EXPERIMENT)")
    parser.add_argument(
        "--wait", action="store_true", help="until all have ended; exit code 1 if one failed, 130 if stopped"
    )
    parser.add_argument("--dry-run", action="store_true", help="show the runs and the script, and start nothing")


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be at least 1")
    return int(text)
