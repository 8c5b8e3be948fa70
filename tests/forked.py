"""`fedddp ...` in processes that need not import anything: forked from the one that forks a sweep's ranks.

Each does what `python -m fedddp ...` does, alone or as one of the ranks that torchrun would start, in a tenth of a
second instead of three.
"""

import os
import tempfile
import traceback
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from fedddp.cli import main
from fedddp.jobs import pool
from fedddp.jobs.rendezvous import Place, join


@dataclass
class Forked:
    """A command at work, on one or more ranks."""

    ranks: Sequence[BaseProcess]
    folder: Path  # of what they print

    def wait(self) -> "Forked":
        for rank in self.ranks:
            rank.join(timeout=300)
            assert rank.exitcode is not None, f"{rank}: {self.stdout}\n{self.stderr}"
        return self

    @property
    def returncode(self) -> int | None:
        """The ranks' common one."""
        (code,) = {rank.exitcode for rank in self.ranks}
        return code

    @property
    def stdout(self) -> str:
        return self._read("out")

    @property
    def stderr(self) -> str:
        return self._read("err")

    def _read(self, kind: str) -> str:
        return "".join(path.read_text() for path in sorted(self.folder.glob(f"{kind}-*")))


def start(*words: object, ranks: int = 1, cwd: Path | None = None, **env: str) -> Forked:
    context, folder, attempt = pool.warm(), Path(tempfile.mkdtemp()), uuid.uuid4().hex
    processes = []
    for rank in range(ranks):
        place = Place(rank, ranks, rank, attempt, "localhost")
        work = ([*map(str, words)], place, folder, cwd or Path.cwd(), {**os.environ, **env})
        processes.append(context.Process(target=_main, args=work))
        processes[-1].start()
    return Forked(processes, folder)


def fedddp(*words: object, ranks: int = 1, cwd: Path | None = None) -> Forked:
    return start(*words, ranks=ranks, cwd=cwd).wait()


def _main(words: list[str], place: Place, folder: Path, cwd: Path, env: dict[str, str]) -> None:
    for number, kind in ((1, "out"), (2, "err")):
        with open(folder / f"{kind}-{place.rank}", "w") as file:
            os.dup2(file.fileno(), number)
    os.chdir(cwd)
    os.environ.clear()
    os.environ |= env
    kept = join(folder, place)
    main(words)
    del kept


def call(function: Callable[..., Any], *args: object, patience: float = 300.0) -> Any:
    """What a function returns in a process that has done nothing yet: forking from a test's own may hang."""
    context = pool.warm()
    ours, theirs = context.Pipe()
    process = context.Process(target=_call, args=(theirs, function, args))
    process.start()
    theirs.close()
    assert ours.poll(patience), f"{function} gave no answer in {patience} s"
    value, error = ours.recv()
    process.join()
    assert not error, error
    return value


def _call(pipe: Connection, function: Callable[..., Any], args: tuple[object, ...]) -> None:
    try:
        pipe.send((function(*args), ""))
    except Exception:
        pipe.send((None, traceback.format_exc()))
