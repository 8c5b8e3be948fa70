"""Example-level differential privacy: a client's solver sees noisy sums of clipped gradients, and nothing else.

    ĝ = (Σ_i g_i min(1, C/|g_i|) + noise C z)/B,    z ~ N(0, 1)                    (DP-SGD: Abadi et al. 2016)

g_i is the gradient of example i's loss at the solver's point, B the batch size. What a solver makes of ĝ (momentum,
Adam's moments, IVON's curvature ĝz/√v) is as private as ĝ. Batches are Poisson-sampled, each example by itself with
probability B/N_k, or shuffled epochs as without privacy. The noise is floating-point, made at the client of a ChaCha20
stream, whose key is the run's seed's or the operating system's.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import NoReturn

import torch
from torch import Tensor

from fedddp.clients.cohort import Batch, Cohort
from fedddp.clients.keyed_noise import Keyed
from fedddp.core.rng import key
from fedddp.exchange.discrete import KEY, key_of


@dataclass(frozen=True)
class Guard:
    clip: float  # C
    noise: float  # in units of the clip
    poisson: bool = False
    system: bool = False  # noise and batches that do not repeat


@dataclass
class PrivateCohort(Cohort):
    """A cohort whose gradients are private; whatever else would look at examples is refused."""

    guard: Guard | None = None
    made: list[Keyed] = field(default_factory=list, repr=False)  # the noise, of which every copy takes the next

    @property
    def _guard(self) -> Guard:
        assert self.guard is not None
        return self.guard

    def grad(self, theta: Tensor, batch: Batch, out: Tensor | None = None) -> Tensor:
        guard, count = self._guard, len(theta)
        at = theta if self.draw is None else self.draw(theta)
        share = self._share[:count]
        grad, loss = self.oracle.clipped(at, batch.inputs, batch.targets, batch.weights, guard.clip, share, out)
        self.counted.note(loss)
        self._noise.add(grad, self._deviations)
        return grad if self.turn is None else self.turn(theta, grad, batch)

    def lower(self, theta: Tensor, batch: Batch, lr: float) -> bool:
        """The same step, noise and all, without a gradient being written."""
        if self.turn is not None or self.draw is not None:
            return False
        by = lr * self._share[: len(theta)]
        loss = self.oracle.lower_clipped(theta, batch.inputs, batch.targets, batch.weights, self._guard.clip, by)
        if loss is None:
            return False
        self.counted.note(loss)
        self._noise.add(theta, [-lr * deviation for deviation in self._deviations])
        return True

    def _batches_of(self, batch_size: int) -> None:
        """Steps are on batches of such a size: B, or all of a smaller client's examples."""
        sizes = self.sizes.clamp_max(batch_size)
        self._share = self.send(sizes.to(self.task.dtype).reciprocal().unsqueeze(1))  # [C, 1] 1/B
        self._deviations = [self._guard.noise * self._guard.clip / size for size in sizes.tolist()]

    @property
    def _noise(self) -> Keyed:
        if not self.made:
            system = self._guard.system  # nobody can draw it again then
            self.made.append(Keyed([os.urandom(KEY) if system else key_of(own) for own in self.keys("privacy")]))
        return self.made[0]

    def keys(self, purpose: str) -> list[int]:
        """With the system's randomness nobody can tell who is in a batch."""
        if self._guard.system and purpose == "order":
            return [int.from_bytes(os.urandom(8), "little") >> 1 for _ in self.ids]
        if purpose == "privacy":  # never common: two clients' noise must not be the same
            streams = self.task.streams
            return [key(streams.seed, purpose, self.round, client) for client in self.ids]
        return super().keys(purpose)

    def _places(self, epochs: int, batch_size: int) -> tuple[Tensor, Tensor]:
        """With Poisson sampling as many batches as in the epochs, each with every example by chance."""
        self._batches_of(batch_size)
        if not self._guard.poisson:
            return super()._places(epochs, batch_size)
        steps = self.steps(epochs, batch_size).tolist()
        drawn = [
            self._drawn(seed, count, client, batch_size)
            for seed, count, client in zip(self.keys("order"), steps, self.ids, strict=True)
        ]
        width = max(1, max(len(batch) for batches in drawn for batch in batches))
        begins = self.sizes.cumsum(0) - self.sizes
        places = begins.view(1, -1, 1).repeat(max(steps), 1, width)
        real = torch.zeros(max(steps), len(self.ids), dtype=torch.int64)
        for row, batches in enumerate(drawn):
            for step, batch in enumerate(batches):
                places[step, row, : len(batch)] += batch
                real[step, row] = len(batch)
        return places, real

    def _drawn(self, seed: int, steps: int, client: int, batch_size: int) -> list[Tensor]:
        size = int(self.shards.num_examples[client])
        chance = torch.rand(steps, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        return [row.nonzero().squeeze(1) for row in chance < batch_size / size]

    def _refuse(self) -> NoReturn:
        raise ValueError(
            "privacy.level=example: this method or solver looks at a client's examples other than by clipped "
            "gradients; use local=sgd, adam or ivon with a method that only runs its solver"
        )

    def loss(self, theta: Tensor, batch: Batch) -> Tensor:
        self._refuse()

    def full_loss(self, theta: Tensor) -> Tensor:
        self._refuse()

    def full_grad(self, theta: Tensor) -> Tensor:
        self._refuse()

    def everything(self, batch_size: int = 1024) -> Iterator[Batch]:
        self._refuse()

    def part(self, rows: Tensor, member: int = 0) -> Cohort:
        self._refuse()


def guarded(guard: Guard | None) -> Callable[..., Cohort]:
    """How cohorts are made: with a guard, or plain."""
    if guard is None:
        return Cohort
    return partial(PrivateCohort, guard=guard)
