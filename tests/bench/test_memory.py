"""What a run must hold is counted, and what a process holds is read."""

import mmap

from fedddp.bench.memory import needed, resident
from tests.small import MODELS, settings


def test_what_a_run_must_hold(exchange):
    words = settings("scaffold", *MODELS["mlp"], "federation.cohort_width=3")
    found = needed(words, exchange)
    parameters = 64 * 12 + 12 + 12 * 10 + 10
    assert found["data"] == 1797 * (64 + 8)  # bytes of pixels, and a class as int64
    assert found["rows"] == 7 * parameters * 4
    assert found["buffers"] == 3 * parameters * 2 * 4


def test_resident_memory_follows_what_is_touched():
    """Pages of its own: malloc may serve a tensor from what earlier tests have freed."""
    size, before = 40_000_000, resident("RssAnon")
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as held:
        assert resident("RssAnon") - before < 0.1 * size
        held.write(bytes(size // 40) * 40)
        assert resident("RssAnon") - before > 0.9 * size
    assert resident("VmHWM") >= resident("VmRSS")
