"""Commands of the pages that are not run whole: runs and sweeps for one short round, where their data are few."""

import os
import re

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
OTHERS = [one for one in SHELL if one.page not in WHOLE and "fedddp " in one.text and RANKS not in one.text]
AS_THEY_ARE = ("show", "split", "bench")
LARGE = "its data are many: such experiments run on small files in tests/config, or no data is computed with"


def short(words: list[str]) -> list[str]:
    """One round of two seeds."""
    keys = tuple(f"{one.partition('=')[0]}=" for one in SHORT)
    kept = [re.sub(r"^seed=(\d+)\.\.\d+$", r"seed=\1,9", word) for word in words if not word.startswith(keys)]
    return kept + SHORT


def runnable(command: Command) -> list[str]:
    """What is run of it: on data that come with scikit-learn or are in FEDDDP_DATA and few; nothing otherwise."""
    if command.program != "fedddp":
        return []
    name, *rest = command.words
    if name == "report" and (command.folder / "runs").is_dir() and not any("*" in word for word in rest):
        return command.words
    if name in ("run", "sweep") and "slurm" not in rest and is_small(_parse(command.words).words):
        return short(command.words) + (["--wait"] if name == "sweep" and "--wait" not in rest else [])
    return command.words if name in AS_THEY_ARE else []


def is_small(words: list[str]) -> bool:
    experiment, settings = config.split_words(words)
    if experiment is None:
        settings = [word for word in settings if word.startswith("data")]
    name = config.load(experiment, [word for word in settings if word.startswith("data")])["data.name"]
    return name == "digits" or (name == "heart" and "FEDDDP_DATA" in os.environ)


@pytest.mark.parametrize("block", OTHERS, ids=str)
def test_its_commands_run(block: Block, tmp_path, monkeypatch):
    blocks.lay_out(tmp_path)
    own_files(block.page, tmp_path)
    monkeypatch.chdir(tmp_path)
    ran = 0
    for command in blocks.commands(block, tmp_path):
        if words := runnable(command):
            done = fedddp(*words, cwd=tmp_path)
            assert done.returncode == 0, f"{words}: {done.stderr}"
            ran += 1
    if not ran:
        pytest.skip(LARGE)
