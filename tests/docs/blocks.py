"""Fenced blocks of the pages, and what a shell block would run: bash reads it, with programs that only take notes."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

TREE = Path(__file__).parents[2]
FENCE = re.compile(r"^```(\w+)?(?: title=\"([^\"]+)\")?[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NOTED = ("fedddp", "python", "pip", "torchrun", "srun", "sbatch", "tensorboard", "slurm/sandbox", "launch/demo")
NOTED = (*NOTED, "launch/test", "launch/docs", "launch/setup", ".venv/bin/fedddp", ".venv/bin/tensorboard")
REAL = ("cat", "mkdir", "echo")
NOTE = """#!/bin/bash
{ printf '%s\\37' "$PWD" "${0#@HERE@/}" "$@"; printf '\\36'; } >> "$NOTES"
case "${0##*/} $1" in "fedddp init") mkdir -p "$2" ;; esac
"""


class Block(NamedTuple):
    page: Path
    line: int
    language: str
    title: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(TREE)}:{self.line}"


class Command(NamedTuple):
    folder: Path
    program: str
    words: list[str]


def pages() -> list[Path]:
    return [*sorted(TREE.glob("*.md")), *sorted((TREE / "docs").rglob("*.md"))]


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for found in FENCE.finditer(text):
        yield Block(page, text[: found.start()].count("\n") + 1, found[1] or "", found[2] or "", found[3])


def lay_out(folder: Path) -> None:
    """A folder in which a block of shell can be read: programs of these names, and nothing else of this machine."""
    for name in NOTED:
        program = folder / name if "/" in name else folder / ".stubs" / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(NOTE.replace("@HERE@", str(program.parents[name.count("/")])))
        program.chmod(0o755)
    for name in REAL:
        found = shutil.which(name)
        assert found
        (folder / ".stubs" / name).symlink_to(found)
    (folder / ".venv" / "bin" / "activate").write_text("")


def commands(block: Block, folder: Path) -> list[Command]:
    """What the block runs, loops and here-documents and all; a program that nobody knows is an error."""
    notes = folder / ".notes"
    notes.unlink(missing_ok=True)
    env = {"PATH": str(folder / ".stubs"), "NOTES": str(notes), "HOME": str(folder)}
    bash = shutil.which("bash")
    assert bash
    done = subprocess.run(
        [bash, "-eu", "-c", block.text], cwd=folder, env=env, capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, f"{block}: {done.stderr}"
    found = notes.read_text().split("\36")[:-1] if notes.exists() else []
    lines = [one.split("\37")[:-1] for one in found]
    return [Command(Path(where), program, words) for where, program, *words in lines]


def script(page: Path) -> str:
    """A whole page for bash: titled blocks become files; shell and Python run in the page's order."""
    parts, typed = ["set -eu"], ""
    for number, block in enumerate([*blocks(page), Block(page, 0, "bash", "", "")]):
        if block.language == "python" and not block.title:
            typed += block.text  # in one session, until the shell has its turn
        elif block.language == "python":
            parts.append(_file(block.title, block.text))
        elif block.language == "bash":
            parts += [_file(f"block{number}.py", _main(typed)), f"python block{number}.py"] if typed else []
            parts.append(block.text)
            typed = ""
    return "\n".join(parts)


def _file(name: str, text: str) -> str:
    folder = os.path.dirname(name)
    return "\n".join([f"mkdir -p {folder or '.'}", f"cat > {name} <<'END_OF_BLOCK'", text.rstrip(), "END_OF_BLOCK"])


def _main(text: str) -> str:
    """Processes that a script starts import it, so its lines stand below a main."""
    return "if __name__ == '__main__':\n" + "\n".join(f"    {line}" if line else "" for line in text.splitlines())
