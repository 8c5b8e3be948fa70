"""Checkpoints: whole or not there, damage is seen, any number of ranks may have written them."""

import os
import pickletools
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from fedddp.core import files
from fedddp.exchange.group import PeerFailed
from fedddp.records.records import cut_metrics, read_metrics
from fedddp.rounds import checkpoint
from fedddp.rounds.store import ClientStore
from tests.harm import HARMS
from tests.small import MODELS, Killed, fresh, run, settings

WORDS = settings("feddyn", *MODELS["mlp"], "checkpoint.every=1")


@pytest.fixture
def interrupted(exchange, tmp_path) -> Path:
    """A run killed after two checkpoints."""
    folder = Path(fresh(tmp_path, "run"))
    assert run(WORDS, str(folder), kill_after=3) is None
    return folder


@pytest.fixture(scope="module")
def whole(exchange, tmp_path_factory) -> str:
    """The checksum of the run that was not interrupted."""
    summary = run(WORDS, fresh(tmp_path_factory.mktemp("whole"), "run"))
    assert summary is not None
    return summary["checksum"]


@pytest.mark.parametrize("name", ["about.json", "server.safetensors", "clients-0000.safetensors"])
@pytest.mark.parametrize("harm", HARMS)
def test_a_damaged_newest_checkpoint_is_reported_and_the_one_before_used(exchange, interrupted, whole, name, harm):
    newest = checkpoint.found(interrupted / "checkpoints")[-1]
    HARMS[harm](newest / name)
    warnings: list[str] = []
    found = checkpoint.newest(interrupted / "checkpoints", warnings.append)
    assert found is not None
    assert found.name == "round-000001"
    assert "round-000002 is damaged (" in warnings[0]
    assert name in warnings[0]
    summary = run(WORDS, str(interrupted), resume=True)
    assert summary is not None
    assert summary["checksum"] == whole


@pytest.mark.parametrize("sealed", [False, True])
def test_a_changed_round_is_seen(exchange, interrupted, whole, sealed):
    """One digit in about.json; also with a digest that fits it, where only the folder's name tells."""
    path = checkpoint.found(interrupted / "checkpoints")[-1] / "about.json"
    if sealed:
        files.write_record(path, files.read_record(path) | {"round": 1})
    else:
        path.write_text(path.read_text().replace('"round": 2', '"round": 1'))
    warnings: list[str] = []
    found = checkpoint.newest(interrupted / "checkpoints", warnings.append)
    assert found is not None
    assert found.name == "round-000001"
    assert "about.json" in warnings[0]
    summary = run(WORDS, str(interrupted), resume=True)
    assert summary is not None
    assert summary["checksum"] == whole


def test_without_a_whole_checkpoint_the_run_starts_from_the_beginning(exchange, interrupted, whole):
    for path in checkpoint.found(interrupted / "checkpoints"):
        (path / "about.json").write_text("")
    warnings: list[str] = []
    assert checkpoint.newest(interrupted / "checkpoints", warnings.append) is None
    assert (
        warnings[-1] == f"{interrupted / 'checkpoints'}: no whole checkpoint is left; the run starts from the beginning"
    )
    summary = run(WORDS, str(interrupted), resume=True)
    assert summary is not None
    assert summary["checksum"] == whole
    assert [path.name for path in (interrupted / "checkpoints").iterdir()] == ["round-000003"]


def test_a_checkpoint_of_an_earlier_version_is_refused(exchange, interrupted):
    path = checkpoint.found(interrupted / "checkpoints")[-1]
    (path / "server.safetensors.hash").write_text("0")
    (path / "about.json").write_text('{"round": 2}')
    with pytest.raises(PeerFailed, match=r"written by an earlier fedddp.*finish the run with that version, or remove"):
        run(WORDS, str(interrupted), resume=True)


def test_a_checkpoint_of_another_configuration_is_refused(exchange, interrupted):
    """config.yaml is lost: then the checkpoint alone knows what it belongs to."""
    (interrupted / "config.yaml").unlink()
    with pytest.raises(ValueError, match="round-000002: belongs to a run of another configuration"):
        run([*WORDS, "local.lr=0.123"], str(interrupted), resume=True)


def test_a_kill_while_an_old_one_is_removed_leaves_nothing_for_good(exchange, interrupted, whole, monkeypatch):
    """The old one has lost its name before its first file goes; the next start or save removes what is left."""
    folder = interrupted / "checkpoints"
    half = 0

    def killed(path, **_):
        nonlocal half
        next(Path(path).iterdir()).unlink()
        half += 1
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint.shutil, "rmtree", killed)
        assert run(WORDS, str(interrupted), resume=True) is None
    assert half == 1
    assert checkpoint.newest(folder, pytest.fail).name == "round-000003"
    assert any(path.name.startswith(".old-") for path in folder.iterdir())
    summary = run(WORDS, str(interrupted), resume=True)
    assert summary is not None
    assert summary["checksum"] == whole
    assert [path.name for path in folder.iterdir()] == ["round-000003"]


