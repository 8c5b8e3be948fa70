"""Who is silent: every rank answers on a port of its own, in a thread, so that others can ask how far it is.

Nothing is sent while all is well. When a collective fails or takes too long, a rank asks all others:

    refused or closed       its process has ended
    no reply                its process is stopped, or its machine is gone
    it has begun fewest     it is at work on its own, or stuck there
    collectives of all

It tells those that live what it found. So all know the same, and the first that found it prints it.
"""

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

REPLY = 2.0  # seconds that a rank has to answer; its thread has nothing else to do
SEARCH = 2.0  # seconds to look for a rank that ends just now
AT_ONCE = 64  # ranks that are asked
LOOK = 0.2  # seconds between looks whether this process should end
GRACE = 3.0  # seconds that it goes on to wait if so
LOOPBACK = ("localhost", "::1")

T = TypeVar("T")


class RankLost(RuntimeError):
    """A peer died or did not answer in time; `speaks`: this rank is the one that should say so."""

    def __init__(self, text: str, speaks: bool = True) -> None:
        super().__init__(text)
        self.speaks = speaks


class Found(NamedTuple):
    """Who is missing, and what is known about it."""

    lost: tuple[int, ...] = ()  # ranks; none if it is not clear which
    how: str = ""  # ended, silent, behind or absent
    said: str = ""  # what it said before it ended


WAYS = {
    "silent": "its process is stopped, or its machine is gone; go on with --resume",
    "behind": "it is at work on its own, or stuck there; a larger federation.timeout waits longer",
    "absent": "it did not come to the meeting of all ranks; its own output may say why",
}


def told(found: Found, rank: int, limit: str, reason: str) -> str:
    """What rank `rank` says about it; `reason` is the error as torch names it."""
    many = len(found.lost) > 1
    who = f"ranks {', '.join(map(str, found.lost))} have" if many else f"rank {(*found.lost, '?')[0]} has"
    if found.how in WAYS:
        return f"{who} not answered for {limit}: {WAYS[found.how]}"
    contact = f"rank {rank} lost contact with another rank"
    if found.how == "ended":
        return f"{contact}: {who} ended: {found.said or 'its own message says why'}"
    return f"{contact}: it died or took longer than {limit}. Its own message says why. [{reason}]"


def limit(timeout: float) -> str:
    return f"{timeout:g} s (federation.timeout)"


class Absent(RuntimeError):
    """Ranks that did not come to a collective, as another rank saw it in shared memory."""

    def __init__(self, lost: Iterable[int], how: str) -> None:
        self.lost, self.how = tuple(lost), how
        super().__init__(f"rank {', '.join(map(str, self.lost))}: {how}")


class Reply(NamedTuple):
    state: str  # alive, ended or silent
    calls: int = 0  # collectives that it has begun
    finding: bool = False  # it looks for a missing rank itself


