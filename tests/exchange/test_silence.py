"""Who is missing: ranks find it out through sockets alone, wherever the store is kept, and one of them says so."""

import os
import signal
import time
import uuid

import pytest
import torch

from fedddp.exchange.group import Exchange, RankLost
from fedddp.exchange.watch import Found, Watch, bounded
from fedddp.jobs.pool import warm
from fedddp.jobs.rendezvous import Place, join

CPU = torch.device("cpu")
TIMEOUT = 2
SPARE = 20.0  # seconds beyond it, on a busy machine
STOP, KILL = signal.SIGSTOP, signal.SIGKILL


def work(folder, place, lost, when, how, answers):
    """A rank; those that are lost halt before they meet the others, or later."""
    kept = join(folder, place)
    mine = place.rank in lost
    answers.put((place.rank, "joined", False))
    if mine and when == "before":
        time.sleep(0.5)  # what was put must leave this process first
        halt(how)
    start = time.monotonic()
    try:
        exchange = Exchange.connect(CPU, TIMEOUT)
        exchange.barrier()
        if mine:
            halt(how, exchange)
        start = time.monotonic()
        exchange.agree([1])
        exchange.agree([2])
    except RankLost as error:
        assert time.monotonic() - start < TIMEOUT + SPARE
        answers.put((place.rank, str(error), error.speaks))
        time.sleep(SPARE)  # the test ends us: what an end would mean is another test's question
    del kept


def halt(how, exchange=None):
    if how == "leaves":
        exchange.leave("OSError: the disk is full")
        time.sleep(1)
        how = KILL
    if how == "works":
        time.sleep(600)
    os.kill(os.getpid(), how)


def play(tmp_path, lost, when, how, ranks=3):
    """What the other ranks say, and who of them says it aloud."""
    context, attempt = warm(), uuid.uuid4().hex
    answers = context.Queue()
    places = [Place(rank, ranks, rank, attempt, "localhost") for rank in range(ranks)]
    made = [context.Process(target=work, args=(tmp_path, p, lost, when, how, answers), daemon=True) for p in places]
    for process in made:
        process.start()
    try:
        said = [answers.get(timeout=60 + SPARE) for _ in range(2 * ranks - len(lost))]
    finally:
        for process in made:
            process.kill()
            process.join(timeout=30)
    texts = {rank: text for rank, text, _ in said if text != "joined"}
    assert set(texts) == set(range(ranks)) - set(lost)
    return list(texts.values()), [rank for rank, _, speaks in said if speaks]


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize(("how", "cause"), [(STOP, "its process is stopped"), ("works", "it is at work on its own")])
def test_a_rank_that_does_not_come_is_named_by_one_other(tmp_path, rank, how, cause):
    texts, speakers = play(tmp_path, [rank], "later", how)
    for text in texts:
        assert text.startswith(f"rank {rank} has not answered for 2 s (federation.timeout): {cause}")
    assert len(speakers) == 1


@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_that_has_ended_is_named_at_once(tmp_path, rank):
    texts, speakers = play(tmp_path, [rank], "later", KILL)
    for text in texts:
        assert f"lost contact with another rank: rank {rank} has ended: its own message" in text
    assert len(speakers) == 1


def test_what_a_rank_says_before_it_fails_reaches_the_others(tmp_path):
    texts, _ = play(tmp_path, [1], "later", "leaves")
    for text in texts:
        assert text.endswith("rank 1 has ended: OSError: the disk is full")


@pytest.mark.parametrize("how", [STOP, KILL])
@pytest.mark.parametrize("lost", [[0], [1], [1, 2]])
def test_a_rank_that_does_not_come_to_the_meeting_is_named(tmp_path, lost, how):
    texts, speakers = play(tmp_path, lost, "before", how)
    who = "rank {} has" if len(lost) == 1 else "ranks {}, {} have"
    for text in texts:
        assert text.startswith(f"{who.format(*lost)} not answered for 2 s (federation.timeout): it ")
    assert len(speakers) == 1


def test_a_foreign_process_at_a_ranks_port_is_not_taken_for_it():
    mine, other = Watch(0), Watch(1)
    host, port, _ = other.address.split()
    mine.peers = {0: mine.address, 1: other.address}
    other.calls = 5
    assert mine.find(late=True) == (Found(), True)
    mine.peers[1] = f"{host} {port} another"
    assert mine.find(late=False) == (Found((1,), "ended"), True)
    mine.peers[1] = other.address
    other.close()
    assert mine.find(late=False) == (Found((1,), "ended"), True)
    mine.close()


def test_a_call_without_end_is_given_up():
    with pytest.raises(TimeoutError):
        bounded(lambda: time.sleep(60), 0.1)
    with pytest.raises(KeyboardInterrupt):
        bounded(lambda: time.sleep(60), 50, lambda: True)
    with pytest.raises(ZeroDivisionError):
        bounded(lambda: 1 // 0, 10)
