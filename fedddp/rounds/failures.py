"""What ends a round, said alike on every rank."""


class Failed(RuntimeError):
    """A round failed, and all ranks know why."""

    def __init__(self, text: str, trace: str = "") -> None:
        super().__init__(text)
        self.trace = trace  # of the failing rank


class ClientFailed(Failed):
    """A client raised or sent something that is not finite; the text names it."""


class ServerFailed(Failed):
    """The server's step raised."""


class Diverged(Failed):
    """The server's state is not finite, or not the same on all ranks."""
