"""Ranks of torchrun are killed at random moments; torchrun starts new ones, and the run ends with the same bits.

    python -m tests.soak.restarts --kills 20 --agents 1        # one torchrun
    python -m tests.soak.restarts --kills 20 --agents 2        # two, as on two machines, that meet through c10d

A row for each kill says when it came, when the last of the old ranks was gone, and when all new ones were there. Half
of the kills come while the new ranks still start. An attempt that fails without being killed counts as a failure.
"""

import argparse
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.jobs.command import SMALL, environment

TIMEOUT = 20  # federation.timeout
SLACK = 10.0  # seconds beyond it, on a busy machine
START = 120.0  # seconds that new ranks may take, or a round
END = 240.0  # seconds for the rest of the run
PACE = "0.2"  # seconds of a gradient, while there is something to kill
WORDS = ["run", *SMALL, "federation.rounds=300", "checkpoint.every=1", "evaluation.histograms=0"]
WORDS += [f"federation.timeout={TIMEOUT}", "--resume"]
RANK = re.compile(rb"(?:^|\0)RANK=(\d+)")


@dataclass
class Row:
    kill: int
    rank: int  # that was killed
    after: float  # seconds after it started
    round: int  # that was done then
    gone: float = float("nan")  # seconds until no rank of the attempt was left
    back: float = float("nan")  # seconds until all new ones had started
    outcome: str = "went on"

    def __str__(self) -> str:
        return (
            f"{self.kill:4d}  {self.rank:4d}  {self.after:7.2f}  {self.round:5d}  {self.gone:6.2f}  {self.back:6.2f}"
            f"  {self.outcome}"
        )


HEAD = "kill  rank    after  round    gone    back  outcome"


