"""torchrun starts ranks anew when one is killed: the run goes on, and ends with the same bits."""

import pytest

from tests.soak.restarts import TIMEOUT, Soak, whole


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> str:
    return whole(tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize(("agents", "kills"), [(1, 2), pytest.param(2, 2, marks=pytest.mark.long)])
def test_torchrun_goes_on_after_a_kill(tmp_path, expected, agents, kills):
    rows, checksum = Soak(tmp_path, agents, per_agent=2 // agents, seed=agents).run(kills)
    assert [row.outcome for row in rows] == ["went on"] * kills
    assert max(row.gone for row in rows) < TIMEOUT
    assert checksum == expected
