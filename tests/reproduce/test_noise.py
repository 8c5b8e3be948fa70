"""What noise costs: every row is a configuration that says what it is, real runs of two rows, and the page's tables."""

import pytest

from fedddp.config import loading as configuration
from fedddp.reproduce import noise, ranking
from fedddp.rounds import accounting
from tests.data.test_tables import hospitals
from tests.reproduce.test_ranking import one_group

pytestmark = pytest.mark.skipif(bool(accounting.available()), reason=accounting.available())
assert one_group  # a fixture
ONE = "private_heart"


@pytest.mark.parametrize("name", noise.ROWS)
def test_a_row_is_what_it_says(name):
    row = noise.ROWS[name]
    rates = set()
    for factor in noise.FACTORS:
        config = configuration.load(ONE, noise.words(ONE, name, 2, factor))
        level = {"virtual client": "part", "averaged part": "part"}.get(row.level, row.level)
        assert (config.title("method"), config.seed, config.privacy.level) == (row.method, 2, level)
        assert config.privacy.epsilon == row.epsilon
        rates.add(config.privacy.clip.get("all", config["local.lr"]))
    assert len(rates) == len(noise.FACTORS)


def test_real_runs_fill_the_page_and_are_not_run_again(tmp_path, monkeypatch):
    hospitals(tmp_path / "heart")
    monkeypatch.setenv("FEDDDP_DATA", str(tmp_path))
    rows, path = ["fedavg-client-8", "pvi-example-4"], tmp_path / "noise.json"
    small = lambda *row: [*noise.words(*row), "data.validation=10", "federation.rounds=2"]  # noqa: E731
    table = ranking.Table((ONE,), rows, small, (1.0, 0.3))
    found = list(ranking.run(tmp_path / "runs", path, (1, 2), table))
    assert [(e.method, e.seed) for e in found] == [(row, 1) for row in rows] * 2 + [(row, 2) for row in rows]
    assert not list(ranking.run(tmp_path / "runs", path, (1, 2), table))
    page = noise.filled("before\n<!-- noise -->\nold\n<!-- end -->\nafter\n", ranking.read(path))
    assert "old" not in page
    assert page.startswith("before\n<!-- noise -->\nHeart:")
    assert page.endswith("<!-- end -->\nafter\n")
    (line,) = [line for line in page.splitlines() if "| 4 | pvi" in line and "local.lr" in line]
    rate = ranking.chosen([e for e in found if e.method == "pvi-example-4"])
    assert f"`local.lr={rate * 0.1:g}` | 2 | 0." in line
    assert "| 1 | pvi, examples |  |  | not run |" in page
