"""A device that is none: its tensors compute on the CPU, but do not mix with the CPU's, as a GPU's do not.

What would fail on a GPU because a tensor or a generator lies in the wrong place fails here. Kernels, streams and nccl
need a real one.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from fedddp.config.loading import Config
from fedddp.exchange.group import Exchange, Sockets
from fedddp.runs.job import Job

aten, CPU, NAME = torch.ops.aten, torch.device("cpu"), "pretend"
MOVES = {aten.copy_.default, aten._foreach_copy_.default, aten._to_copy.default}
NUMBERS = {aten._local_scalar_dense.default, aten.equal.default}


class Pretend(Tensor):
    """A tensor of the device, around one of the CPU."""

    held: Tensor

    @staticmethod
    def __new__(cls: type, held: Tensor) -> "Pretend":
        shape: dict[str, Any] = {"strides": held.stride(), "storage_offset": held.storage_offset(), "dtype": held.dtype}
        made: Pretend = Tensor._make_wrapper_subclass(cls, held.size(), device=torch.device(NAME, 0), **shape)  # type: ignore[assignment]
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _compute(function, args, kwargs or {})

    def tolist(self) -> Any:
        return self.cpu().tolist()

    @property
    def data(self) -> Tensor:
        return self.detach()

    @data.setter
    def data(self, value: Tensor) -> None:
        """`parameter.data = value` goes by no dispatcher."""
        if not isinstance(value, Pretend):
            raise RuntimeError("data =: a tensor of the CPU for one of the device")
        self.held = value.held


class Device(TorchDispatchMode):
    """Sees calls that make tensors, too; `watch` is told of each call, its arguments and what came of it."""

    def __init__(self, watch: Callable[[Any, Any, Any], None] | None = None) -> None:
        super().__init__()
        self.watch = watch

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = _compute(function, args, kwargs or {})
        if self.watch is not None:
            self.watch(function, (args, kwargs or {}), result)
        return result


def possible() -> bool:
    """Whether this torch lets Python define a device."""
    return hasattr(backend_registration, "_setup_privateuseone_for_python_backend")


def install() -> torch.device:
    """The device; it changes torch for this whole process, so call it in one of its own."""
    backend_registration._setup_privateuseone_for_python_backend(NAME)
    torch.as_tensor, torch.tensor = _through_cpu(torch.as_tensor), _through_cpu(torch.tensor)
    add = Sockets.start

    def start(transport: Sockets, slot: int, words: int) -> Callable[[], None]:
        """Gloo cannot add such tensors, but what they are around."""
        if isinstance(transport.source, Pretend):
            with no_dispatch():
                transport = Sockets(transport.exchange, transport.source.held)
        return add(transport, slot, words)

    Sockets.start = start  # type: ignore[method-assign,assignment]
    return torch.device(NAME, 0)


def run(config: Config, folder: Path, exchange: Exchange, device: torch.device) -> str:
    """The checksum of a run on the device."""
    with Device():
        summary = Job(config, folder, exchange, device, quiet=True).run(False)
    assert summary is not None  # nobody asked it to stop
    checksum: str = summary["checksum"]
    return checksum


def _compute(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    given = tree_leaves((args, kwargs))
    ours = {id(x.held): x for x in given if isinstance(x, Pretend)}
    theirs = {id(x): x for x in given if isinstance(x, Tensor) and not isinstance(x, Pretend)}
    wanted = kwargs.get("device")
    here = torch.device(wanted).type == NAME if wanted is not None else bool(ours)
    if function not in MOVES:
        _refuse_mixture(function, args, given, bool(ours), here)
    plain = dict(tree_map(_plain, kwargs)) | ({"device": CPU} if wanted is not None else {})
    result = function(*tree_map(_plain, args), **plain)
    if torch.Tag.inplace_view in function.tags:  # squeeze_ and its like: what is around has another shape now, too
        with no_dispatch():
            function(*args, **kwargs)
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


def _plain(value: Any) -> Any:
    return value.held if isinstance(value, Pretend) else value


def _through_cpu(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """torch.tensor and torch.as_tensor make their tensors out of a mode's sight."""

    def made(value: Any, *args: Any, device: Any = None, **options: Any) -> Tensor:
        if device is None or torch.device(device).type != NAME:
            return make(value, *args, **options)
        return value.to(device, **options) if isinstance(value, Tensor) else make(value, *args, **options).to(device)

    return made
