"""Loops in C for elementwise work that eager tensors do in many passes over memory.

The source, kernels.c, is compiled on first use (half a second) and kept in the user's cache folder. Where there is no
compiler, or the tensors are not plain float32 on the CPU, callers do the same operations on tensors: the bits are the
same, so a run may move between machines with and without one. FEDDDP_KERNELS=off never compiles.
"""

import ctypes
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterable
from functools import cache
from hashlib import blake2b
from pathlib import Path

import torch
from torch import Tensor

SOURCE = Path(__file__).with_name("kernels.c")
FLAGS = ["-O3", "-march=native", "-funroll-loops", "-fno-strict-aliasing"]
FLAGS += ["-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]  # none of these changes a result


@cache
def library() -> ctypes.CDLL | None:
    """The compiled kernels; None where they cannot be had."""
    if os.environ.get("FEDDDP_KERNELS") == "off":
        return None
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        return None
    for folder in _folders():
        try:
            return ctypes.CDLL(str(_compiled(compiler, folder)))
        except (OSError, subprocess.CalledProcessError):
            continue  # a full or read-only disk, a strange compiler, another's files: eager tensors do the same
    return None


def suit(tensors: Iterable[Tensor]) -> bool:
    """Whether the kernels can take these tensors."""
    plain = all(t.device.type == "cpu" and t.dtype == torch.float32 and t.is_contiguous() for t in tensors)
    return plain and library() is not None


def call(name: str, *arguments: Tensor | int | float) -> None:
    """A kernel by name: tensors go as addresses, integers as 64 bits, floats as 32."""
    kernel = getattr(library(), name)
    kernel.restype = None
    kernel(*(_as_c(argument) for argument in arguments))


def _as_c(argument: Tensor | int | float) -> object:
    if isinstance(argument, Tensor):
        return ctypes.c_void_p(argument.data_ptr())
    return ctypes.c_int64(argument) if isinstance(argument, int) else ctypes.c_float(argument)


def _folders() -> list[Path]:
    """Where to keep them: the user's cache, or a place that lasts as long as the machine runs."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return [home / "fedddp", Path(tempfile.gettempdir()) / f"fedddp-{os.getuid()}"]


def _compiled(compiler: str, folder: Path) -> Path:
    """Compile once for each source, compiler and kind of processor (a cluster's nodes may share the folder)."""
    made = folder / f"kernels-{_fingerprint(compiler)}.so"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    _own(folder)
    if not made.exists():
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            fresh = Path(scratch) / made.name
            command = [compiler, *FLAGS, "-shared", "-fPIC", "-o", str(fresh), str(SOURCE), "-lm"]
            subprocess.run(command, check=True, capture_output=True)
            fresh.chmod(0o700)  # whatever the umask says
            fresh.replace(made)  # whole or not at all, whichever rank is first
    _own(made)
    return made


def _own(path: Path) -> None:
    """Refuse what somebody else made, or could change: a library is code, and /tmp is everybody's."""
    about = path.lstat()
    if about.st_uid != os.getuid() or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH) or stat.S_ISLNK(about.st_mode):
        raise PermissionError(f"{path}: belongs to another user, or others may write to it")


def _fingerprint(compiler: str) -> str:
    about = Path("/proc/cpuinfo")
    lines = about.read_text().splitlines() if about.exists() else [platform.processor()]
    processor = next((line for line in lines if line.startswith(("flags", "Features"))), lines[0])
    identity = [SOURCE.read_text(), compiler, *FLAGS, platform.machine(), processor]
    return blake2b("\n".join(identity).encode(), digest_size=8).hexdigest()
