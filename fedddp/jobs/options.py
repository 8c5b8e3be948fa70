"""The options that `sweep` and `submit` share; imported by the parser, so light."""

import argparse
from pathlib import Path


def launching(parser: argparse.ArgumentParser, cluster: str) -> None:
    parser.add_argument("--cluster", choices=("local", "slurm", "debug"), default=cluster, help=f"default: {cluster}")
    parser.add_argument("--profile", help="of the Slurm cluster: a name in slurm/ or a YAML file (default: cpu or gpu)")
    parser.add_argument("--nodes", type=_count, help="of one job")
    parser.add_argument("--gpus-per-node", type=_count, help="of one job, with a rank for each")
    parser.add_argument("--ranks", type=_count, help="of one job, over all its nodes")
    parser.add_argument("--max-parallel", type=_count, help="most jobs at the same time")
    parser.add_argument("--out", type=Path, help="where the runs' folders go (default: runs/EXPERIMENT)")
    parser.add_argument("--wait", action="store_true", help="until all have ended; exit code 1 if one failed")
    parser.add_argument("--dry-run", action="store_true", help="show the runs and the script, and start nothing")


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be at least 1")
    return int(text)
