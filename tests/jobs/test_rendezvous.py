"""Ranks find rank 0 of their own attempt, on a port that nobody else can have."""

import os
import threading

import pytest

from fedddp.exchange.meeting import open_store
from fedddp.jobs import rendezvous
from fedddp.jobs.rendezvous import Place, join


def place(rank: int, attempt: str = "7.0.0") -> Place:
    return Place(rank, 2, rank, attempt, "127.0.0.1")


@pytest.fixture
def environ(monkeypatch):
    """What join() sets is undone."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name in ("TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RESTART_COUNT"):
        monkeypatch.setenv(name, "")
    yield os.environ
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)


def test_an_earlier_attempt_is_not_taken_for_this_one(tmp_path):
    rendezvous.write(tmp_path, place(0, "7.0.0"), 1234)
    assert rendezvous.read(tmp_path, place(1, "7.0.0")) == ("127.0.0.1", 1234)
    assert rendezvous.read(tmp_path, place(1, "7.0.1")) is None


def test_half_a_line_is_no_address(tmp_path):
    rendezvous.write(tmp_path, place(0), 1234)
    whole = (tmp_path / rendezvous.NAME).read_text()
    for end in range(len(whole) - 1):
        (tmp_path / rendezvous.NAME).write_text(whole[:end])
        assert rendezvous.read(tmp_path, place(1)) is None


def test_a_rank_waits_for_rank_0(tmp_path, environ):
    threading.Timer(0.3, rendezvous.write, (tmp_path, place(0), 4321)).start()
    assert join(tmp_path, place(1))
    assert (environ["MASTER_ADDR"], environ["MASTER_PORT"], environ["RANK"]) == ("127.0.0.1", "4321", "1")


def test_a_rank_does_not_wait_for_a_finished_run(tmp_path, environ):
    (tmp_path / "summary.json").write_text("{}")
    assert join(tmp_path, place(1)) is None


def test_a_rank_alone_meets_nobody(tmp_path, environ):
    assert join(tmp_path, Place(0, 1, 0, "1", "127.0.0.1"))
    assert "RANK" not in environ
    assert not (tmp_path / rendezvous.NAME).exists()


def test_two_jobs_on_one_machine_never_share_a_port():
    stores = [open_store("127.0.0.1") for _ in range(5)]
    assert len({port for _, port in stores}) == 5


def test_a_rank_waits_for_rank_0_as_long_as_the_run_says(tmp_path):
    (tmp_path / "config.yaml").write_text("federation:\n  rounds: 3\n  timeout: 0.3\n")
    with pytest.raises(SystemExit, match=r"rank 0 has not answered for 0\.3 s \(federation\.timeout\): rank 1 waited"):
        join(tmp_path, place(1))


def test_nodes_of_a_cluster_may_start_slowly(tmp_path, environ, monkeypatch):
    for name, value in {"PROCID": 1, "STEP_NUM_TASKS": 2, "LOCALID": 0}.items():
        monkeypatch.setenv(f"SLURM_{name}", str(value))
    (tmp_path / "config.yaml").write_text("federation:\n  timeout: 0.1\n")
    mine = Place.in_slurm()
    threading.Timer(0.5, rendezvous.write, (tmp_path, mine, 4321)).start()
    assert join(tmp_path, mine)
    assert float(environ["FEDDDP_PATIENCE"]) == rendezvous.SLOW_START