class Watch:
    """This rank's thread that answers, and what it knows of others'."""

    def __init__(self, rank: int, meeting: str = "localhost") -> None:
        """`meeting`: the machine where ranks meet; others reach this one as it reaches that."""
        self.rank, self.calls = rank, 0
        self.peers: dict[int, str] = {}  # rank -> address
        self._token = os.urandom(8).hex()  # a port may be another's by the time somebody asks
        self._lock = threading.Lock()
        self.told = Found()  # what another rank has found
        self._finding, self._lower = False, False  # _lower: a lower rank looks, or has found
        host = _own_host(meeting)
        self._listener = listen(host)
        self.address = f"{host} {self._listener.getsockname()[1]} {self._token}"
        threading.Thread(target=self._serve, name="fedddp-watch", daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._listener.close()

    def find(self, late: bool, seen: Absent | None = None) -> tuple[Found, bool]:
        """Who is missing, and whether this rank is the one to say so.

        `late`: a collective took too long, rather than fail at once. `seen`: what is known already.
        """
        with self._lock:
            if self.told.lost:
                return self.told, False
            self._finding = True
        until = time.monotonic() + SEARCH
        asked = {} if seen is not None and seen.how == "ended" else self.peers
        while not (found := self._judge(self._ask(asked, {}), late, seen)).lost:
            if self.told.lost or time.monotonic() > until:
                found = self.told
                break
            time.sleep(0.1)
        return found, self._announce(found)

    def leave(self, said: str) -> None:
        """This rank fails for a reason that only it knows: tell the others, which will miss it."""
        self._announce(Found((self.rank,), "ended", said))

    def _judge(self, replies: dict[int, Reply], late: bool, seen: Absent | None) -> Found:
        ended, silent = (tuple(r for r, reply in replies.items() if reply.state == s) for s in ("ended", "silent"))
        calls = {r: reply.calls for r, reply in replies.items() if reply.state == "alive"}
        if seen is not None:  # others may have come, and be stopped since
            if set(seen.lost) <= set(silent):
                return Found(silent, "silent")
            lost = tuple(r for r in seen.lost if calls.get(r, -1) < self.calls)  # the rest wait for another machine
            if lost:
                return Found(lost, seen.how)
        least = min(calls.values(), default=self.calls)  # who waits for a rank may itself be waited for
        behind = tuple(r for r, own in calls.items() if own == least < self.calls)
        ways = {"silent": silent, "ended": ended, "behind": behind if late else ()}
        order = ("silent", "behind", "ended") if late else ("ended", "silent")
        how = next((how for how in order if ways[how]), "")
        return Found(ways[how], how) if how else Found()

    def _announce(self, found: Found) -> bool:
        """Tell it to all that live; whether no lower rank found it at the same time."""
        living = {rank: address for rank, address in self.peers.items() if rank not in found.lost}
        if found.lost:
            self._ask(living, {"found": found})
        with self._lock:
            return not self._lower

    def _ask(self, peers: dict[int, str], message: dict[str, Any]) -> dict[int, Reply]:
        others = [rank for rank in sorted(peers) if rank != self.rank]
        message |= {"from": self.rank, "finding": self._finding}
        with ThreadPoolExecutor(max(1, min(len(others), AT_ONCE))) as pool:
            replies = dict(zip(others, pool.map(lambda rank: _ask(peers[rank], message), others), strict=True))
        with self._lock:
            self._lower |= any(reply.finding and rank < self.rank for rank, reply in replies.items())
        return replies

    def _serve(self) -> None:
        while True:
            try:
                talk, _ = self._listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._answer, args=(talk,), daemon=True).start()

    def _answer(self, talk: socket.socket) -> None:
        with suppress(OSError, ValueError, KeyError), talk:
            talk.settimeout(REPLY)
            asked = json.loads(talk.makefile("rb").readline())
            if asked["token"] != self._token:
                return
            with self._lock:
                if "found" in asked and not self.told.lost:
                    lost, how, said = asked["found"]
                    self.told = Found(tuple(lost), how, said)
                self._lower |= asked["finding"] and asked["from"] < self.rank
                reply = {"calls": self.calls, "finding": self._finding}
            talk.sendall(json.dumps(reply).encode() + b"\n")


def _ask(address: str, message: dict[str, Any]) -> Reply:
    host, port, token = address.split()
    try:
        with socket.create_connection((host, int(port)), REPLY) as talk:
            talk.settimeout(REPLY)
            talk.sendall(json.dumps({"token": token, **message}).encode() + b"\n")
            line = talk.makefile("rb").readline()
        return Reply("alive", **json.loads(line)) if line else Reply("ended")
    except ConnectionError:
        return Reply("ended")
    except (OSError, ValueError):  # it takes too long, or its machine cannot be reached
        return Reply("silent")


def listen(host: str) -> socket.socket:
    """A free port of `host` alone; of all its networks where its own name means loopback, as Debian writes it."""
    found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    family, address = min((family, str(where[0])) for family, *_, where in found)
    if _is_loopback(address) and not _is_loopback(host):
        address = "::" if family == socket.AF_INET6 else ""
    return socket.create_server((address, 0), family=family, backlog=128)


def _is_loopback(host: str) -> bool:
    return host in LOOPBACK or host.startswith("127.")


def _own_host(meeting: str) -> str:
    """How others reach this machine: the address by which it reaches the one where ranks meet."""
    if _is_loopback(meeting):
        return "127.0.0.1"
    family, *_, where = socket.getaddrinfo(meeting, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as talk:
        talk.connect(where)  # sends nothing
        address = str(talk.getsockname()[0])
    return meeting if _is_loopback(address) else address


def bounded(call: Callable[[], T], seconds: float, asked: Callable[[], bool] = lambda: False) -> T:
    """What `call` returns, or TimeoutError: torch's store waits without end for a process that is stopped.

    If this process is `asked` to end meanwhile, it waits a little longer only.
    """
    answer: Future[T] = Future()

    def work() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    until, left = time.monotonic() + seconds, GRACE
    while not wait([answer], min(LOOK, max(0.0, until - time.monotonic()))).done:
        if time.monotonic() > until:
            raise TimeoutError
        left -= LOOK if asked() else 0.0
        if left < 0:
            raise KeyboardInterrupt
    return answer.result()
