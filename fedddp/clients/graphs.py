"""Gradients as CUDA graphs: federation.graphs=true.

A small model's step is a hundred kernels of a few microseconds, and launching them takes longer than running them.
Where shapes are static (which rows are at work changes only a few times in a round) the launches are recorded once for
each shape and replayed on buffers that stay where they are.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedddp.clients.oracle import NO_MASKS, Oracle

Outputs = tuple[Tensor, ...]
Record = Callable[[Callable[[], Outputs]], tuple[Outputs, Callable[[], object]]]


class Tape(NamedTuple):
    """A function of tensors of one shape: where it reads, where it leaves its results, and how to run it again."""

    inputs: Sequence[Tensor]
    outputs: Outputs
    replay: Callable[[], object]

    @classmethod
    def of(cls, function: Callable[..., Outputs], inputs: Sequence[Tensor], record: Record) -> "Tape":
        own = [tensor.clone() for tensor in inputs]
        return cls(own, *record(lambda: function(*own)))

    def __call__(self, inputs: Sequence[Tensor]) -> Outputs:
        """Results that hold until the next call."""
        torch._foreach_copy_(list(self.inputs), list(inputs))
        self.replay()
        return self.outputs


class Graphed(Oracle):
    """An oracle that records another one."""

    def __init__(self, oracle: Oracle, record: Record) -> None:
        self.__dict__.update(oracle.__dict__)
        self.oracle, self.record = oracle, record
        self.tapes: dict[tuple[object, ...], Tape] = {}

    def __call__(
        self,
        theta: Tensor,
        inputs: Tensor,
        targets: Tensor,
        weights: Tensor | None = None,
        counts: Sequence[int] | None = None,
        out: Tensor | None = None,
        masks: Mapping[str, Tensor] = NO_MASKS,
    ) -> tuple[Tensor, Tensor]:
        looped = self.chain is None and (len(theta) == 1 or not self.vectorise)
        if masks or (looped and weights is not None):  # masks are drawn anew; a loop asks how long a batch is
            return self.oracle(theta, inputs, targets, weights, counts, out, masks)
        given = [theta, inputs, targets] if weights is None else [theta, inputs, targets, weights]
        key = tuple((tensor.shape, tensor.dtype) for tensor in given)
        if key not in self.tapes:
            self.tapes[key] = Tape.of(self.oracle, given, self.record)
        grad, loss = self.tapes[key](given)
        return (grad.clone() if out is None else out.copy_(grad)), loss.clone()


def cuda_recorder() -> Record:
    """Records into graphs that share their memory: results are copied before another one runs."""
    pool = torch.cuda.graph_pool_handle()

    def record(function: Callable[[], Outputs]) -> tuple[Outputs, Callable[[], object]]:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):  # libraries choose their kernels and workspaces in the first calls
                function()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):  # nccl watches from another thread
            outputs = function()
        return outputs, graph.replay

    return record
