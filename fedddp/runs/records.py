"""What a run leaves to read: metrics.jsonl, TensorBoard events, summary.json and a line or bar of progress.

Only rank 0 records. On resume, metrics and events are cut back to the checkpoint's round, so that each round is
there once.
"""

import json
import struct
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedddp.core.files import write_json

MOST_CURVES = 16
SHOWN = ("accuracy", "nll", "ece", "rmse", "train_loss")


class Recorder:
    """Writes a round's record to file, to TensorBoard and to the terminal."""

    def __init__(self, folder: Path, rounds: int, done: int, title: str, quiet: bool = False) -> None:
        from torch.utils.tensorboard import SummaryWriter  # a second to import: only where it is needed

        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.rounds = folder, rounds
        cut_metrics(folder / "metrics.jsonl", done)
        cut_events(folder, done)
        self.file = open(folder / "metrics.jsonl", "a")  # noqa: SIM115  open for the length of the run
        self.board: Any = SummaryWriter(str(folder))  # type: ignore[no-untyped-call]
        self.bar = _bar(title, rounds, done) if not quiet else None
        self.quiet, self.title = quiet, title

    def round(self, record: dict[str, Any], histograms: dict[str, Tensor]) -> None:
        """One line, the same numbers as scalars, and what is spread over clients as histograms."""
        self.file.write(json.dumps(record) + "\n")
        self.file.flush()
        step = record["round"]
        for name, value in record.items():
            if name != "round" and isinstance(value, int | float):
                self.board.add_scalar(name, value, step)
            elif isinstance(value, list):  # a number for each rank
                self._by_rank(name, value, step)
        for name, values in histograms.items():
            finite = values[values.isfinite()]
            if len(finite):
                self.board.add_histogram(name, finite, step)
        self.board.flush()
        self._show(record)

    def _by_rank(self, name: str, values: list[float], step: int) -> None:
        """A curve for each rank, or a histogram where there are too many to look at."""
        if len(values) > MOST_CURVES:
            self.board.add_histogram(name, torch.tensor(values), step)
            return
        for rank, value in enumerate(values):
            self.board.add_scalar(f"{name}/rank_{rank}", value, step)

    def settings(self, values: dict[str, Any]) -> None:
        """The run as a session of TensorBoard's HParams page; its scalars are the metrics there."""
        from torch.utils.tensorboard.summary import hparams

        plain = {k: v if isinstance(v, bool | int | float | str) else str(v) for k, v in values.items()}
        _, session, _ = hparams(plain, {})  # type: ignore[no-untyped-call]
        self.board.file_writer.add_summary(session, 0)

    def pictures(self, numbers: dict[str, Any], spread: dict[str, Tensor], draw: bool) -> None:
        """The numbers behind the pictures, to file; drawn, to TensorBoard, with what is spread over test examples."""
        write_json(self.folder / "pictures.json", numbers)
        for name, values in spread.items() if draw else ():
            self.board.add_histogram(f"test/{name}", values, self.rounds)
        if draw and numbers:
            from fedddp.runs.pictures import draw_all, png  # brings matplotlib: half a second

            for name, figure in draw_all(numbers, self.title):
                self._picture(name, png(figure))

    def _picture(self, name: str, data: bytes) -> None:
        """A finished PNG; TensorBoard's own way takes an array, and ten times its memory to make it a PNG."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        width, height = struct.unpack(">II", data[16:24])
        image = Summary.Image(width=width, height=height, colorspace=4, encoded_image_string=data)
        self.board.file_writer.add_summary(Summary(value=[Summary.Value(tag=name, image=image)]), self.rounds)

    def _show(self, record: dict[str, Any]) -> None:
        shown = {name: f"{record[name]:.4f}" for name in SHOWN if record.get(name) is not None}
        if self.bar is not None:
            self.bar.set_postfix(shown, refresh=False)
            self.bar.update(1)
        elif not self.quiet:
            numbers = "  ".join(f"{name} {value}" for name, value in shown.items())
            print(
                f"{self.title}  round {record['round']}/{self.rounds}  {numbers}  {record['seconds']:.2f} s",
                flush=True,
            )

    def say(self, text: str) -> None:
        if self.bar is not None:
            self.bar.write(text, file=sys.stderr)
        elif not self.quiet:
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
        self.board.close()
        self.file.close()


def _bar(title: str, rounds: int, done: int) -> Any:
    """A live bar on a terminal; None in a log file, which gets plain lines."""
    if not sys.stderr.isatty():
        return None
    from tqdm import tqdm

    return tqdm(total=rounds, initial=done, desc=title, unit="round", dynamic_ncols=True)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Every complete line; a line cut short by a kill is left out."""
    records = []
    if path.exists():
        for line in path.read_text().splitlines():
            try:
                records.append(json.loads(line))
            except json.JSONDecodeError:
                break
    return records


def cut_metrics(path: Path, done: int) -> None:
    """Keep the rounds that the checkpoint has."""
    kept = [r for r in read_metrics(path) if r["round"] <= done]
    if path.exists():
        path.write_text("".join(json.dumps(r) + "\n" for r in kept))


def cut_events(folder: Path, done: int) -> None:
    """Drop from TensorBoard's files what lies behind round `done`, and empty files."""
    for path in sorted(folder.glob("events.out.tfevents.*")):
        data = path.read_bytes()
        kept = b"".join(raw for raw, step in _event_records(data) if step <= done)
        if done == 0:
            path.unlink()
        elif kept != data:
            path.write_bytes(kept)


def _event_records(data: bytes) -> list[tuple[bytes, int]]:
    """(raw record, step) of a TensorBoard file: length, crc, event, crc; an incomplete last one is left out."""
    from tensorboard.compat.proto.event_pb2 import Event

    records, at = [], 0
    while at + 12 <= len(data):
        (size,) = struct.unpack_from("<Q", data, at)
        end = at + 12 + size + 4
        if end > len(data):
            break
        event = Event.FromString(data[at + 12 : end - 4])
        records.append((data[at:end], int(event.step)))
        at = end
    return records


def last_three(records: list[dict[str, Any]], names: tuple[str, ...]) -> dict[str, float]:
    """The mean of the last three evaluated rounds, as the published tables report it."""
    evaluated = [r for r in records if any(r.get(n) is not None for n in names)][-3:]
    return {
        name: float(torch.tensor([r[name] for r in evaluated], dtype=torch.float64).mean())
        for name in names
        if evaluated and all(r.get(name) is not None for r in evaluated)
    }
