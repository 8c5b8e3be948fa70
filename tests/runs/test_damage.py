"""Every file of a run's folder, damaged in turn: no command fails without naming it, and none gives a wrong result."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from fedddp.cli import main
from tests.harm import HARMS
from tests.small import MODELS, run, settings

WORDS = settings("feddyn", *MODELS["mlp"], "checkpoint.every=1", "evaluation.every=1")
COMMANDS = ("report", "status", "predict", "run")


class Scene:
    """A run in a folder of its own, which is damaged and made new again."""

    def __init__(self, home: Path, kill_after: int, capsys: pytest.CaptureFixture[str]) -> None:
        self.home, self.capsys = home, capsys
        self.kept, self.run = home / "kept", home / "runs" / "run"
        np.savez(home / "inputs.npz", inputs=np.ones((3, 8, 8), dtype=np.float32))
        run(WORDS, str(self.run), kill_after=kill_after)
        self.say("report")  # leaves its index beside the run
        self.run.rename(self.kept)

    def fresh(self) -> None:
        shutil.rmtree(self.run, ignore_errors=True)
        shutil.copytree(self.kept, self.run)
        (self.home / "p.npz").unlink(missing_ok=True)

    def say(self, command: str) -> tuple[int, str, str]:
        """Exit code, output and errors."""
        words = {
            "report": [self.run],
            "status": [self.run],
            "predict": [self.run, self.home / "inputs.npz", "--out", self.home / "p.npz"],
            "run": [*WORDS, "--out", self.run, "--resume", "--ranks", "1"],
        }[command]
        self.capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main([command, *map(str, words)])
        return int(stop.value.code or 0), *self.capsys.readouterr()

    def predicted(self) -> dict[str, list]:
        if not (self.home / "p.npz").exists():
            return {}
        with np.load(self.home / "p.npz") as file:
            return {name: file[name].tolist() for name in file.files}

    def checksum(self) -> str:
        path = self.run / "summary.json"
        return json.loads(path.read_text())["checksum"] if path.exists() else ""


@pytest.mark.parametrize("kill_after", [0, 3], ids=["finished", "interrupted"])
def test_damage_is_named_or_mended_and_never_believed(exchange, tmp_path, capsys, kill_after):
    scene = Scene(tmp_path, kill_after, capsys)
    scene.fresh()
    usual = {command: scene.say(command) for command in COMMANDS}
    predicted, checksum = scene.predicted(), scene.checksum()
    assert usual["run"][0] == 0
    assert checksum
    assert bool(predicted) != bool(kill_after)
    files = sorted(path.relative_to(scene.kept) for path in scene.kept.rglob("*") if path.is_file())
    assert len(files) > 7
    for file in files:
        for name in ("flip", "truncate", "empty"):
            scene.fresh()
            HARMS[name](scene.run / file)
            for command in COMMANDS:
                code, out, err = said = scene.say(command)
                what = f"{name} {file}: {command}: {said}"
                assert "Traceback" not in err, what
                named = file.name in out + err
                assert code in (0, 1, 2), what
                assert code == 0 or said == usual[command] or (named and err.count("fedddp: ") == 1), what
                if command in ("report", "status"):  # an interrupted run may have lost its last lines to a kill
                    assert said == usual[command] or named or (kill_after and file.name == "metrics.jsonl"), what
            assert scene.checksum() == checksum, what
            assert scene.predicted() in ({}, predicted), f"{name} {file}: other predictions"


def test_damage_that_a_resume_mends_is_gone_after_it(exchange, tmp_path, capsys):
    """What can be made from the rest of a finished run is what it was; each is said."""
    scene = Scene(tmp_path, 0, capsys)
    for name in ("config.yaml", "summary.json", "pictures.json", "clients.json", "posterior.safetensors"):
        scene.fresh()
        HARMS["flip"](scene.run / name)
        code, _, err = scene.say("run")
        assert code == 0, err
        assert name in err or name.endswith("safetensors")
        assert (scene.run / name).read_bytes() == (scene.kept / name).read_bytes()
        for command in ("report", "status", "predict"):
            code, out, err = scene.say(command)
            assert (code, "damaged" in out + err) == (0, False), (name, command, out, err)


def test_a_damaged_run_does_not_hide_the_others(exchange, tmp_path, capsys):
    """report and status show the others, and name what is damaged."""
    scene = Scene(tmp_path, 0, capsys)
    for name in ("config.yaml", "summary.json", "metrics.jsonl"):
        for harm in ("truncate", "empty"):
            for folder in ("run", "bad"):
                shutil.rmtree(tmp_path / "runs" / folder, ignore_errors=True)
                shutil.copytree(scene.kept, tmp_path / "runs" / folder)
            HARMS[harm](tmp_path / "runs" / "bad" / name)
            (tmp_path / "runs" / "bad" / "job.json").write_text('{"cluster": ')
            for command in ("report", "status"):
                capsys.readouterr()
                with pytest.raises(SystemExit) as stop:
                    main([command, str(tmp_path / "runs")])
                out, err = capsys.readouterr()
                assert stop.value.code == 0, err
                assert "feddyn" in out or "3/3" in out
                if command == "report" or name != "metrics.jsonl":
                    assert f"bad/{name}" in out + err
                if command == "status":
                    assert "bad/job.json: is damaged" in out


def test_from_python_damage_is_named(exchange, tmp_path, capsys):
    import fedddp

    scene = Scene(tmp_path, 0, capsys)
    scene.fresh()
    path = scene.run / "metrics.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[1].replace("accuracy", "bccuracy"), lines[2], ""]))
    with pytest.warns(UserWarning, match=r"metrics.jsonl: line 2 is damaged and left out"):
        assert fedddp.load(scene.run).metrics["round"].tolist() == [1, 3]
    for name, what in (("summary.json", "summary"), ("clients.json", "clients"), ("config.yaml", "config")):
        HARMS["truncate"](scene.run / name)
        with pytest.raises(ValueError, match=rf"{name}: is damaged .*; the command that made the run .* --resume"):
            getattr(fedddp.load(scene.run), what)
