"""Every block of every page: commands are configured for real, the quick ones run; Python runs."""

import shutil
import tomllib
from pathlib import Path

import pytest

from fedddp.cli import _parse, main
from fedddp.config import loading as config
from fedddp.reproduce import protocol
from tests.docs import blocks
from tests.docs.blocks import TREE, Block, Command

QUICK = ("explain", "list", "init", "completion")  # run for real, in this process
# pages whose Python starts sweeps or looks at runs: tests/long runs them whole, as it does those of docs/start
WHOLE = ("files.md", "bits.md", "table.md", "model.md", "sweeps.md", "python.md")
AFTER = ("privacy.md",)  # goes on with runs of its shell blocks: test_privacy_page.py runs both
SHELL = [block for page in blocks.pages() for block in blocks.blocks(page) if block.language == "bash"]
PYTHON = [
    (page, [block for block in blocks.blocks(page) if block.language == "python"])
    for page in blocks.pages()
    if page.name not in (*WHOLE, *AFTER) and any(block.language == "python" for block in blocks.blocks(page))
]


def own_files(page: Path, folder: Path) -> None:
    """The page's titled blocks, and the method that the README writes, which other pages speak of."""
    readme = next(block for block in blocks.blocks(TREE / "README.md") if block.title == "my/method.py")
    for block in (readme, *blocks.blocks(page)):
        if block.title.endswith((".py", ".yaml")):
            (folder / block.title).parent.mkdir(parents=True, exist_ok=True)
            (folder / block.title).write_text(block.text)


@pytest.mark.parametrize("block", SHELL, ids=str)
def test_every_command_is_one_and_its_settings_are_right(block: Block, tmp_path, monkeypatch, capsys):
    blocks.lay_out(tmp_path)
    own_files(block.page, tmp_path)
    before = [one for one in SHELL if one.page == block.page and one.line < block.line]
    if any("fedddp init" in one.text for one in before):  # the page goes on in the folder that it has made
        shutil.copytree(TREE / "configs" / "project", tmp_path, dirs_exist_ok=True)
    monkeypatch.setenv("HOME", str(tmp_path))
    for command in blocks.commands(block, tmp_path):
        monkeypatch.chdir(command.folder)
        CHECKS.get(command.program, is_there)(command)


def fedddp(command: Command) -> None:
    """Parsed; its settings resolved, for each point of a sweep; the quick ones run."""
    name, *rest = command.words
    arguments = _parse([name, *rest])
    if name in QUICK:
        run(*command.words)
    elif name == "sweep":
        run(*command.words, "--dry-run")
    elif name in ("run", "show", "split", "submit"):
        experiment, words = config.split_words(arguments.words)
        resumed = experiment is not None and experiment.endswith("config.yaml")
        config.load(None if resumed else experiment, words)
    elif name == "figure" and arguments.name:
        assert (TREE / f"fedddp/figures/{arguments.name}.py").is_file()
    elif name == "reproduce" and arguments.name:
        protocol.read(arguments.name)


def run(*words: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    assert not ended.value.code, words


def module(command: Command) -> None:
    """`-m fedddp ...` behind torchrun or python; otherwise a file that is there."""
    if "-m" in command.words:
        name, *rest = command.words[command.words.index("-m") + 1 :]
        if name == "fedddp":
            fedddp(Command(command.folder, "fedddp", rest))
        else:
            assert name == "pytest" or (TREE / f"{name.replace('.', '/')}.py").is_file()


def pip(command: Command) -> None:
    """Extras and files that there are, and the version of this tree."""
    project = tomllib.loads((TREE / "pyproject.toml").read_text())["project"]
    for word in command.words:
        if word.startswith("fedddp["):
            assert set(word[7:-1].split(",")) <= set(project["optional-dependencies"])
        if word.endswith(".whl"):
            assert word.startswith(f"fedddp-{project['version']}-")
        if word.endswith(".lock"):
            assert (TREE / word).is_file()


def is_there(command: Command) -> None:
    assert "/" not in command.program or command.program.startswith(".venv/") or (TREE / command.program).exists()


CHECKS = {"fedddp": fedddp, "torchrun": module, "python": module, "pip": pip, ".venv/bin/fedddp": fedddp}


@pytest.mark.parametrize(("page", "found"), PYTHON, ids=lambda value: value.name if isinstance(value, Path) else "")
def test_python_runs(page, found, tmp_path, monkeypatch):
    """A page's blocks one after the other, as its reader would; titled ones are files, and are imported."""
    own_files(page, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    scope = {"__name__": "page"}
    for block in found:
        exec(compile(block.text, str(block), "exec"), scope)


def test_a_wrong_command_is_found(tmp_path, monkeypatch):
    """The checks above can fail."""
    blocks.lay_out(tmp_path)
    monkeypatch.chdir(tmp_path)

    def check(text: str) -> None:
        for command in blocks.commands(Block(TREE / "README.md", 0, "bash", "", text), tmp_path):
            CHECKS.get(command.program, is_there)(command)

    check("for m in fedavg feddyn; do fedddp run digits method=$m \\\n seed=1; done")
    with pytest.raises(ValueError, match=r"method\.alfa"):
        check("for m in fedavg feddyn; do fedddp run digits method=$m method.alfa=1; done")
    with pytest.raises(SystemExit):
        check("fedddp run digits --rankz 2")
    with pytest.raises(AssertionError, match="not found"):
        check("fedddd run digits")


def test_indented_code_does_not_hide_commands():
    """Only fences are checked, so a command stands in a fence."""
    hidden = [
        f"{page.relative_to(TREE)}: {line}"
        for page in blocks.pages()
        for line in blocks.FENCE.sub("", page.read_text()).splitlines()
        if line.startswith("    fedddp ")
    ]
    assert not hidden