def test_what_a_killed_save_leaves_is_removed(exchange, interrupted):
    left = interrupted / "checkpoints" / ".round-000777"
    left.mkdir()
    (left / "server.safetensors").write_bytes(b"half")
    (interrupted / ".summary.json.123").write_text("{")
    assert run(WORDS, str(interrupted), resume=True) is not None
    assert not left.exists()
    assert not list(interrupted.glob(".summary*"))


def test_a_checkpoint_is_on_the_disk_before_it_has_its_name(exchange, tmp_path, monkeypatch):
    synced, missing = set(), []
    fsync, rename = os.fsync, Path.rename

    def note(place):
        synced.add(os.readlink(f"/proc/self/fd/{place}"))
        fsync(place)

    def check(path, target):
        if Path(target).name.startswith("round-"):
            wanted = {str(path), *(str(file) for file in path.iterdir() if file.name != "about.json")}
            wanted.add(str(path / f".about.json.{os.getpid()}"))  # written under this name
            missing.extend(wanted - synced)
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(Path, "rename", check)
    run(WORDS, fresh(tmp_path, "run"))
    assert not missing
    assert str(tmp_path / "run" / "checkpoints") in synced


def test_what_was_written_halfway_is_not_seen(exchange, interrupted, whole):
    folder = interrupted
    newest = checkpoint.found(folder / "checkpoints")[-1]
    newest.rename(newest.with_name(f".{newest.name}"))
    assert [path.name for path in checkpoint.found(folder / "checkpoints")] == ["round-000001"]
    summary = run(WORDS, str(folder), resume=True)
    assert summary is not None
    assert summary["checksum"] == whole


def test_two_are_kept_and_none_holds_code(exchange, interrupted):
    folder = interrupted
    assert len(checkpoint.found(folder / "checkpoints")) == 2
    for file in folder.rglob("*.safetensors"):
        with pytest.raises(ValueError, match=r".*"):  # no pickle in it
            list(pickletools.genops(file.read_bytes()))


def test_a_run_that_was_never_checkpointed_starts_again(exchange, tmp_path, whole):
    words = [*WORDS, "checkpoint.every=100"]
    folder = Path(fresh(tmp_path, "run"))
    assert run(words, str(folder), kill_after=2) is None
    summary = run(words, str(folder), resume=True)
    assert summary is not None
    assert summary["checksum"] == whole
    assert [r["round"] for r in read_metrics(folder / "metrics.jsonl")] == [1, 2, 3]


def test_client_rows_are_dropped_when_the_run_is_done(exchange, tmp_path):
    folder = Path(fresh(tmp_path, "run"))
    run(WORDS, str(folder))
    assert not list(folder.rglob("clients-*"))
    again = run(WORDS, str(folder), resume=True)
    assert again is not None, "a finished run can be resumed"
    kept = Path(fresh(tmp_path, "kept"))
    run([*WORDS, "checkpoint.keep_clients=true"], str(kept))
    assert list(kept.rglob("clients-*.safetensors"))


def test_rows_go_to_their_clients_whoever_wrote_them(exchange, tmp_path):
    from fedddp.methods.fedadmm import Clients
    from fedddp.rounds.solver import Nothing

    def store(ids: list[int]) -> ClientStore:
        rows = torch.tensor(ids, dtype=torch.float32).unsqueeze(1).repeat(1, 3)
        return ClientStore(torch.tensor(ids), Clients(rows, Nothing()))

    ours = store([1, 4, 5])
    ours.memory.dual.zero_()
    assert sum(ours.fill(store(ids).tensors()) for ids in ([0, 4], [1, 2, 3], [5, 6])) == 3
    assert ours.memory.dual[:, 0].tolist() == [1.0, 4.0, 5.0]


def test_a_line_cut_short_is_left_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"round": 1}\n{"round": 2}\n{"rou')
    cut_metrics(path, 1)
    assert path.read_text() == '{"round": 1}\n'


def test_the_fingerprint_names_what_bits_depend_on():
    assert checkpoint.fingerprint() == {"torch": torch.__version__, "cpu": torch.backends.cpu.get_cpu_capability()}


def test_tensors_come_back_as_they_were_and_others_can_read_them(tmp_path):
    whole = torch.arange(12.0).view(3, 4)
    named = {
        "matrix": whole,
        "part of it": whole[1:, ::2],
        "number": torch.tensor(3, dtype=torch.int64),
        "none": torch.zeros(0, 5),
        "flags": torch.tensor([True, False, True]),
        "half": torch.ones(2, 3, dtype=torch.bfloat16),
    }
    digest = checkpoint.save_tensors(tmp_path / "file", named, {"who": "me"})
    assert digest == checkpoint.digest(tmp_path / "file")
    with safe_open(tmp_path / "file", framework="pt") as file:
        assert file.metadata() == {"who": "me"}
    for found in (checkpoint.load_tensors(tmp_path / "file"), load_file(tmp_path / "file")):
        assert set(found) == set(named)
        for name, leaf in named.items():
            assert found[name].dtype == leaf.dtype
            assert torch.equal(found[name], leaf)
