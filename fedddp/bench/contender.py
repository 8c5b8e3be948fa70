"""What takes part in a comparison."""

from torch import Tensor


class Contender:
    theta: Tensor  # the server's parameters

    def prepare(self, number: int) -> None:
        """Before a round, not timed."""

    def round(self, number: int) -> None:
        """Timed."""
        raise NotImplementedError

    def finish(self) -> None:
        """After a round, not timed."""
