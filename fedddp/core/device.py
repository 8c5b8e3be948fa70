"""The device that a rank works on, and what makes its bits repeatable.

On a GPU the same bits on any number of ranks, and after a resume, need the same kind of GPU, the same torch and CUDA,
and federation.deterministic (the default): kernels that add in an order of their own are then refused or replaced.
Sums between ranks are exact integers there as on a CPU.
"""

import os
from collections.abc import Mapping

import torch
from torch import Tensor


def own_device(deterministic: bool, tf32: bool = False) -> torch.device:
    """The GPU of this rank, where there is one; several ranks may share it.

    Products are in float32 unless TF32 is asked for: torch's convolutions would take it without a word.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS is first used
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    return device


def sharing() -> int:
    """Ranks of this machine for each of its GPUs: more than one where there are more ranks than GPUs."""
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return -(-here // max(torch.cuda.device_count(), 1)) if torch.cuda.is_available() else 1


def to_host(named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors to be logged or stored: those on a GPU cross through pinned memory on a stream of their own, at once."""
    on_gpu = {name: leaf.detach() for name, leaf in named.items() if leaf.is_cuda}
    if not on_gpu:
        return {name: leaf.detach().cpu() for name, leaf in named.items()}
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    copies = {}
    with torch.cuda.stream(side):
        for name, leaf in on_gpu.items():
            pinned = torch.empty(leaf.shape, dtype=leaf.dtype, pin_memory=True)
            copies[name] = pinned.copy_(leaf, non_blocking=True)
            leaf.record_stream(side)
    side.synchronize()
    return {name: copies.get(name, leaf.detach()) for name, leaf in named.items()}
