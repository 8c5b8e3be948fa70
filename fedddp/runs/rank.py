"""This process as one rank of a run, and what its end says: one line for an error, a traceback only if asked for."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the command line imports this module, and torch takes two seconds
    from fedddp.config.loading import Config

STOPPED = 130  # exit code of a run that was asked to stop and wrote its checkpoint


def work(config: "Config", out: Path, resume: bool) -> int:
    """Meet the other ranks, if there are any, and take part in the run; the exit code."""
    summary = take_part(config, out, resume)
    if summary is not None and os.environ.get("RANK", "0") == "0":
        _print(summary, out)
    return 0 if summary is not None else STOPPED


def take_part(config: "Config", out: Path, resume: bool, quiet: bool = False) -> dict[str, Any] | None:
    """The summary; None if the run was asked to stop."""
    import torch

    from fedddp.core.device import own_device
    from fedddp.exchange.group import Exchange
    from fedddp.runs.job import Job
    from fedddp.runs.stop import Stop

    end_with_parent()
    stop, threads = Stop(), torch.get_num_threads()
    with stop.listening():
        torch.set_num_threads(config.federation.threads)
        keep_memory()
        device = own_device(config.federation.deterministic, config.federation.tf32)
        exchange = Exchange.connect(device, config.federation.timeout, lambda: stop.asked)
        if exchange.through_host and exchange.rank == 0 and not quiet:
            gpus = torch.cuda.device_count()
            print(f"more ranks than GPUs ({gpus} here): sums go through the host, by gloo", file=sys.stderr, flush=True)
        try:
            summary = Job(config, out, exchange, device, quiet, stop).run(resume)
        except BaseException as error:
            if exchange.world_size == 1:  # nobody to wait for: the next run of this process opens a world of its own
                exchange.close()
            elif not _known_to_all(error):
                exchange.leave(_one_line(error))
            raise
        finally:
            torch.set_num_threads(threads)
        exchange.close()
        return summary


def attempt(call: Callable[[], int], debug: bool = False) -> int:
    """The exit code of `call`: 2 for a mistake of the user's, 1 for a failure, each with its line."""
    try:
        return call()
    except BrokenPipeError:  # the reader of our output left: `fedddp list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return STOPPED
    except Exception as error:
        if debug:
            raise
        if speaks(error):
            print(f"fedddp: {_one_line(error)}", file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 1


def speaks(error: Exception) -> bool:
    """What all ranks know alike, rank 0 says; what only one rank knows, that rank says; who is lost, one that found."""
    from fedddp.exchange.group import RankLost

    if isinstance(error, RankLost):  # rank 0 may be the one that is lost
        return error.speaks
    shared = _known_to_all(error) or isinstance(error, ValueError)
    return not shared or os.environ.get("RANK", "0") == "0"


def _known_to_all(error: BaseException) -> bool:
    from fedddp.exchange.group import PeerFailed, RankLost
    from fedddp.rounds.failures import Failed

    return isinstance(error, PeerFailed | Failed | RankLost)


def _one_line(error: BaseException) -> str:
    from fedddp.core.trace import spot

    text = " ".join(str(error).split()) or "failed"
    ours = isinstance(error, ValueError | OSError) or (
        isinstance(error, RuntimeError) and type(error) is not RuntimeError
    )
    return text if ours else f"{type(error).__name__}: {text} ({spot(error)}; --debug shows the whole trace)"


def _print(summary: dict[str, Any], out: Path) -> None:
    metrics = "  ".join(f"{k} {summary[k]:.4f}" for k in ("accuracy", "nll", "ece", "rmse") if k in summary)
    print(
        f"{summary['method']}: {summary['rounds']} rounds in {summary['seconds']:.1f} s on "
        f"{summary['world_size']} rank(s)  {metrics}  checksum {summary['checksum']}\n{out}"
    )


def keep_memory() -> None:
    """Let malloc use large blocks again instead of returning them to the kernel, whose fresh pages are slow (glibc).

    A freed block serves later tensors, so the peak stays what it was. Writing to 40 MB of new pages takes 28 ms, to
    used ones 3 ms.
    """
    libc = ctypes.CDLL(None)
    try:
        mallopt = libc.mallopt
    except AttributeError:  # not glibc
        return
    mmap_threshold, trim_threshold = -3, -1
    mallopt(mmap_threshold, 2**30)
    mallopt(trim_threshold, 2**31 - 1)


def end_with_parent() -> None:
    """Ask the kernel for SIGTERM when the launcher dies, so that no rank is left behind (Linux).

    The kernel says nothing of a launcher that died before it was asked; a rank of a world of one would then run to
    its end by itself. What adopts such a process (init, systemd, slurmstepd) is no Python program of the same user,
    which some ancestor of a rank is as long as its launcher lives.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ and sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, int(signal.SIGTERM))
        if not any(map(_is_python, _ancestors())):
            raise ProcessLookupError("the launcher that started this rank is gone: start the job again with --resume")


def _ancestors() -> Iterator[int]:
    pid = os.getppid()
    while pid > 0:
        yield pid
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):  # gone meanwhile, or not to be seen
            return


def _is_python(pid: int) -> bool:
    try:
        return "python" in os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:  # another user's, or gone
        return False
