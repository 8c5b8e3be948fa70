"""Work that is asked of a device again and again, recorded once and replayed: federation.graphs=true.

A small model's step is a few dozen kernels of a few microseconds, and launching them takes longer than running them. A
CUDA graph launches them all at once, on buffers that stay where they are.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

WARM = 3  # calls before a recording: libraries choose their kernels and workspaces in the first ones
Replay = Callable[[], object]
Record = Callable[[Callable[[], None], Sequence[Tensor] | None], Replay]


def recorded(record: Record | None, body: Callable[[], None], times: int, state: Sequence[Tensor]) -> Replay:
    """What does body() when it is called, which will be so many times; `state` is all that it changes, in place.

    Without a recorder, or for a few times, that is body itself.
    """
    if record is None or times <= WARM:
        return body
    before = [tensor.clone() for tensor in state]
    replay = record(body, None)
    for tensor, old in zip(state, before, strict=True):  # a recording's first calls have moved it
        tensor.copy_(old)
    return replay


def cuda_recorder() -> Record:
    """Records into graphs that share one pool of memory: what lies there is nobody's after the replay."""
    pool = torch.cuda.graph_pool_handle()

    def record(function: Callable[[], None], reads: Sequence[Tensor] | None) -> Replay:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM):
                function()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):  # nccl watches from another thread
            function()
        return graph.replay

    return record
