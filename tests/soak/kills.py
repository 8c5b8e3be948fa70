"""Runs of every method with memory are killed at random moments, by every launcher, and end with the same bits.

    python -m tests.soak.kills --kills 160                      # about ten for each method; half an hour
    python -m tests.soak.kills --methods pvi --launchers run python --kills 6

Every method has one run. It is started by one launcher after another on one to three ranks, killed (one process, the
launcher, or all of them; as it starts, or within some rounds), and resumed by the next launcher on another number of
ranks, until its share of the kills is used up; then it runs to its end. Said of each kill: where it came, how long the
rest of the job lived on, and what was left. Said at the end: whether the server's checksum is that of a run which
nobody interrupted, whether each round stands in the records once, and which files were left behind.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import ClassVar

from fedddp.checks.small import SETTINGS
from fedddp.config import loading as configuration
from tests.jobs.command import SLOW, environment
from tests.soak.restarts import alive, free_port

# Every method that keeps a row per client, and three whose solver does (local.keep).
METHODS = ["scaffold", "fedcurv", "fednl", "fedfisher", "fedbens", "local", "fedavg"]
METHODS += ["federated_admm", "fedadmm", "feddyn", "fedlap", "fedlap_cov", "fedlap_func"]
METHODS += ["pvi", "bayes_admm", "bregman_admm", "fedep", "fedgvi", "pfedbayes", "ditto"]
METHODS += ["preconditioned_admm", "fedlap_func_cov", "ba_bfl", "fedivon"]
METHODS += ["fald", "vr_fald"]  # whose server keeps chains
METHODS += [
    "fedavg method.personal=[body.3]",
    "fedprox evaluation.clients=server evaluation.personal=1",
]  # further settings may follow a method
TIMEOUT = 20  # federation.timeout
SLACK = 40.0  # torchrun gives a stopped rank 30 s of its own; and the machine is busy
START = 180.0  # seconds until the first round of an attempt
END = 1500.0  # seconds of the whole run without a sleep
PACE = "0.15"  # seconds of a forward pass, while there is something to kill
ROUNDS = 200
WORDS = ["data.test_fraction=0.8", "split=iid", "split.clients=5", "local.epochs=1", "local.batch_size=64"]
WORDS += [f"model={SLOW}:Slow", "evaluation.every=20", "evaluation.histograms=0", "federation.cohort_width=2"]
WORDS += [f"federation.timeout={TIMEOUT}", "checkpoint.every=1", f"federation.rounds={ROUNDS}", "local.keep=true"]
WORDS += ["federation.participation=0.7"]
STABLE = {  # 200 rounds on these few examples
    "bregman_admm": ["method.delta=100"],
    "fedep": ["method.pseudo_samples=100"],
    "preconditioned_admm": ["method.rho=1"],
}
SCRIPT = """
import sys, yaml, fedddp
pairs = (word.split("=", 1) for word in sys.argv[3:])
fedddp.run(settings={key: yaml.safe_load(value) for key, value in pairs}, folder=sys.argv[1], ranks=int(sys.argv[2]))
"""


def settings(method: str) -> list[str]:
    name, *more = method.split()
    words = [f"method={name}", *SETTINGS.get(name, []), *STABLE.get(name, []), *WORDS, *more]
    try:
        configuration.load(None, words)
    except ValueError:  # a solver without memory, or that does not know of epochs
        words = [word for word in words if word.partition("=")[0] not in ("local.keep", "local.epochs")]
    return words


@dataclass
class Launch:
    """A job of one launcher: what it takes to start it on so many ranks, with the marker in all its processes."""

    words: list[str]
    out: Path
    env: dict[str, str]
    log: Path

    def run(self, ranks: int) -> None:
        self._start("-m", "fedddp", "run", *self.words, "--ranks", str(ranks), "--out", str(self.out), "--resume")

    def torchrun(self, ranks: int) -> None:
        torchrun = ["-m", "torch.distributed.run", f"--nproc-per-node={ranks}", f"--master-port={free_port()}"]
        self._start(*torchrun, "-m", "fedddp", "run", *self.words, "--out", str(self.out), "--resume")

    def python(self, ranks: int) -> None:
        self._start("-c", SCRIPT, str(self.out), str(ranks), *self.words)

    def slurm(self, ranks: int) -> None:
        """Two nodes where there are two ranks or more; retries=0: the next launcher goes on, not Slurm."""
        profile = {"partition": "main", "time": 30, "memory": 1, "gloo_interface": "lo", "retries": 0}
        exports = [f"export {name}={self.env[name]}" for name in ("SLOW", "SOAK", "TMPDIR")]
        path = self.log.with_suffix(".yaml")
        path.write_text(json.dumps(profile | {"setup": exports}))
        where = ["--nodes", str(min(ranks, 2)), "--ranks", str(2 * (ranks // 2) or 1)]
        command = ["-m", "fedddp", "submit", *self.words, *where, "--cluster", "slurm", "--profile", str(path)]
        unmarked = {name: value for name, value in self.env.items() if name != "SOAK"}
        done = subprocess.run(
            [sys.executable, *command, "--out", str(self.out.parent)], env=unmarked, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def _start(self, *command: str) -> None:
        with open(self.log, "ab") as log:
            subprocess.Popen([sys.executable, *command], env=self.env, stdout=log, stderr=log, start_new_session=True)


LAUNCHERS = ("run", "torchrun", "python", "slurm")


@dataclass
class Row:
    method: str
    launcher: str
    ranks: int
    killed: str = "-"
    after: float = float("nan")  # seconds from the start to the kill
    round: int = 0  # that was done then
    gone: float = float("nan")  # seconds until no process of the job was left
    orphans: int = 0  # that lived on beyond the time-out, and were ended by us

    HEAD: ClassVar[str] = "method           launcher  ranks  killed    after  round   gone  orphans"

    def __str__(self) -> str:
        return (
            f"{self.method:16} {self.launcher:9} {self.ranks:5}  {self.killed:8} {self.after:6.2f}  {self.round:5}  "
            f"{self.gone:5.2f}  {self.orphans:7}"
        )


@dataclass
class Outcome:
    method: str
    kills: int
    checksum: str
    expected: str
    rounds_once: bool
    left: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return self.checksum == self.expected and self.rounds_once and not self.left

    def __str__(self) -> str:
        same = "same bits" if self.checksum == self.expected else f"OTHER BITS than {self.expected}"
        once = "each round once" if self.rounds_once else "ROUNDS MISSING OR TWICE"
        return (
            f"= {self.method}: {self.kills} kills, {self.checksum} {same}, {once}, left: {', '.join(self.left) or '-'}"
        )


@dataclass
class Soak:
    """One method's run, killed again and again."""

    folder: Path
    method: str
    chance: random.Random

    def __post_init__(self) -> None:
        self.words = settings(self.method)
        self.out = self.folder / "runs" / configuration.load(None, self.words).folder_name
        self.temporary = self.folder / "tmp"
        self.temporary.mkdir(parents=True)
        self.marker = f"{self.folder.name}-{self.chance.random():.6f}"
        marks = {"SLOW": str(self.folder / "pace"), "SOAK": self.marker, "TMPDIR": str(self.temporary)}
        self.launch = Launch(self.words, self.out, environment(OMP_NUM_THREADS="1", **marks), self.folder / "log")

    def kill(self, launcher: str, number: int) -> Row:
        """Start, wait for a random moment, kill, and wait until nothing of it is left."""
        row = Row(self.method, launcher, self.chance.randint(1, 3))
        self.pace(PACE)
        before = self.round()
        began = time.monotonic()
        getattr(self.launch, launcher)(row.ranks)  # one of LAUNCHERS, each a method of Launch
        self.await_(self.processes, "its processes", START)
        if number % 2:
            self.await_(lambda: self.round() > before or self.finished(), "a round", START)
        time.sleep(self.chance.uniform(0.0, 6.0))
        row.after, row.round = time.monotonic() - began, self.round()
        assert not self.finished(), f"{self.method} ended before it was killed: give it more rounds"
        row.killed = self.strike()
        struck = time.monotonic()
        while self.processes() and time.monotonic() < struck + TIMEOUT + SLACK:
            time.sleep(0.05)
        row.gone = time.monotonic() - struck
        row.orphans = self.end_all()
        return row

    def strike(self) -> str:
        """SIGKILL to one process, to the one that started the others, or to all."""
        found = self.processes()
        assert found, f"{self.method}: nothing there to kill; {self.log()}"
        kind = self.chance.choice(["one", "first", "all"])
        ranks = [pid for pid in found if is_python(pid)] or found  # srun's helper and shells are not missed
        victims = {"one": [self.chance.choice(ranks)], "first": found[:1], "all": found}[kind]
        for pid in victims:
            send(pid, signal.SIGKILL)
        return kind

    def finish(self, ranks: int, kills: int, expected: str) -> Outcome:
        self.pace("0")
        self.launch.run(ranks)
        self.await_(self.finished, "its end", END)
        self.await_(lambda: not self.processes(), "its processes to go", 60)
        lines = (self.out / "metrics.jsonl").read_text().splitlines()
        once = [json.loads(line)["round"] for line in lines] == list(range(1, ROUNDS + 1))
        checksum = json.loads((self.out / "summary.json").read_text())["checksum"]
        return Outcome(self.method, kills, checksum, expected, once, self.left())

    def left(self) -> list[str]:
        """What is there beyond what an uninterrupted run leaves: in the temporary folder, and beside the run."""
        whole = {path.name for path in (self.folder / "whole").iterdir()}
        wanted = ("events.out", "log", "submitit", "traceback", ".rendezvous", "ticket", ".submitit", "job")
        files = [path.name for path in self.out.iterdir() if path.name not in whole]
        files = [name for name in files if not name.startswith(wanted)]
        files += [f"checkpoints/{path.name}" for path in (self.out / "checkpoints").iterdir() if path.suffix]
        kept = ("fedddp-", "torchelastic_", "torchinductor_")  # our compiled kernels; what torch leaves
        return files + [f"TMPDIR/{path.name}" for path in self.temporary.iterdir() if not path.name.startswith(kept)]

    def whole(self) -> str:
        """The checksum of the run that nobody interrupts."""
        self.pace("0")
        out = self.folder / "whole"
        command = [sys.executable, "-m", "fedddp", "run", *self.words, "--ranks", "1", "--out", str(out)]
        done = subprocess.run(command, env=self.launch.env, capture_output=True, text=True, timeout=END)
        assert done.returncode == 0, done.stderr
        checksum: str = json.loads((out / "summary.json").read_text())["checksum"]
        return checksum

    def processes(self) -> list[int]:
        """All that carry the marker, whoever started them; the oldest first."""
        marker, found = f"SOAK={self.marker}".encode(), []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if marker in (path / "environ").read_bytes().split(b"\0") and alive(int(path.name)):
                    found.append((started(path), int(path.name)))
            except OSError:
                continue
        return [pid for _, pid in sorted(found)]

    def end_all(self) -> int:
        found = self.processes()
        for pid in found:
            send(pid, signal.SIGKILL)
        return len(found)

    def round(self) -> int:
        try:
            return (self.out / "metrics.jsonl").read_bytes().count(b"\n")
        except OSError:
            return 0

    def finished(self) -> bool:
        return (self.out / "summary.json").exists()

    def pace(self, seconds: str) -> None:
        (self.folder / "pace").write_text(seconds)

    def await_(self, true: Callable[[], object], what: str, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < until, f"{self.method}: waited {seconds:.0f} s for {what}; {self.log()}"
            time.sleep(0.05)

    def log(self) -> str:
        logs = [self.launch.log, *self.out.glob("**/*.out"), *self.out.glob("**/*.err")]
        return "\n".join(path.read_text(errors="replace")[-2000:] for path in logs if path.exists())


def started(path: Path) -> tuple[int, int]:
    """When a process of /proc began, in clock ticks, then its id: srun's helper is as old as srun."""
    return int((path / "stat").read_text().rpartition(")")[2].split()[19]), int(path.name)


def is_python(pid: int) -> bool:
    try:
        return "python" in os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return False


def send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


@contextmanager
def sandbox(wanted: bool) -> Iterator[None]:
    """A Slurm of two nodes."""
    if not wanted:
        yield
        return
    script = Path(__file__).parents[2] / "slurm" / "sandbox"
    folder = tempfile.mkdtemp(prefix="slurm-")  # short: unix sockets
    os.environ |= {"SLURM_SANDBOX_DIR": folder, "SLURM_SANDBOX_NODES": "2"}
    try:
        for word in ("install", "start"):
            subprocess.run([script, word], check=True, capture_output=True)
        os.environ["SLURM_CONF"] = f"{folder}/etc/slurm.conf"
        yield
    finally:
        subprocess.run([script, "stop", "--purge"], check=False, capture_output=True)
        shutil.rmtree(folder, ignore_errors=True)


def soak(methods: Sequence[str], launchers: Sequence[str], kills: int, seed: int) -> tuple[list[Row], list[Outcome]]:
    rows, outcomes, turn = [], [], cycle(launchers)
    for index, method in enumerate(methods):
        share = kills * (index + 1) // len(methods) - kills * index // len(methods)
        with tempfile.TemporaryDirectory(prefix="soak-") as name:
            one = Soak(Path(name), method, random.Random(f"{seed} {method}"))
            try:
                expected = one.whole()
                for number in range(share):
                    rows.append(one.kill(next(turn), number))
                    print(rows[-1], flush=True)
                outcomes.append(one.finish(1 + index % 3, share, expected))
                print(outcomes[-1], flush=True)
            finally:
                one.end_all()
    return rows, outcomes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=160)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--launchers", nargs="+", default=LAUNCHERS, choices=LAUNCHERS)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    print(Row.HEAD, flush=True)
    with sandbox("slurm" in given.launchers):
        rows, outcomes = soak(given.methods, given.launchers, given.kills, given.seed)
    orphans, longest = sum(row.orphans for row in rows), max(row.gone for row in rows)
    good = sum(outcome.good for outcome in outcomes)
    print(f"{len(rows)} kills; {good} of {len(outcomes)} runs whole; {orphans} orphans; gone within {longest:.1f} s")
    return 0 if good == len(outcomes) and not orphans else 1


if __name__ == "__main__":
    sys.exit(main())
