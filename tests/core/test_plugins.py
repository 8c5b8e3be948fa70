"""Classes from anywhere: how they are named, found, checked, and told apart by what is written in them."""

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from fedddp.core import plugins, registry

METHOD = '''
"""A file of mine."""
from fedddp import Clients, Mean, Method, Server
from {helper} import half

class Mine(Method):
    """Half of the way."""

    def client_step(self, server, clients, cohort, local):
        fit = local.minimise(cohort, server.theta, clients.solver)
        return Clients(fit.memory), {{"theta": Mean(fit.theta)}}

    def server_step(self, server, total, task):
        return Server(half(server.theta + total["theta"]))
'''


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A file with a method, and one beside it that it imports; its name is not used by any other test."""
    helper = f"helper_{abs(hash(tmp_path))}"
    (tmp_path / "mine.py").write_text(METHOD.format(helper=helper))
    (tmp_path / f"{helper}.py").write_text("def half(x):\n    return x / 2\n")
    (tmp_path / "unrelated.py").write_text("raise RuntimeError('nobody imports this')\n")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.path[:] = [path for path in sys.path if path != str(tmp_path)]


def test_a_file_of_ones_own_from_the_current_folder(folder):
    found = registry.look_up("method", "mine.py:Mine")
    assert found.name == f"{folder}/mine.py:Mine"
    assert found.origin == f"{folder}/mine.py"
    assert found.kind.__name__ == "Mine"
    assert registry.describe("method", "mine.py:Mine") == "Half of the way."
    assert registry.name_of(found.kind()) == plugins.title(found.name) == "Mine"


def test_its_content_and_that_of_what_it_imports_count_and_its_place_does_not(folder):
    first = plugins.load("mine.py:Mine")
    assert [path.name for path in first.files] == ["mine.py", next(folder.glob("helper_*")).name]
    moved = folder / "elsewhere"
    moved.mkdir()
    for path in first.files:
        (moved / path.name).write_bytes(path.read_bytes())
    assert plugins.load("elsewhere/mine.py:Mine").digest == first.digest
    first.files[1].write_text("def half(x):\n    return x / 3\n")
    assert plugins.load("mine.py:Mine").digest != first.digest


def test_an_edited_file_is_imported_anew(folder):
    before = plugins.load("mine.py:Mine").made
    path = folder / "mine.py"
    path.write_text(path.read_text().replace("Half of the way", "Edited"))
    after = plugins.load("mine.py:Mine").made
    assert (before.__doc__, after.__doc__) == ("Half of the way.", "Edited.")


def test_a_module_that_can_be_imported(folder, monkeypatch):
    package = folder / "package_of_mine"
    (package / "inner").mkdir(parents=True)
    for name in ("__init__.py", "inner/__init__.py"):
        (package / name).write_text("")
    (package / "inner" / "methods.py").write_text(
        "from fedddp.methods import fedavg\nfrom ..tools import nothing\n\nclass Mine(fedavg.Method):\n    pass\n"
    )
    (package / "tools.py").write_text("nothing = None\n")
    monkeypatch.syspath_prepend(str(folder))
    found = registry.look_up("method", "package_of_mine.inner.methods:Mine")
    assert found.name == "package_of_mine.inner.methods:Mine"
    assert {str(path.relative_to(folder)) for path in found.plugin.files} == {
        "package_of_mine/inner/methods.py",
        "package_of_mine/tools.py",
    }


MISTAKES = {
    "syntax": ("class Mine(:\n", r"cannot be imported: SyntaxError: .* \(bad.py, line 1\)"),
    "raises": ("x = 1\ny = x / 0\n", r"ZeroDivisionError: division by zero \(bad.py:2 in <module>\)"),
    "misspelt": (
        "from fedddp import Method\nclass Mine(Method):\n    def server_stpe(self): ...\n",
        r"Mine.server_stpe: not part of the contract .* did you mean server_step\?",
    ),
    "no class": ("Mine = 3\n", "must be a class that derives from fedddp.Method"),
    "another contract": (
        "from fedddp import Source\nclass Mine(Source):\n    def load(self): ...\n",
        "must be a class that derives from fedddp.Method",
    ),
    "not there": ("", "has no Mine"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_file_is_one_line_with_its_place(tmp_path, monkeypatch, mistake):
    monkeypatch.chdir(tmp_path)
    text, message = MISTAKES[mistake]
    Path("bad.py").write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        registry.look_up("method", "bad.py:Mine")
    assert str(error.value).startswith("method=bad.py:Mine: ")
    assert "\n" not in str(error.value)


def test_a_function_is_not_called_for_a_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("bad.py").write_text("def make():\n    raise SystemExit('called')\n")
    with pytest.raises(ValueError, match=r"must be a class that derives from fedddp.Model or torch.nn.Module"):
        registry.look_up("model", "bad.py:make")


def test_a_name_that_an_installed_distribution_registers(folder, monkeypatch, tmp_path_factory):
    site = tmp_path_factory.mktemp("site")
    info = site / "my_package-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(
        "[fedddp.methods]\nmy_method = a_module_of_mine:Mine\nfedavg = a_module_of_mine:Mine\n"
    )
    (site / "a_module_of_mine.py").write_text(
        "from fedddp.methods import fedavg\nclass Mine(fedavg.Method):\n    pass\n"
    )
    monkeypatch.syspath_prepend(str(site))
    registry.installed.cache_clear()
    try:
        assert "my_method" in registry.names("method")
        found = registry.look_up("method", "my_method")
        assert (found.name, found.origin) == ("my_method", "my-package 1.2")
        assert found.plugin is not None
        assert registry.look_up("method", "fedavg").origin == "fedddp", "a built-in name cannot be taken"
    finally:
        registry.installed.cache_clear()


def test_an_entry_point_is_not_imported_to_list_names(monkeypatch):
    point = EntryPoint("broken", "no.such.module:Mine", "fedddp.methods")
    monkeypatch.setattr(registry, "entry_points", lambda group: [point] if group == "fedddp.methods" else [])
    registry.installed.cache_clear()
    try:
        assert "broken" in registry.names("method")
        with pytest.raises(ValueError, match=r"method=broken: no\.such\.module: cannot be imported"):
            registry.look_up("method", "broken")
    finally:
        registry.installed.cache_clear()


def test_what_is_gone_is_found_without_importing_anything(tmp_path, monkeypatch):
    """A report must not run code because a run's folder names it."""
    package = tmp_path / "never_imported"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "there.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    names = ("never_imported:A", "never_imported.there:A", "never_imported.not_there:A", "no_such_package.x:A")
    assert [registry.gone("method", name) for name in names] == [False, False, True, True]
    assert "never_imported" not in sys.modules


def other_helper(x):
    return x + 1


def helper(x):
    return other_helper(x)


class Written:
    def step(self, x):
        return helper(x)


def test_what_is_written_in_a_script_is_the_class_and_what_it_names():
    text = plugins.written(Written)
    assert "return helper(x)" in text
    assert "return x + 1" in text
    assert "test_what_is_written" not in text
