"""Loops for elementwise work that eager tensors do in many passes over memory: in C for the CPU, in Triton for CUDA.

The source, kernels.c, is compiled on first use (half a second) and kept in the user's cache folder. Where there is no
compiler, or the tensors are not plain float32, callers do the same operations on tensors: the bits are the same, so a
run may move between machines with and without one. On CUDA the kernels are those of triton_kernels.py, if Triton is
installed; it is imported when the first tensor on CUDA comes. FEDDDP_KERNELS=off switches all of them off.

    if kernels.suit((mean, variance, noise, theta)):      # float32, contiguous, on a device that has kernels
        kernels.call("perturb", rows, n, ...)             # one launch
    else:
        ...                                               # the same with tensors

BACKENDS says who runs a kernel on which type of device. A test may add one, such as
BACKENDS["pretend"] = lambda name, *arguments: count_and_run(name, arguments); `in_c` runs any kernel on CPU tensors.
"""

import ctypes
import os
import platform
import re
import shutil
import stat
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Iterable
from functools import cache
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SOURCE = Path(__file__).with_name("kernels.c")
FLAGS = ["-O3", "-march=native", "-funroll-loops", "-fno-strict-aliasing"]
FLAGS += ["-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]  # none of these changes a result
SINCE = (3, 6)  # Triton before that takes small numbers for 0 in roots and quotients, whatever one asks for


@cache
def library() -> ctypes.CDLL | None:
    """The compiled kernels; None where they cannot be had."""
    if _off():
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


@cache
def triton() -> Callable[..., None] | None:
    """What runs a kernel on CUDA; None without Triton, with too old a one, or where it cannot launch anything."""
    if _off():
        return None
    try:
        found = import_module("triton")
        if tuple(int(part) for part in found.__version__.split(".")[:2]) < SINCE:
            return None
        ours = import_module("fedddp.core.triton_kernels")
    except ImportError:
        return None
    try:
        if torch.cuda.is_available():
            ours.probe("cuda")
    except Exception as error:  # no C compiler for its launcher, too old a GPU: whatever it is, tensors do the same
        warnings.warn(f"no fused kernels on this GPU: {error}", stacklevel=2)
        return None
    return ours.call


def has(kind: str) -> bool:
    """Whether there are kernels for a type of device."""
    if kind == "cpu":
        return library() is not None
    if kind == "cuda":
        return triton() is not None
    return kind in BACKENDS and not _off()


def suit(tensors: Iterable[Tensor]) -> bool:
    """Whether the kernels can take these tensors."""
    device = None
    for tensor in tensors:
        if tensor.dtype != torch.float32 or not tensor.is_contiguous():
            return False
        if device is None:
            device = tensor.device
        elif tensor.device != device:
            return False
    return device is not None and has(device.type)


def call(name: str, *arguments: Tensor | int | float) -> None:
    """A kernel by name, where the last of the tensors is: that one is never a table or an index."""
    for argument in reversed(arguments):
        if isinstance(argument, Tensor):
            kind = "cpu" if argument.is_cpu else argument.device.type  # the type costs as much as a kernel's call
            BACKENDS[kind](name, *arguments)
            break


def in_c(name: str, *arguments: Tensor | int | float) -> None:
    """A kernel on CPU tensors; adam_step, sgd_step and cross_entropy are torch's own."""
    special = SPECIAL.get(name)
    if special is None:
        _run(name, *arguments)
    else:
        special(*arguments)


def _in_triton(name: str, *arguments: Tensor | int | float) -> None:
    run = triton()
    assert run is not None  # as `suit` says
    run(name, *arguments)


BACKENDS: dict[str, Callable[..., None]] = {"cpu": in_c, "cuda": _in_triton}


def _run(name: str, *arguments: Tensor | int | float) -> None:
    """Tensors go as addresses, numbers as the C function declares them."""
    kernel, tensors = _typed.get(name) or _declare(name)
    given: list[Any] = list(arguments)
    for at in tensors:
        given[at] = given[at].data_ptr()
    kernel(*given)


_typed: dict[str, tuple[Any, list[int]]] = {}  # a kernel, and which of its arguments are tensors


def _declare(name: str) -> tuple[Any, list[int]]:
    """Tell ctypes what kernels.c says: a call is quicker then, and a number in the wrong place is refused."""
    found = re.search(rf"^void {name}\((.*?)\)", SOURCE.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    words = found[1].split(",")
    kernel = getattr(library(), name)
    kernel.restype, kernel.argtypes = None, [_type(word) for word in words]
    _typed[name] = kernel, [at for at, word in enumerate(words) if "*" in word]
    return _typed[name]


def _type(declared: str) -> type:
    if "*" in declared:
        return ctypes.c_void_p
    return ctypes.c_float if "float" in declared else ctypes.c_int64


def _perturb(rows: int, n: int, key: Tensor, draw: Tensor | int, *rest: Tensor | float) -> None:
    """The number of the draw may be a tensor, as on a GPU."""
    _run("perturb", rows, n, key, int(draw), *rest)


def _dropout(rows: int, n: int, key: Tensor, draw: Tensor | int, *rest: Tensor | int | float) -> None:
    """Likewise."""
    _run("dropout", rows, n, key, int(draw), *rest)


def _adam_step(rows: int, n: int, *arguments: Any) -> None:
    """torch's own step, which contracts where the processor can: its last bit may differ from triton_kernels.py."""
    *tensors, lr, beta1, beta2, decay, eps, decoupled = arguments
    kernel = torch._fused_adamw_ if decoupled else torch._fused_adam_
    settings = {"beta1": beta1, "beta2": beta2, "weight_decay": decay, "eps": eps, "amsgrad": False, "maximize": False}
    for row in range(rows):  # each has a learning rate of its own
        theta, grad, first, second, taken = ([tensor[row]] for tensor in tensors)
        kernel(theta, grad, first, second, [], taken, lr=float(lr[row]), **settings)


def _sgd_step(rows: int, n: int, *arguments: Any) -> None:
    """As Adam."""
    theta, grad, velocity, lr, momentum, nesterov, decay = arguments
    settings = {"weight_decay": decay, "momentum": momentum, "dampening": 0.0, "nesterov": bool(nesterov)}
    for row in range(rows):
        moving = [velocity[row]] if momentum else []
        options = {**settings, "lr": float(lr[row]), "maximize": False, "is_first_step": False}
        torch._fused_sgd_([theta[row]], [grad[row]], moving, **options)


def _cross_entropy(rows: int, n: int, logits: Tensor, target: Tensor, share: Any, *out: Tensor) -> None:
    """With tensors: on the CPU it is not faster in C, and callers there do this themselves."""
    losses, slope = out
    logs, index = logits.view(rows, n).log_softmax(1), target.view(rows, 1)
    by = share.view(rows, 1) if isinstance(share, Tensor) else share
    losses.view(rows, 1).copy_(logs.gather(1, index).neg_().mul_(by))
    slope.view(rows, n).copy_(logs.exp_().scatter_(1, index, -1.0, reduce="add").mul_(by))


SPECIAL: dict[str, Callable[..., None]] = {
    "perturb": _perturb,
    "dropout": _dropout,
    "adam_step": _adam_step,
    "sgd_step": _sgd_step,
    "cross_entropy": _cross_entropy,
}


def _off() -> bool:
    return os.environ.get("FEDDDP_KERNELS") == "off"


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
