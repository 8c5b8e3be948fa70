"""Records: replaced whole or not at all, damage is named by file and line, and what lies behind it is kept."""

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fedddp.core import files
from fedddp.records.board import Board, cut_events
from fedddp.records.metrics import cut_metrics, line, read_metrics, spans
from tests.small import MODELS, Killed, run, settings

WORDS = settings("fedavg", *MODELS["mlp"], "checkpoint.every=1", "evaluation.every=1", "federation.rounds=4")


def write(path: Path, rounds: int) -> list[str]:
    lines = [line({"round": number, "accuracy": number / 10}) for number in range(1, rounds + 1)]
    path.write_text("".join(lines))
    return lines


@pytest.mark.parametrize(
    "bad",
    ['{"round": 2, "accu', '{"round": 2, "accuracy": 0.3, "digest": "0"}', "[2]", '{"accuracy": 1}', "\x85", "{}"],
)
def test_a_damaged_line_is_named_and_the_rounds_behind_it_are_kept(tmp_path, bad):
    path, said = tmp_path / "metrics.jsonl", []
    lines = write(path, 4)
    path.write_text("".join([lines[0], f"{bad}\n", *lines[2:]]))
    assert [record["round"] for record in read_metrics(path, said.append)] == [1, 3, 4]
    assert said == [f"{path}: line 2 is damaged and left out"]
    said.clear()
    cut_metrics(path, 3, said.append)
    assert path.read_text() == lines[0] + lines[2]
    assert said[1] == f"{path}: lacks round 2 of the 3 that the checkpoint has; the run goes on without"


def test_a_changed_digit_is_damage(tmp_path):
    path, said = tmp_path / "metrics.jsonl", []
    write(path, 3)
    path.write_text(path.read_text().replace("0.2", "0.9"))
    assert [record["round"] for record in read_metrics(path, said.append)] == [1, 3]
    assert said


def test_a_line_cut_short_by_a_kill_is_no_damage(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(path, 3)
    path.write_text(path.read_text()[:-9])
    assert [record["round"] for record in read_metrics(path, pytest.fail)] == [1, 2]


def test_a_kill_while_metrics_are_cut_loses_no_row(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    write(path, 4)
    text = path.read_text()

    def killed(*_, **__):
        raise Killed

    for step in ("replace", "write_text"):
        with monkeypatch.context() as patched:
            patched.setattr(Path, step, killed)
            with pytest.raises(Killed):
                cut_metrics(path, 2)
        assert path.read_text() == text


def test_spans():
    assert spans([1, 2, 3, 5, 8, 9]) == "1 to 3, 5, 8 to 9"


def events(folder: Path) -> Path:
    board = Board(str(folder))
    for step in range(1, 6):
        board.add_scalar("accuracy", step / 10, step)
    board.close()
    (path,) = folder.glob("events*")
    return path


def steps(folder: Path) -> list[int]:
    board = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return [event.step for event in board.Scalars("accuracy")]


def test_events_are_tensorboards(tmp_path):
    events(tmp_path)
    assert steps(tmp_path) == [1, 2, 3, 4, 5]
    cut_events(tmp_path, 3, pytest.fail)
    assert steps(tmp_path) == [1, 2, 3]
    cut_events(tmp_path, 0)
    assert not list(tmp_path.glob("events*"))


def test_damaged_events_are_left_out_with_a_line(tmp_path):
    path, said = events(tmp_path), []
    data = bytearray(path.read_bytes())
    data[data.index(b"accuracy", len(data) // 2)] ^= 1
    path.write_bytes(data)
    cut_events(tmp_path, 5, said.append)
    assert "damaged and left out" in said[0]
    assert path.name in said[0]
    assert len(steps(tmp_path)) == 4, "the event alone"
    data = bytearray(path.read_bytes())
    size = len(data) // 2
    while data[size : size + 1] != b"\x00":  # somewhere in a length, whatever follows cannot be found any more
        size += 1
    for at in range(size, len(data)):
        data[at] = 0xFF
    path.write_bytes(data)
    cut_events(tmp_path, 5, said.append)
    assert 0 < len(steps(tmp_path)) < 4
    cut_events(tmp_path, 5, pytest.fail)


@pytest.mark.parametrize("content", [b"", b"not an event", bytes(1000), b"\xff" * 1000])
def test_no_event_file_blocks_a_resume(exchange, tmp_path, content):
    assert run(WORDS, str(tmp_path / "run"), kill_after=3) is None
    for path in (tmp_path / "run").glob("events*"):
        path.write_bytes(content)
    assert run(WORDS, str(tmp_path / "run"), resume=True) is not None


def test_lost_rounds_stand_in_the_summary_and_no_earlier_round_for_the_last(exchange, tmp_path):
    """Metrics and summary both damaged: what is left is told, and what is lost is named."""
    folder = tmp_path / "run"
    whole = run(WORDS, str(folder))
    assert whole is not None
    rows = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(rows[:2]))
    kept = run(WORDS, str(folder), resume=True)
    assert kept is not None
    assert {k: v for k, v in kept.items() if k != "files"} == {k: v for k, v in whole.items() if k != "files"}
    (folder / "summary.json").write_text("")
    left = run(WORDS, str(folder), resume=True)
    assert left is not None
    assert left["rounds_lost"] == [3, 4]
    assert left["checksum"] == whole["checksum"]
    assert "accuracy" not in left


def test_records_of_a_run_that_starts_again_do_not_say_that_it_is_done(exchange, tmp_path):
    """Its last checkpoint is damaged: until it ends again, it has not ended."""
    folder = tmp_path / "run"
    whole = run(WORDS, str(folder))
    assert whole is not None
    (folder / "checkpoints" / "round-000004" / "about.json").unlink()
    assert run(WORDS, str(folder), resume=True, kill_after=2) is None
    assert not (folder / "summary.json").exists()
    again = run(WORDS, str(folder), resume=True)
    assert again is not None
    assert again["checksum"] == whole["checksum"]
    assert files.read_record(folder / "summary.json")["checksum"] == whole["checksum"]
