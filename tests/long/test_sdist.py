"""The source distribution is whole: a wheel made of it is the wheel of the tree."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from tests.test_wheel import TREE, _left_behind, build_wheel

BUILD = "import sys, setuptools.build_meta as backend; getattr(backend, sys.argv[1])(sys.argv[2])"


def build(kind: str, tree: Path, into: Path) -> Path:
    before = set(into.iterdir())
    done = subprocess.run([sys.executable, "-c", BUILD, kind, into], cwd=tree, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (made,) = set(into.iterdir()) - before
    return made


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as file:
        return set(file.namelist())


def test_a_wheel_of_the_sdist_is_that_of_the_tree(tmp_path):
    for part in ("tree", "sdist", "of_sdist", "of_tree"):
        (tmp_path / part).mkdir()
    shutil.copytree(TREE, tmp_path / "tree", ignore=_left_behind, dirs_exist_ok=True)
    sdist = build("build_sdist", tmp_path / "tree", tmp_path / "sdist")
    with tarfile.open(sdist) as file:
        file.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    wheel = build("build_wheel", unpacked, tmp_path / "of_sdist")
    assert names(wheel) == names(build_wheel(tmp_path / "of_tree"))