@dataclass
class Soak:
    folder: Path
    agents: int = 1
    per_agent: int = 2
    seed: int = 0
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    @property
    def out(self) -> Path:
        return self.folder / "run"

    def run(self, kills: int, say: Callable[[object], None] = lambda _: None) -> tuple[list[Row], str]:
        """The rows, and the final checksum."""
        chance, pace = random.Random(self.seed), self.folder / "pace"
        pace.write_text(PACE)
        with self._launched(kills):
            ranks = self._await_new({})
            for number in range(kills):
                row, ranks = self._kill(number, ranks, chance)
                self.rows.append(row)
                say(row)
            pace.write_text("0")
            self._end(ranks)
        return self.rows, json.loads((self.out / "summary.json").read_text())["checksum"]

    def _kill(self, number: int, ranks: dict[int, int], chance: random.Random) -> tuple[Row, dict[int, int]]:
        """Kill one at a random moment: as they start, or within some rounds."""
        began = time.monotonic()
        if number % 2 == 0:
            self._await(lambda: self._round() > 0 and self._moves(ranks), f"a round of attempt {number}", START)
        time.sleep(chance.uniform(0.0, 4.0))
        assert self._ranks() == ranks, f"an attempt failed that nobody killed: {self.log()[-3000:]}"
        victim = chance.choice(sorted(ranks))
        row = Row(number + 1, victim, time.monotonic() - began, self._round())
        os.kill(ranks[victim], signal.SIGKILL)
        start = time.monotonic()
        self._await(lambda: not any(map(alive, ranks.values())), "the old ranks to end", TIMEOUT + 60)
        row.gone = time.monotonic() - start
        found = self._await_new(ranks)
        row.back = time.monotonic() - start
        if row.gone > TIMEOUT + SLACK:
            row.outcome = "a rank waited too long"
        return row, found

    def _moves(self, ranks: dict[int, int]) -> bool:
        """Whether these ranks have written a round: the file is younger than they are."""
        assert all(map(alive, ranks.values())), f"an attempt failed that nobody killed: {self.log()[-3000:]}"
        newest = max(Path(f"/proc/{pid}").stat().st_ctime for pid in ranks.values())
        return (self.out / "metrics.jsonl").stat().st_mtime > newest

    def _end(self, ranks: dict[int, int]) -> None:
        self._await(lambda: all(agent.poll() is not None for agent in self.started), "the end of the run", END)
        codes = [agent.returncode for agent in self.started]
        assert codes == [0] * self.agents, f"torchrun ended with {codes}: {self.log()[-3000:]}"
        assert not self._ranks()
        assert not any(map(alive, ranks.values()))

    @contextmanager
    def _launched(self, kills: int) -> Iterator[None]:
        env = environment(SLOW=str(self.folder / "pace"), OMP_NUM_THREADS="1")
        port = free_port()
        try:
            for number in range(self.agents):
                with open(self.folder / f"agent-{number}.log", "wb") as log:
                    command = [*self._torchrun(number, port, kills), "-m", "fedddp", *WORDS, "--out", str(self.out)]
                    self.started.append(subprocess.Popen(command, env=env, stdout=log, stderr=log))
            yield
        finally:
            ours = [*self._ranks().values()]
            for agent in self.started:
                if agent.poll() is None:
                    agent.kill()
                agent.wait()
            for pid in filter(alive, ours):
                os.kill(pid, signal.SIGKILL)

    def _torchrun(self, number: int, port: int, kills: int) -> list[str]:
        words = ["-m", "torch.distributed.run", f"--nproc-per-node={self.per_agent}", f"--max-restarts={kills + 2}"]
        if self.agents == 1:
            return [sys.executable, *words, f"--master-port={port}"]
        words += [f"--nnodes={self.agents}", "--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{port}"]
        words += ["--rdzv-id=soak", f"--rdzv-conf=is_host={'true' if number == 0 else 'false'}"]
        return [sys.executable, *words, "--local-addr=localhost"]

    def _await_new(self, old: dict[int, int]) -> dict[int, int]:
        """Rank -> process id of an attempt that is there as a whole."""
        world = set(range(self.agents * self.per_agent))
        found: dict[int, int] = {}

        def complete() -> bool:
            nonlocal found
            found = {rank: pid for rank, pid in self._ranks().items() if pid not in old.values()}
            return set(found) == world

        self._await(complete, "new ranks", START)
        return found

    def _ranks(self) -> dict[int, int]:
        found = {}
        for agent in self.started:
            for pid in children(agent.pid):
                rank = RANK.search(_read(f"/proc/{pid}/environ"))
                if rank and alive(pid):
                    found[int(rank[1])] = pid
        return found

    def _round(self) -> int:
        lines = _read(str(self.out / "metrics.jsonl")).splitlines()
        try:
            return int(json.loads(lines[-1])["round"]) if lines else 0
        except ValueError:  # half a line
            return len(lines) - 1

    def _await(self, true: Callable[[], object], what: str, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not true():
            ended = [agent.returncode for agent in self.started if agent.poll()]
            assert not ended, f"torchrun ended with {ended}: {self.log()[-3000:]}"
            assert time.monotonic() < until, f"waited {seconds:.0f} s for {what}: {self.log()[-3000:]}"
            time.sleep(0.02)

    def log(self) -> str:
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("agent-*.log")))


def whole(folder: Path) -> str:
    """The checksum of the run that nobody interrupts."""
    out = folder / "whole"
    command = [sys.executable, "-m", "fedddp", *WORDS, "--ranks", "1", "--out", str(out)]
    subprocess.run(command, env=environment(OMP_NUM_THREADS="1"), check=True, capture_output=True, timeout=END)
    checksum: str = json.loads((out / "summary.json").read_text())["checksum"]
    return checksum


def children(pid: int) -> list[int]:
    return [int(child) for task in Path(f"/proc/{pid}/task").glob("*") for child in _read(f"{task}/children").split()]


def alive(pid: int) -> bool:
    """Neither gone nor waiting to be collected by its parent."""
    stat = _read(f"/proc/{pid}/stat")
    return bool(stat) and stat.rpartition(b")")[2].split()[0] not in (b"Z", b"X")


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--agents", type=int, default=1)
    parser.add_argument("--per-agent", type=int, help="ranks of each (default: two in all)")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        expected = whole(Path(name))
        print(HEAD, flush=True)
        soak = Soak(Path(name), given.agents, given.per_agent or max(1, 2 // given.agents), given.seed)
        rows, checksum = soak.run(given.kills, lambda row: print(row, flush=True))
    good = sum(row.outcome == "went on" for row in rows)
    print(f"{good} of {given.kills} went on; longest wait of a rank {max(row.gone for row in rows):.1f} s")
    print(f"checksum {checksum}, uninterrupted {expected}")
    return 0 if good == given.kills and checksum == expected else 1


if __name__ == "__main__":
    sys.exit(main())
