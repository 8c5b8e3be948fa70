"""A device that is none: its tensors compute on the CPU, but do not mix with the CPU's, as a GPU's do not.

`python -m tests.pretend METHOD...` runs each method there and on the CPU, and prints both checksums: what would fail on
a GPU because a tensor or a generator lies in the wrong place fails here. Kernels, streams and nccl need a real one.
"""

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from fedddp import config as configuration
from fedddp.exchange import Exchange, Sockets
from fedddp.job import Job
from tests.small import MODELS, settings

aten, CPU, NAME = torch.ops.aten, torch.device("cpu"), "pretend"
MOVES = {aten.copy_.default, aten._foreach_copy_.default, aten._to_copy.default}
NUMBERS = {aten._local_scalar_dense.default, aten.equal.default}


class Pretend(Tensor):
    """A tensor of the device, around one of the CPU."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> "Pretend":
        shape = {"strides": inner.stride(), "storage_offset": inner.storage_offset(), "dtype": inner.dtype}
        made = Tensor._make_wrapper_subclass(cls, inner.size(), device=torch.device(NAME, 0), **shape)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return _compute(function, args, kwargs or {})

    def tolist(self):
        return self.inner.tolist()


class Device(TorchDispatchMode):
    """Sees calls that make tensors, too."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return _compute(function, args, kwargs or {})


def _compute(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    given = tree_leaves((args, kwargs))
    ours = {id(x.inner): x for x in given if isinstance(x, Pretend)}
    theirs = {id(x): x for x in given if isinstance(x, Tensor) and not isinstance(x, Pretend)}
    wanted = kwargs.get("device")
    here = torch.device(wanted).type == NAME if wanted is not None else bool(ours)
    if function not in MOVES:
        _refuse_mixture(function, args, given, bool(ours), here)
    plain = dict(tree_map(_inner, kwargs)) | ({"device": CPU} if wanted is not None else {})
    result = function(*tree_map(_inner, args), **plain)
    if function in NUMBERS:
        return result
    known = {**theirs, **ours}  # what was changed in place comes back as itself
    return tree_map(lambda x: known.get(id(x), Pretend(x) if here else x) if isinstance(x, Tensor) else x, result)


def _refuse_mixture(function: Any, args: Any, given: list[Any], ours: bool, here: bool) -> None:
    """As CUDA does: a number may come from the CPU, and indices of a tensor on the device."""
    if here and any(isinstance(x, torch.Generator) for x in given):
        raise RuntimeError(f"{function}: a generator of the CPU for a tensor of the device")
    strangers = [x for x in given if isinstance(x, Tensor) and not isinstance(x, Pretend) and x.dim() > 0]
    if "index" in function.__name__ and "select" not in function.__name__ and len(args) > 1:
        indices = tree_leaves(args[1])
        strangers = [x for x in strangers if not any(x is index for index in indices)]
    if ours and strangers:
        raise RuntimeError(f"{function}: tensors of the device and of the CPU")


def _inner(value: Any) -> Any:
    return value.inner if isinstance(value, Pretend) else value


def _through_cpu(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """torch.tensor and torch.as_tensor make their tensors out of a mode's sight."""

    def made(value, *args, device=None, **options):
        if device is None or torch.device(device).type != NAME:
            return make(value, *args, **options)
        return value.to(device, **options) if isinstance(value, Tensor) else make(value, *args, **options).to(device)

    return made


def main(methods: list[str]) -> None:
    _setup_privateuseone_for_python_backend(NAME)
    torch.as_tensor, torch.tensor = _through_cpu(torch.as_tensor), _through_cpu(torch.tensor)
    torch.set_num_threads(1)
    exchange, add = Exchange.connect(CPU), Sockets.start
    Sockets.start = lambda road, *piece: (lambda: None) if road.source.device.type == NAME else add(road, *piece)
    for method in methods:
        words = settings(method, *MODELS["mlp"], "federation.rounds=1", "federation.participation=0.6")
        config, sums = configuration.load(None, words), []
        with tempfile.TemporaryDirectory() as folder:
            sums.append(Job(config, Path(folder, "cpu"), exchange, CPU, quiet=True).run(False)["checksum"])
            with Device():
                job = Job(config, Path(folder, NAME), exchange, torch.device(NAME, 0), quiet=True)
                sums.append(job.run(False)["checksum"])
        print(json.dumps([method, *sums]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
