"""Each client's own part of the test set, and the clients that never train (split.unseen).

Where the data says whose a test example is, and each of its natural clients belongs to one of the federation's, a part
is what they hold of the test set. Otherwise it is dealt like the training examples: client k is given the share
n_kc / Σ_j n_jc of the test examples of class c, so that every test example is in one part and a sum over parts is the
sum over the test set. Where an example has no single class, all count as one class. Test examples of natural clients
that are left out, and of classes that nobody trains on, are in no part.

Both draw from streams of their own, so training has the same bits with and without them.
"""

from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b

import torch
from torch import Tensor

from fedddp.core.rng import stream
from fedddp.core.shards import Shards
from fedddp.core.task import Task
from fedddp.splits._dealing import deal_counts


@dataclass(frozen=True)
class Parts:
    owner: Tensor  # [N] client of each test example, on the host; -1: nobody's
    count: int  # clients, those that never train behind the others
    unseen: int = 0  # of them

    @classmethod
    def of(cls, task: Task, seed: int) -> "Parts":
        """`seed`: of the split."""
        owner = _natural(task)
        if owner is None:
            owner = _dealt(task, stream(seed, "test parts"))
        return cls(owner, task.everyone.num_clients, task.unseen.num_clients)

    @cached_property
    def sizes(self) -> Tensor:
        """[K] test examples of each client."""
        return torch.bincount(self.owner[self.owner >= 0], minlength=self.count)

    @cached_property
    def _rows(self) -> tuple[Tensor, ...]:
        order = self.owner.argsort(stable=True)[int((self.owner < 0).sum()) :]
        return order.split(self.sizes.tolist())

    def of_client(self, client: int) -> Tensor:
        """The client's test examples."""
        return self._rows[client]

    @cached_property
    def digest(self) -> str:
        """Of who holds what: tables of two runs can be compared, client by client, if it is the same."""
        return blake2b(self.owner.numpy().tobytes(), digest_size=8).hexdigest()


def dealt_numbers(total: int, unseen: int, seed: int) -> Tensor:
    """[K] which of the clients that the split deals each one is: first those that train, then those that never do."""
    if not unseen:
        return torch.arange(total)
    drawn = torch.randperm(total, generator=stream(seed, "unseen"))[:unseen].sort().values
    trained = torch.ones(total, dtype=torch.bool)
    trained[drawn] = False
    return torch.cat([trained.nonzero().flatten(), drawn])


def hold_out(shards: Shards, unseen: int, seed: int) -> tuple[Shards, Shards]:
    """The clients that train, and those that never do."""
    if not unseen:
        return shards, Shards.none()
    if unseen >= shards.num_clients:
        raise ValueError(f"split.unseen={unseen}: leaves none of {shards.num_clients} clients to train; ask for fewer")
    numbers = dealt_numbers(shards.num_clients, unseen, seed)
    return shards.take(numbers[:-unseen]), shards.take(numbers[-unseen:])


def _natural(task: Task) -> Tensor | None:
    """By the data's own clients, where each of them belongs to one of the federation's."""
    train, test, everyone = task.data.train, task.data.test, task.everyone
    if train.clients is None or test.clients is None:
        return None
    client = torch.arange(everyone.num_clients).repeat_interleave(everyone.num_examples)
    names, place = torch.cat([train.clients[everyone.order], test.clients.cpu()]).unique(return_inverse=True)
    theirs, asked = place[: len(client)], place[len(client) :]
    owner = torch.full((len(names),), -1)
    owner[theirs] = client
    return owner[asked] if bool((owner[theirs] == client).all()) else None


def _dealt(task: Task, generator: torch.Generator) -> Tensor:
    """By each client's share of every class."""
    targets, everyone = task.data.test.targets.cpu(), task.everyone
    if targets.dim() == 1 and not targets.is_floating_point():
        held = torch.from_numpy(everyone.count(task.data.train.targets, task.data.classes))
    else:
        targets, held = torch.zeros(len(targets), dtype=torch.long), everyone.num_examples.unsqueeze(1)
    available = torch.bincount(targets)
    sums = held[:, : len(available)].cumsum(0).double()
    ends = (sums / sums[-1].clamp_min(1) * available).round().long()  # roundings add up
    owner = torch.full((len(targets),), -1)
    for client, part in enumerate(
        deal_counts(targets, ends.diff(dim=0, prepend=ends.new_zeros(1, ends.shape[1])), generator)
    ):
        owner[part] = client
    return owner
