"""Every example of the page on privacy is run, each with its own settings over two rounds; some go on from others."""

import json
from pathlib import Path

import pytest

from fedddp.cli import _parse
from fedddp.config import loading as configuration
from fedddp.rounds import accounting
from fedddp.runs import members
from tests.docs import blocks
from tests.docs.blocks import TREE, Block, Command
from tests.small import run

pytestmark = pytest.mark.skipif(bool(accounting.available()), reason=accounting.available())
PAGE = TREE / "docs" / "privacy.md"
FOUND = list(blocks.blocks(PAGE))
ROUNDS = 2


def commands(text: str, folder: Path) -> list[Command]:
    blocks.lay_out(folder)
    return [one for block in FOUND if text in block.text for one in blocks.commands(block, folder) if runs(block, one)]


def runs(block: Block, command: Command) -> bool:
    return block.language == "bash" and command.program == "fedddp"


def train(words: list[str], folder: Path) -> dict:
    """`fedddp run`, on one rank, into the folder that it names or this one."""
    arguments = _parse(words)
    name, settings = configuration.split_words(arguments.words)
    config = configuration.load(name, [*settings, f"federation.rounds={ROUNDS}"])
    return run(config, str(arguments.out or folder))


def test_sums_that_hide_their_parts_are_the_plain_ones(exchange, tmp_path):
    found = commands("exchange.secure=rank", tmp_path)
    assert len(found) == 3
    for number, command in enumerate(found):
        plain = [word for word in command.words if not word.startswith("exchange.secure=rank")]
        both = [train(words, tmp_path / f"{number}{at}")["checksum"] for at, words in enumerate((command.words, plain))]
        assert both[0] == both[1]


def test_every_kind_of_noise_is_accounted_for(exchange, tmp_path):
    found = commands("# examples: clipped gradients", tmp_path)
    levels = {train(command.words, tmp_path / f"{at}")["privacy"]["level"] for at, command in enumerate(found)}
    assert len(found) == 5
    assert levels == {"example", "client", "part"}
    assert all(json.loads((tmp_path / f"{at}" / "summary.json").read_text())["epsilon"] > 0 for at in range(5))


def test_clients_leave_and_join_as_the_page_does(exchange, tmp_path, monkeypatch):
    found = commands("fedddp forget", tmp_path)
    monkeypatch.chdir(tmp_path)
    for command in found:
        if command.words[0] == "run":
            train(command.words, tmp_path / "unnamed")
            continue
        given = _parse(command.words)
        change, word = {"forget": (members.forget, "without"), "join": (members.join, "with")}[command.words[0]]
        out = members.beside(given.run, word, given.client)
        config = change(given.run, members.configuration(given.run), given.client, given.rounds, out)
        assert run(config, str(out), True)["rounds"] == ROUNDS + given.rounds
    (python,) = [block for block in FOUND if block.language == "python"]
    exec(compile(python.text, str(python), "exec"), {})
    clients = {one.name: len(json.loads((one / "clients.json").read_text())["names"]) for one in Path("runs").iterdir()}
    assert clients == {"all": 10, "all-without-3": 9, "others": 9, "nine": 9, "nine-with-3": 10}
