"""`python -m tests.exchange.machines NODE ADDRESS PORT FOLDER`: four ranks on one of two machines.

What crosses between them is counted. Each machine is a network and a process namespace of its own: test_machines.py.
"""

import json
import os
import sys
from hashlib import blake2b
from pathlib import Path

import torch

from fedddp.config import loading as configuration
from fedddp.exchange.group import Exchange
from fedddp.exchange.messages import Mean
from fedddp.exchange.reduce import Reduction
from fedddp.runs.job import Job
from tests.small import MODELS, settings

RANKS, NODES, SUMS, NUMBERS = 4, 2, 5, 300_000
CPU = torch.device("cpu")


def crossed() -> int:
    """Bytes that this machine has sent to the other, and been sent."""
    (card,) = (path for path in Path("/sys/class/net").iterdir() if path.name != "lo")
    return sum(int((card / "statistics" / f"{way}_bytes").read_text()) for way in ("tx", "rx"))


def add(exchange: Exchange) -> str:
    value = torch.randn(1, NUMBERS, generator=torch.Generator().manual_seed(exchange.rank))
    for _ in range(SUMS):
        reduction = Reduction(0)
        reduction.add({"theta": Mean(value, weight=float(exchange.rank + 1))}, torch.zeros(0, dtype=torch.long))
        total = reduction.total(exchange, exchange.agree(reduction.exponents()), exchange.world_size, CPU)
    return blake2b(total["theta"].numpy().tobytes()).hexdigest()


def measure(exchange: Exchange) -> dict[str, object]:
    exchange.transport(1, CPU)  # opened before anything is counted
    exchange.barrier()
    before = crossed()
    told = add(exchange)
    exchange.barrier()
    return {"bytes": crossed() - before, "checksum": told}


def rank(number: int, folder: Path) -> None:
    os.environ |= {"RANK": str(number), "WORLD_SIZE": str(RANKS * NODES)}
    torch.set_num_threads(1)
    exchange = Exchange.connect(CPU, 60.0)
    flat = Exchange(CPU, shares=False)
    found: dict[str, object] = {"flat": measure(flat), "shared": measure(exchange)}
    found["machine"] = [] if exchange._shared is None else exchange._shared.ranks
    config = configuration.load(None, settings("bayes_admm", *MODELS["mlp"]))
    done = Job(config, folder / "run", exchange, CPU, quiet=True).run(resume=False)
    found["run"] = None if done is None else done["checksum"]
    (folder / f"{number}.json").write_text(json.dumps(found))
    exchange.close()


def main(node: int, address: str, port: str, folder: Path) -> int:
    os.environ |= {"MASTER_ADDR": address, "MASTER_PORT": port}
    ranks = []
    for local in range(RANKS):
        if not (pid := os.fork()):
            rank(node * RANKS + local, folder)
            os._exit(0)
        ranks.append(pid)
    return max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3], Path(sys.argv[4])))
