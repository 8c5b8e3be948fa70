"""Every `fedddp run` of the pages that are not run whole, for one short round, where its data are at hand or small."""

import os

import pytest

from fedddp.cli import _parse
from fedddp.config import loading as config
from tests.docs import blocks
from tests.docs.blocks import TREE, Block, Command
from tests.docs.test_blocks import SHELL, own_files
from tests.forked import fedddp
from tests.long.test_newcomer import PAGES

SHORT = ["federation.rounds=1", "local.epochs=1", "evaluation.histograms=0"]
WHOLE = {TREE / "docs" / name for name in PAGES} | {*(TREE / "docs" / "start").glob("*.md")}
RANKS = "WORLD_SIZE="  # one job in several terminals: tests/test_cli.py and tests/long/test_outside.py start such
OTHERS = [one for one in SHELL if one.page not in WHOLE and "fedddp run" in one.text and RANKS not in one.text]


def short(words: list[str]) -> list[str]:
    keys = tuple(f"{one.partition('=')[0]}=" for one in SHORT)
    return [word for word in words if not word.startswith(keys)] + SHORT


def is_small(command: Command) -> bool:
    """A run, on data that come with scikit-learn or are in FEDDDP_DATA and few."""
    if command.program != "fedddp" or command.words[0] != "run":
        return False
    name = config.load(*config.split_words(_parse(command.words).words))["data.name"]
    return name == "digits" or (name == "heart" and "FEDDDP_DATA" in os.environ)


@pytest.mark.parametrize("block", OTHERS, ids=str)
def test_its_runs_run(block: Block, tmp_path, monkeypatch):
    blocks.lay_out(tmp_path)
    own_files(block.page, tmp_path)
    monkeypatch.chdir(tmp_path)
    found = [command for command in blocks.commands(block, tmp_path) if is_small(command)]
    if not found:
        pytest.skip("its data are many: `fedddp reproduce` runs them")
    for command in found:
        done = fedddp(*short(command.words), cwd=tmp_path)
        assert done.returncode == 0, f"{command.words}: {done.stderr}"
