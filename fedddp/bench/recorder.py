"""A recorder of repeated work for the pretended device, that keeps the rules of a CUDA graph.

What a step asks of the device is written down, operation by operation with the very tensors it reads and writes, and a
replay does those operations again: none of the step's Python runs, so numbers of the host are what they were when it
was recorded. Refused, with the line that asks for it, is what a graph cannot hold: a number read back, a copy between
host and device, a random number, and a tensor that neither the step made nor the program owns, which would be
somebody else's memory at the next replay.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from fedddp.checks import pretend
from fedddp.core import kernels
from fedddp.core.record import WARM, Replay
from fedddp.core.trace import PACKAGE

OWN = {__file__, pretend.__file__}  # files of the counting


class Asked(NamedTuple):
    """One operation of a step, on the CPU's tensors that the device's are made of."""

    function: Callable[..., Any]
    args: Any
    kwargs: dict[str, Any]
    made: list[tuple[int, Tensor]]  # its fresh results, by their place among all


class Recorder:
    def __init__(self) -> None:
        self.recorded = self.replayed = 0

    def __call__(self, function: Callable[[], None], reads: Sequence[Tensor] | None) -> Replay:
        for _ in range(WARM):
            function()
        tape = Tape(None if reads is None else {_place(leaf) for leaf in reads})
        before = kernels.BACKENDS.get(pretend.NAME)
        if before is not None:
            kernels.BACKENDS[pretend.NAME] = tape.launch
        try:
            with pretend.Device(tape.watch):
                function()
        finally:
            if before is not None:
                kernels.BACKENDS[pretend.NAME] = before
        self.recorded += 1

        def replay() -> None:
            self.replayed += 1
            tape.replay()

        return replay


class Tape:
    """What a step asks for; `known` are the places in memory that it may read."""

    def __init__(self, known: set[int] | None) -> None:
        self.known, self.asked = known, list[Asked]()

    def watch(self, function: Any, given: Any, result: Any) -> None:
        """Called after each operation, with its arguments and what came of it."""
        tensors = [leaf for leaf in tree_leaves(given) if isinstance(leaf, Tensor)]
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        ours = [isinstance(leaf, pretend.Pretend) for leaf in (*tensors, *made)]
        if not any(ours):
            return  # the host's own
        self._refuse(function, tensors, ours)
        held = {id(leaf.held) for leaf in tensors if isinstance(leaf, pretend.Pretend)}
        fresh = [(at, leaf.held) for at, leaf in enumerate(tree_leaves(result)) if isinstance(leaf, pretend.Pretend)]
        fresh = [(at, leaf) for at, leaf in fresh if id(leaf) not in held]
        if self.known is not None:
            self.known |= {leaf.untyped_storage().data_ptr() for _, leaf in fresh}
        if not function.is_view and not function.__name__.startswith("empty"):
            args, kwargs = tree_map(_plain, given)
            self.asked.append(Asked(function, args, kwargs | _on_cpu(kwargs), fresh))

    def launch(self, name: str, *arguments: Any) -> None:
        """A fused kernel."""
        self._refuse_strangers([leaf for leaf in arguments if isinstance(leaf, Tensor)])
        args = tree_map(_plain, (name, *arguments))
        with _disable_current_modes():
            kernels.in_c(*args)
        self.asked.append(Asked(kernels.in_c, args, {}, []))

    def replay(self) -> None:
        with _disable_current_modes(), torch.no_grad():
            for function, args, kwargs, made in self.asked:
                results = tree_leaves(function(*args, **kwargs))
                for at, old in made:
                    old.copy_(results[at])

    def _refuse(self, function: Any, tensors: list[Tensor], ours: list[bool]) -> None:
        if function in pretend.NUMBERS:
            raise RuntimeError(f"{asking()}: a recorded step reads a number back")
        if function in pretend.MOVES and not all(ours):
            raise RuntimeError(f"{asking()}: a recorded step copies between host and device")
        if torch.Tag.nondeterministic_seeded in function.tags:
            raise RuntimeError(f"{asking()}: a recorded step draws from a generator")
        self._refuse_strangers(tensors)

    def _refuse_strangers(self, tensors: list[Tensor]) -> None:
        for leaf in tensors:
            if isinstance(leaf, pretend.Pretend):
                if self.known is not None and leaf.numel() and _place(leaf) not in self.known:
                    raise RuntimeError(
                        f"{asking()}: a recorded step reads a tensor {list(leaf.shape)} of somebody else"
                    )
            elif leaf.dim():
                raise RuntimeError(f"{asking()}: a recorded step reads a tensor of the host")


def asking() -> str:
    """The innermost line outside of torch and of the counting."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        name = frame.f_code.co_filename
        if name not in OWN and "/torch/" not in name:
            path = Path(name)
            inside = PACKAGE.parent in path.parents
            return f"{path.relative_to(PACKAGE.parent) if inside else path}:{frame.f_lineno}"
        frame = frame.f_back
    return "?"


def _place(tensor: Tensor) -> int:
    held: Tensor = _plain(tensor)
    return held.untyped_storage().data_ptr()


def _plain(value: Any) -> Any:
    return value.held if isinstance(value, pretend.Pretend) else value


def _on_cpu(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {"device": torch.device("cpu")} if kwargs.get("device") is not None else {}
