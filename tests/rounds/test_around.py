"""A method around another hands on every hook, with that one's own memories and its own view of the task."""

from inspect import isfunction, signature
from typing import NamedTuple
from unittest.mock import MagicMock

import pytest

from fedddp.rounds.around import Around
from fedddp.rounds.method import Method, Phase

MEMORIES = ("server", "clients", "client", "before", "after", "own")
HOOKS = [name for name, hook in vars(Method).items() if isfunction(hook) and not name.startswith("_")]


class Server(NamedTuple):
    method: object
    more: str = "kept"


class Plain(Around):
    pass


class Holding(Around):
    _holds = (Server,)

    def _task(self, task):
        return f"inner {task}"


def called(kind, hook, memory):
    """What the inner method was called with, what it returned, and what came of that."""
    inner = MagicMock()
    if hook == "client_step":
        inner.client_step.return_value = ("own memory", {})
    names = list(signature(getattr(Method, hook)).parameters)[1:]
    if hook == "noisy":  # whose `clients` are a number
        names = ["server", "change", "number"]
    found = getattr(kind(inner), hook)(*(memory if name in MEMORIES else name for name in names))
    (call,) = getattr(inner, hook).call_args_list
    return dict(zip(names, call.args, strict=True)), inner, found


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_is_handed_on(hook):
    assert hook in vars(Around)
    given, inner, found = called(Plain, hook, "memory")
    assert all(value == ("memory" if name in MEMORIES else name) for name, value in given.items())
    if hook not in ("phase", "client_step"):
        assert found is getattr(inner, hook).return_value


@pytest.mark.parametrize("hook", HOOKS)
def test_the_method_sees_its_own_memory_and_task(hook):
    given, inner, found = called(Holding, hook, Server("memory"))
    for name, value in given.items():
        assert value == ("memory" if name in MEMORIES else "inner task" if name == "task" else name)
    if hook in ("server_step", "mend", "forget", "admit", "remember"):
        assert found == Server(getattr(inner, hook).return_value)
    if hook == "client_step":
        assert found == (Server("own memory"), {})
    if hook == "phase":
        assert isinstance(found, Phase)


@pytest.mark.parametrize("hook", ["forget", "admit"])
def test_what_the_method_cannot_do_cannot_be_done(hook):
    inner = MagicMock(**{f"{hook}.return_value": None})
    rest = ["client", "task"] if hook == "forget" else ["task"]
    assert getattr(Holding(inner), hook)(Server("memory"), *rest) is None
