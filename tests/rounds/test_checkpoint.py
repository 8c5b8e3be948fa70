"""Checkpoints: whole or not there, damage is seen, any number of ranks may have written them."""

import pickletools
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from fedddp.rounds import checkpoint
from fedddp.rounds.store import ClientStore
from fedddp.runs.records import cut_metrics, read_metrics
from tests.small import MODELS, fresh, run, settings

WORDS = settings("feddyn", *MODELS["mlp"], "checkpoint.every=1")


def interrupted(tmp_path: Path) -> Path:
    """A run killed after two checkpoints."""
    folder = Path(fresh(tmp_path, "run"))
    assert run(WORDS, str(folder), kill_after=3) is None
    return folder


def whole(tmp_path: Path) -> str:
    summary = run(WORDS, fresh(tmp_path, "whole"))
    assert summary is not None
    return summary["checksum"]


@pytest.mark.parametrize("damage", ["truncate", "flip", "remove"])
def test_a_damaged_newest_checkpoint_is_reported_and_the_one_before_used(exchange, tmp_path, capsys, damage):
    folder = interrupted(tmp_path)
    newest = checkpoint.found(folder / "checkpoints")[-1]
    file = newest / "clients-0000.safetensors"
    data = bytearray(file.read_bytes())
    if damage == "truncate":
        file.write_bytes(data[: len(data) // 2])
    elif damage == "flip":
        data[-5] ^= 1
        file.write_bytes(data)
    else:
        file.unlink()
    warnings: list[str] = []
    found = checkpoint.newest(folder / "checkpoints", warnings.append)
    assert found is not None
    assert found.name == "round-000001"
    assert "round-000002 is damaged (clients-0000.safetensors" in warnings[0]
    summary = run(WORDS, str(folder), resume=True)
    assert summary is not None
    assert summary["checksum"] == whole(tmp_path)


def test_what_was_written_halfway_is_not_seen(exchange, tmp_path):
    folder = interrupted(tmp_path)
    newest = checkpoint.found(folder / "checkpoints")[-1]
    newest.rename(newest.with_name(f".{newest.name}"))
    assert [path.name for path in checkpoint.found(folder / "checkpoints")] == ["round-000001"]
    summary = run(WORDS, str(folder), resume=True)
    assert summary is not None
    assert summary["checksum"] == whole(tmp_path)


def test_two_are_kept_and_none_holds_code(exchange, tmp_path):
    folder = interrupted(tmp_path)
    assert len(checkpoint.found(folder / "checkpoints")) == 2
    for file in folder.rglob("*.safetensors"):
        with pytest.raises(ValueError, match=r".*"):  # no pickle in it
            list(pickletools.genops(file.read_bytes()))


def test_a_run_that_was_never_checkpointed_starts_again(exchange, tmp_path):
    words = [*WORDS, "checkpoint.every=100"]
    folder = Path(fresh(tmp_path, "run"))
    assert run(words, str(folder), kill_after=2) is None
    summary = run(words, str(folder), resume=True)
    assert summary is not None
    assert summary["checksum"] == whole(tmp_path)
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
    assert digest == checkpoint._digest(tmp_path / "file")
    with safe_open(tmp_path / "file", framework="pt") as file:
        assert file.metadata() == {"who": "me"}
    for found in (checkpoint.load_tensors(tmp_path / "file"), load_file(tmp_path / "file")):
        assert set(found) == set(named)
        for name, leaf in named.items():
            assert found[name].dtype == leaf.dtype
            assert torch.equal(found[name], leaf)
