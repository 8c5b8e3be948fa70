"""How ranks meet: in a store that the launcher or rank 0 keeps. Who does not come in time is named.

torchrun's agent has a store, too, but it keeps it over restarts, with the keys of earlier attempts; and agents of
different machines do not count restarts alike. There rank 0 opens a new store in each attempt and only its address
stands in the agent's. An old address leads to a port that is closed, so no rank takes part in a world that is gone.
"""

import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import ClassVar, TypeVar

from torch._C import _distributed_c10d as c10d

from fedddp.exchange.watch import Found, RankLost, Watch, bounded, limit, listen, told

KEEPER = "FEDDDP_STORE"  # who keeps the store, if it is not rank 0
PATIENCE = "FEDDDP_PATIENCE"  # seconds to wait for ranks that start, if that is more than federation.timeout
ADDRESS = "fedddp/rank-0"  # key of the agent's store
MARGIN = 2.0  # seconds for a call to end by itself before it is given up
PAUSE = 0.05

T = TypeVar("T")


@dataclass
class Meeting:
    """Of this rank with all others, as the environment describes it."""

    kept: ClassVar[dict[tuple[str, int], c10d.Store]] = {}  # one for all worlds of the process

    rank: int
    ranks: int
    timeout: float
    asked: Callable[[], bool] = lambda: False  # to stop: whoever has not met yet leaves nothing unfinished

    def __post_init__(self) -> None:
        self.host, self.port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        self.wait = max(self.timeout, float(os.environ.get(PATIENCE, "0")))
        self.until = time.monotonic() + self.wait

    def hold(self, name: str, begin: Callable[[c10d.Store], None]) -> Watch:
        """Meet under this name, and `begin` the world with the store that all share."""
        store = c10d.PrefixStore(name, self._store())
        watch = Watch(self.rank, self.host)
        watch.peers = self._bounded(partial(self._gather, store, watch.address))
        missing = tuple(rank for rank in range(self.ranks) if rank not in watch.peers)
        if missing:
            raise self._lost(Found(missing, "absent"), speaks=self.rank == min(watch.peers))
        try:
            bounded(partial(begin, store), self.timeout + MARGIN, self.asked)
        except (TimeoutError, RuntimeError) as error:
            found, speaks = watch.find(late=True)
            raise self._lost(found, speaks, str(error) or "no answer") from error
        return watch

    def _store(self) -> c10d.Store:
        """The same for all worlds of this process."""
        place = self.host, self.port
        if place not in self.kept:
            self.kept[place] = self._open()
        return self.kept[place]

    def _open(self) -> c10d.Store:
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":  # nobody keeps one yet
            wait = timedelta(seconds=self.wait)
            if self.rank == 0:
                return c10d.TCPStore(self.host, self.port, is_master=True, timeout=wait, wait_for_workers=False)
            return self._bounded(partial(self._client, self.port))
        if "TORCHELASTIC_MAX_RESTARTS" not in os.environ:
            return self._bounded(partial(self._client, self.port))
        board = self._bounded(partial(self._client, self.port), "torchrun's agent")
        return self._open_anew(board) if self.rank == 0 else self._bounded(partial(self._find_anew, board))

    def _open_anew(self, board: c10d.Store) -> c10d.Store:
        store, port = open_store(self.host)
        token = os.urandom(8).hex()
        store.set("token", token)
        board.set(ADDRESS, f"{port} {token}")
        return store

    def _find_anew(self, board: c10d.Store) -> c10d.Store:
        """Rank 0's store of this attempt; an earlier attempt's address leads nowhere."""
        while time.monotonic() < self.until:
            if board.check([ADDRESS]):
                port, token = board.get(ADDRESS).decode().split()
                with suppress(OSError, RuntimeError):
                    store = bounded(partial(self._client, int(port), 1.0), 5.0)
                    if bounded(partial(store.get, "token"), 5.0) == token.encode():
                        return store
            time.sleep(PAUSE)
        raise TimeoutError

    def _client(self, port: int, seconds: float | None = None) -> c10d.Store:
        """A connection to the store at a port that may not be open yet: torch would complain about each attempt."""
        until = self.until if seconds is None else time.monotonic() + seconds
        while time.monotonic() < until:
            with suppress(OSError), socket.create_connection((self.host, port), 1.0):
                wait = timedelta(seconds=self.wait)
                return c10d.TCPStore(self.host, port, is_master=False, timeout=wait, wait_for_workers=False)
            time.sleep(PAUSE)
        raise TimeoutError

    def _gather(self, store: c10d.Store, address: str) -> dict[int, str]:
        """Rank -> where it answers, of all that came in time."""
        keys = [f"rank/{rank}" for rank in range(self.ranks)]
        store.set(keys[self.rank], address)
        while not store.check(keys) and time.monotonic() < self.until:
            time.sleep(PAUSE)
        return {rank: store.get(key).decode() for rank, key in enumerate(keys) if store.check([key])}

    def _bounded(self, call: Callable[[], T], keeper: str = "") -> T:
        """What needs the store; a store that is silent tells that its keeper is."""
        try:
            return bounded(call, max(0.0, self.until - time.monotonic()) + MARGIN, self.asked)
        except (TimeoutError, RuntimeError) as error:
            keeper = keeper or os.environ.get(KEEPER, "rank 0")
            first = 1 if keeper == "rank 0" else 0  # the lowest rank that can speak
            raise RankLost(
                f"{keeper} has not answered for {self._limit}: it keeps the store at {self.host}:{self.port}, "
                "where ranks meet",
                self.rank == first,
            ) from error

    def _lost(self, found: Found, speaks: bool, reason: str = "") -> RankLost:
        return RankLost(told(found, self.rank, self._limit, reason), speaks)

    @property
    def _limit(self) -> str:
        return limit(self.timeout) if self.wait == self.timeout else f"{self.wait:g} s"


def open_store(host: str) -> tuple[c10d.Store, int]:
    """Where ranks meet: a store on a free port of `host`, and that port. It closes when the object goes."""
    return keep_store(host, listen(host))


def keep_store(host: str, listener: socket.socket) -> tuple[c10d.Store, int]:
    """The same on a port that is open already."""
    port = int(listener.getsockname()[1])
    fd = listener.detach()
    store = c10d.TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=fd)
    return store, port
