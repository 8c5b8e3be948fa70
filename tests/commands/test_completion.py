"""The tab key, in real shells."""

import os
import shutil
import time

import pexpect
import pytest

from fedddp.cli import main

TYPED = {  # and what the shell makes of it
    "ru\t": "fedddp run ",
    "run dig\t": "fedddp run digits ",
    "run digits method=bayes\t": "method=bayes_admm ",
    "run digits method=feddyn method.weight\t": "method.weight_decay=",
    "run digits federation.rou\t": "federation.rounds=",
    "sweep --clu\t": "--cluster ",
    "sweep --cluster sl\t": "--cluster slurm ",
    "explain ot_fu\t": "explain ot_fusion ",
    "list sol\t": "list solvers ",
    "report some\t": "report some-folder/",
}


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    """The folder of what `fedddp completion` prints."""
    folder = tmp_path_factory.mktemp("completion")
    (folder / "some-folder").mkdir()
    for shell in ("bash", "zsh"):
        with pytest.MonkeyPatch.context() as patch, (folder / shell).open("w") as file:
            patch.setattr("sys.stdout", file)
            with pytest.raises(SystemExit):
                main(["completion", shell])
    return folder


def open_shell(shell: str, folder) -> pexpect.spawn:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    plain = {"bash": ["--norc", "--noprofile", "-i"], "zsh": ["-f", "-i"]}[shell]
    env = {**os.environ, "TERM": "dumb", "PS1": "$ "}
    opened = pexpect.spawn(shell, plain, cwd=str(folder), env=env, encoding="utf8", timeout=20, dimensions=(50, 200))
    opened.sendline(f". ./{shell}; echo rea''dy")
    opened.expect("ready")
    return opened


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_tab_key(scripts, shell):
    opened = open_shell(shell, scripts)
    for typed, wanted in TYPED.items():
        opened.send(f"fedddp {typed}")
        opened.expect_exact(wanted)
        opened.send("\x15")  # clear the line
    opened.close(force=True)


def test_names_are_offered_as_bash_wants_them_and_at_once(scripts):
    """bash replaces what stands behind the last = alone."""
    line = "fedddp run digits method=fedad"
    opened = open_shell("bash", scripts)
    opened.sendline(f"COMP_LINE='{line}' COMP_POINT={len(line)}; start=${{EPOCHREALTIME/./}}; _fedddp")
    opened.sendline('echo "<${COMPREPLY[*]}> $(( ${EPOCHREALTIME/./} - start )) microseconds"')
    opened.expect(r"\r\n<([^>]*)> (\d+) microseconds")
    assert opened.match[1].split() == ["fedadagrad", "fedadam", "fedadmm"]
    opened.close(force=True)


def test_it_is_quick(scripts):
    """Less than 0.3 s from the key to the last of some hundred words."""
    opened = open_shell("bash", scripts)
    opened.sendline("bind 'set completion-query-items 0'; bind 'set page-completions off'; echo rea''dy")
    opened.expect("ready")
    start = time.monotonic()
    opened.send("fedddp run digits \t\t")
    opened.expect_exact("split.seed=")
    taken = time.monotonic() - start
    opened.close(force=True)
    assert taken < 0.3 + opened.delaybeforesend
