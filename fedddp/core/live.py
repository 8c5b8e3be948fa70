"""How much memory tensors take at most: the storage of all that were made inside, as long as anybody holds it."""

import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Ledger:
    """Storages that live now, and the most that lived at once."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self.seen: dict[int, int] = {}  # storage -> its bytes

    def note(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        place = storage._cdata
        if place in self.seen:
            return
        self.seen[place] = storage.nbytes()
        self.now += self.seen[place]
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._forget, place)

    def _forget(self, place: int) -> None:
        self.now -= self.seen.pop(place, 0)


class Live(TorchDispatchMode):
    """A context that keeps the ledger of what is made inside; `limit`: operations, after which it calls `enough`."""

    def __init__(self, limit: int = 0, enough: Callable[[], None] | None = None) -> None:
        super().__init__()
        self.ledger, self.limit, self.enough, self.calls = Ledger(), limit, enough, 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.untyped_storage()._cdata not in given:
                self.ledger.note(tensor)
        self.calls += 1
        if self.enough is not None and self.limit and self.calls > self.limit:
            self.enough()
        return result
