"""All data in one place: the split is undone and one client trains on everything. The other end of every comparison."""

from typing import ClassVar

from fedddp.methods import fedavg


class Method(fedavg.Method):
    pools: ClassVar[bool] = True
    undivided: ClassVar[str] = "whose one client has all of the data, and nobody to share with"
