"""Several machines: ranks of one add up in its memory before anything crosses the network; the same bits."""

import json
import os
import shutil
import subprocess
import sys
import time
import uuid

import pytest
import torch

from fedddp.exchange import group, shared_memory
from fedddp.exchange.group import Exchange, RankLost
from fedddp.exchange.messages import Gather, Mean
from fedddp.exchange.reduce import Reduction
from fedddp.jobs.pool import warm
from fedddp.jobs.rendezvous import Place, join
from tests.exchange.machines import NODES, RANKS
from tests.exchange.test_silence import KILL, SPARE, STOP, TIMEOUT, halt
from tests.small import MODELS, run, settings

CPU = torch.device("cpu")
HOUSES = [[[0, 1], [2, 3]], [[0], [1, 2, 3]], [[0, 2], [1, 3]], [[0, 1, 2, 3]], [[0], [1], [2], [3]]]


def apart(houses):
    """Ranks of another machine cannot be seen; here they can, so they are overlooked."""
    exchange, seen = Exchange(shares=False), shared_memory._open
    house = next(ranks for ranks in houses if exchange.rank in ranks)
    here = {pid for rank, (pid,) in enumerate(exchange.gather([os.getpid()])) if rank in house}
    shared_memory._open = lambda pid, number, token: seen(pid, number, token) if pid in here else None
    return seen


def total(exchange, size=1000):
    reduction = Reduction(exchange.world_size)
    value = torch.randn(1, size, generator=torch.Generator().manual_seed(exchange.rank))
    message = {"mean": Mean(value, weight=float(exchange.rank + 1)), "row": Gather(value[:, :3])}
    reduction.add(message, torch.tensor([exchange.rank]))
    found = reduction.total(exchange, exchange.agree(reduction.exponents()), exchange.world_size, CPU)
    return [found["mean"].tolist(), found["row"].tolist()]


def compare(houses):
    exchange, flat = Exchange(), Exchange(shares=False)
    wanted, before = total(flat), apart(houses)
    group.PIECE, piece = 64, group.PIECE
    try:
        short = [total(exchange) for _ in range(3)]  # many pieces, and memory that is used again
        shared = exchange._shared
        said = exchange.gather([exchange.rank, 7 * exchange.rank])
        return [one == wanted for one in short], shared and shared.ranks, said
    finally:
        shared_memory._open, group.PIECE = before, piece


@pytest.mark.parametrize("houses", HOUSES)
def test_same_sums_however_ranks_are_spread_over_machines(worlds, houses):
    for rank, (same, ranks, said) in enumerate(worlds(4).run(compare, houses)):
        assert all(same)
        assert ranks == (None if len(houses) == 4 else next(house for house in houses if rank in house))
        assert said == [[r, 7 * r] for r in range(4)]


def run_apart(words, folder, houses):
    before = apart(houses)
    try:
        return run(words, folder)["checksum"]
    finally:
        shared_memory._open = before


def test_a_run_has_the_same_bits_on_two_machines(worlds, tmp_path):
    words = settings("bayes_admm", *MODELS["mlp"])
    (one,) = worlds(1).run(run, words, str(tmp_path / "one"))
    assert set(worlds(4).run(run_apart, words, str(tmp_path / "two"), HOUSES[0])) == {one["checksum"]}


def work(folder, place, lost, how, answers):
    """One of four ranks on two machines; the lost one halts when all have added something up."""
    kept = join(folder, place)
    exchange = Exchange.connect(CPU, TIMEOUT)
    apart(HOUSES[0])
    total(exchange)
    if place.rank == lost:
        answers.put((place.rank, "ready", False))
        time.sleep(0.5)  # what was put must leave this process first
        halt(how, exchange)
    start = time.monotonic()
    try:
        exchange.agree([1])
    except RankLost as error:
        assert time.monotonic() - start < TIMEOUT + SPARE
        answers.put((place.rank, str(error), error.speaks))
        time.sleep(SPARE)
    del kept


@pytest.mark.parametrize("lost", [2, 3])
@pytest.mark.parametrize(
    ("how", "cause"), [(STOP, "its process is stopped"), ("works", "it is at work on its own"), (KILL, "has ended")]
)
def test_a_lost_rank_is_named_on_both_machines(tmp_path, lost, how, cause):
    context, attempt = warm(), uuid.uuid4().hex
    answers = context.Queue()
    places = [Place(rank, 4, rank, attempt, "localhost") for rank in range(4)]
    made = [context.Process(target=work, args=(tmp_path, p, lost, how, answers), daemon=True) for p in places]
    for process in made:
        process.start()
    try:
        said = [answers.get(timeout=60 + SPARE) for _ in range(4)]
    finally:
        for process in made:
            process.kill()
            process.join(timeout=30)
    told = {rank: text for rank, text, _ in said if text != "ready"}
    assert set(told) == {0, 1, 2, 3} - {lost}
    for text in told.values():
        assert f"rank {lost} has" in text
        assert cause in text
    assert sum(speaks for *_, speaks in said) == 1


def network(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def two_machines():
    """Names of two networks with a wire between them, and the first one's address."""
    if os.geteuid() or not shutil.which("ip") or not shutil.which("unshare"):
        pytest.skip("needs root, ip and unshare, to make two networks")
    names = [f"fedddp{os.getpid()}{side}" for side in "ab"]
    cards = [f"f{os.getpid()}{side}" for side in "ab"]
    made = []
    try:
        for name in names:
            try:
                network("netns", "add", name)
            except subprocess.CalledProcessError as error:
                pytest.skip(f"this machine makes no network namespaces: {error.stderr.decode().strip()}")
            made.append(name)
        network("link", "add", cards[0], "netns", names[0], "type", "veth", "peer", "name", cards[1], "netns", names[1])
        for number, (name, card) in enumerate(zip(names, cards, strict=True), 1):
            network("-n", name, "addr", "add", f"10.199.7.{number}/24", "dev", card)
            network("-n", name, "link", "set", card, "up")
            network("-n", name, "link", "set", "lo", "up")
        yield names, cards, "10.199.7.1"
    finally:
        for name in made:
            network("netns", "del", name)


def test_less_crosses_between_machines_and_bits_stay(two_machines, worlds, tmp_path):
    """Bytes between two machines of four ranks: at most 2/3 of what every rank for itself would send."""
    names, cards, address = two_machines
    nodes = []
    for number, (name, card) in enumerate(zip(names, cards, strict=True)):
        env = {**os.environ, "GLOO_SOCKET_IFNAME": card, "OMP_NUM_THREADS": "1"}
        own = ["ip", "netns", "exec", name, "unshare", "--pid", "--fork", "--mount-proc", sys.executable]
        command = [*own, "-m", "tests.exchange.machines", str(number), address, "29511", str(tmp_path)]
        nodes.append(subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True))
    said = [node.communicate(timeout=150)[1] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], said
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(NODES * RANKS)]
    assert [one["machine"] for one in found] == 4 * [[0, 1, 2, 3]] + 4 * [[4, 5, 6, 7]]
    assert len({one[way]["checksum"] for one in found for way in ("flat", "shared")}) == 1
    flat, shared = (found[0][way]["bytes"] for way in ("flat", "shared"))
    print(f"bytes between two machines of four ranks: {flat} without, {shared} with their memory: {shared / flat:.3f}")
    assert shared <= 2 / 3 * flat
    (alone,) = worlds(1).run(run, settings("bayes_admm", *MODELS["mlp"]), str(tmp_path / "alone"))
    assert {one["run"] for one in found} == {alone["checksum"]}
