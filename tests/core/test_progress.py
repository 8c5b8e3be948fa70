"""A line on a terminal, and nothing in a log."""

import os
import pty
import sys
import time
import tty

from fedddp.core import progress


def seen(monkeypatch, seconds: float, prepare=lambda terminal: None) -> str:
    monkeypatch.setattr(progress, "PATIENCE", 0.1)
    monkeypatch.setattr(progress, "PACE", 0.05)
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        prepare(terminal)
        with progress.waiting("figure one"), progress.waiting("a part of it"):
            time.sleep(seconds)
        terminal.write("end")
        terminal.flush()
        text = ""
        while not text.endswith("end"):
            text += os.read(ours, 1000).decode()
        return text


def test_what_takes_long_is_said_and_wiped_away(monkeypatch):
    text = seen(monkeypatch, 0.5)
    assert text.startswith("\r\x1b[Kfigure one: 0 s\r")
    assert text.endswith("\r\x1b[Kend")


def test_of_several_ranks_the_first_speaks(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert seen(monkeypatch, 0.3) == "end"


def test_a_line_within_a_line_says_nothing(monkeypatch):
    text = seen(monkeypatch, 0.3)
    assert "figure one" in text
    assert "a part of it" not in text


def test_nobody_speaks_while_somebody_types(monkeypatch):
    """A debugger's prompt reads keys one by one."""
    assert seen(monkeypatch, 0.3, lambda terminal: tty.setcbreak(terminal.fileno())) == "end"


def test_what_is_quick_is_not(monkeypatch):
    assert seen(monkeypatch, 0.0) == "end"


def test_a_log_stays_quiet(monkeypatch, capsys):
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    with progress.waiting("figure one"):
        time.sleep(0.1)
    assert capsys.readouterr().err == ""
