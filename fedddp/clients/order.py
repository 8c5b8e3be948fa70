"""In which order clients go through their examples: shuffled epochs, drawn on the device that takes the batches.

A client's order follows from its key alone, by a hash and a sort of integers (fedddp/core/rng.py), so that it is the
same in any company and on any device. A *place* is an example's among all of a cohort's, client after client.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedddp.clients.feed import send
from fedddp.core.rng import permutations
from fedddp.core.shards import Shards
from fedddp.core.task import Task

BUCKET = 8  # batches whose examples are sorted by length


def shuffled(keys: Sequence[int], sizes: Tensor, epochs: int, device: torch.device) -> Tensor:
    """[C, epochs, N] each client's examples, numbered from 0, in every epoch; behind its size the others in order."""
    own, most = send(torch.stack([torch.tensor(keys), sizes]), device), int(sizes.max())
    by_epoch = own[0].unsqueeze(1) + torch.arange(epochs, device=device) * 0x2545F4914F6CDD1D
    rows = permutations(by_epoch.reshape(-1), own[1].repeat_interleave(epochs, output_size=epochs * len(sizes)), most)
    return rows.view(len(sizes), epochs, most)


def batches(order: Tensor, sizes: Tensor, batch_size: int) -> tuple[Tensor, Tensor]:
    """Places [steps, C, B] of each step's examples, and on the host how many of them are real [steps, C].

    A short batch is padded with its epoch's last example, and who is done goes on with its last epoch.
    """
    most, epochs = order.shape[2], order.shape[1]
    batch_size = min(batch_size, most)
    last = sizes.unsqueeze(1) - 1
    per_epoch = -(-sizes // batch_size).unsqueeze(1)
    step = torch.arange(int(epochs * per_epoch.max()))
    epoch, first = (step // per_epoch).clamp_max(epochs - 1) * most, step % per_epoch * batch_size  # [C, steps]
    begins = (sizes.cumsum(0) - sizes).unsqueeze(1).expand_as(first)
    low, high, begin = send(torch.stack([epoch + first, epoch + last, begins]), order.device).unsqueeze(3)
    there = torch.minimum(low + torch.arange(batch_size, device=order.device), high)
    places = order.flatten(1).gather(1, there.flatten(1)).view_as(there) + begin
    return places.transpose(0, 1).contiguous(), (last + 1 - first).clamp_max(batch_size).T


def by_length(order: Tensor, task: Task, shards: Shards, ids: Sequence[int], batch_size: int) -> None:
    """Within every BUCKET batches of a client's shuffled epoch [C, epochs, N], shorter examples first, in place.

    So a batch's examples are about equally long, and little of it is padding.
    """
    for row, client in enumerate(ids):
        index = shards.of_client(client)
        lengths = task.data.lengths(task.data.train.inputs[index])
        assert lengths is not None
        for epoch in order[row, :, : len(index)]:
            for some in epoch.split(BUCKET * batch_size):
                some.copy_(some[lengths[some].argsort(stable=True)])


def by_class(order: Tensor, task: Task, shards: Shards, ids: Sequence[int]) -> Tensor:
    """Ranks [C, epochs, N] among a client's examples ordered by class, as places in its own order.

    The inverse of a permutation sends a place to about the same share of the way for every size, so clients that
    share a key see about the same labels at the same step, if their classes are mixed alike.
    """
    ranks, targets = order.argsort(2), task.data.train.targets
    if targets.dim() > 1 or targets.is_floating_point():
        return ranks
    for row, client in enumerate(ids):
        sorted_ = send(targets[shards.of_client(client)].argsort(stable=True), ranks.device)
        ranks[row, :, : len(sorted_)] = sorted_[ranks[row, :, : len(sorted_)]]
    return ranks
