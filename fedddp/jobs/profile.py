"""A cluster in a file: partition, account, limits, what to load, which network; and the size of a job on it."""

import shlex
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any

from fedddp.config import written
from fedddp.config.schema import typed
from fedddp.core.check import check, check_count, hint
from fedddp.jobs import slurm_task


@dataclass
class Profile:
    """What slurm/NAME.yaml may say."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time: int = 240  # minutes
    memory: float | None = None  # GB per node
    nodes: int = 1
    gpus_per_node: int = 0
    cpus_per_rank: int = 1
    setup: list[str] = field(default_factory=list)  # shell lines before the ranks start: module load, conda activate
    gloo_interface: str | None = None  # network interface of the ranks, such as ib0
    nccl_interface: str | None = None
    signal_delay: int = slurm_task.DELAY  # seconds between Slurm's warning and its SIGKILL; longer than a round is best
    retries: int = slurm_task.RETRIES  # requeues of a job, for whatever reason, before it counts as failed
    options: dict[str, Any] = field(default_factory=dict)  # any other of sbatch: {constraint: a100, exclusive: true}

    def __post_init__(self) -> None:
        check_count("profile.time", self.time)  # minutes
        check("profile.memory", self.memory, self.memory is None or self.memory > 0, "above 0 (GB)")
        check_count("profile.nodes", self.nodes, most=100_000)
        check_count("profile.gpus_per_node", self.gpus_per_node, least=0, most=1000)
        check_count("profile.cpus_per_rank", self.cpus_per_rank, most=10_000)
        check_count("profile.signal_delay", self.signal_delay)  # seconds
        check_count("profile.retries", self.retries, least=0)

    def exports(self) -> list[str]:
        """Shell lines that name the network."""
        named = {"GLOO_SOCKET_IFNAME": self.gloo_interface, "NCCL_SOCKET_IFNAME": self.nccl_interface}
        return [f"export {name}={shlex.quote(value)}" for name, value in named.items() if value]


@dataclass(frozen=True)
class Size:
    """Of one job: ranks in all, spread over nodes."""

    nodes: int
    ranks: int
    gpus_per_node: int

    @classmethod
    def of(cls, profile: Profile, nodes: int | None, gpus_per_node: int | None, ranks: int | None) -> "Size":
        """What was asked for, else what the profile says; one rank per GPU, or one per node."""
        nodes = nodes or profile.nodes
        gpus = profile.gpus_per_node if gpus_per_node is None else gpus_per_node
        ranks = ranks or nodes * max(1, gpus)
        if ranks < nodes:
            raise ValueError(f"--ranks {ranks} --nodes {nodes}: every node needs a rank")
        return cls(nodes, ranks, gpus)

    @property
    def ranks_per_node(self) -> int:
        return ceil(self.ranks / self.nodes)


def folder() -> Path:
    """Where the built-in profiles lie: in the installed package, or at the top of the source tree."""
    inside = Path(__file__).parent.parent / "slurm"
    return inside if inside.is_dir() else Path(__file__).parent.parent.parent / "slurm"


def names() -> list[str]:
    return sorted(path.stem for path in folder().glob("*.yaml"))


def load(name: str) -> Profile:
    """A built-in profile, or a YAML file."""
    path = Path(name) if name.endswith((".yaml", ".yml")) else folder() / f"{name}.yaml"
    if not path.is_file():
        raise ValueError(f"--profile {name}: unknown; {hint(name, names())} (or name a .yaml file)")
    given = written.load(path)
    if not isinstance(given, dict):
        raise ValueError(f"{path}: must hold settings such as partition: gpu")
    profile: Profile = typed("profile", Profile, {str(key): value for key, value in given.items()})[0]
    return profile
