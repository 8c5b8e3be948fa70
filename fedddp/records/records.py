"""What a run leaves to read: metrics.jsonl, TensorBoard events, pictures.json and a line or bar of progress.

Only rank 0 records. On resume, metrics and events are cut back to the checkpoint's round, so that each round is
there once. An error of the disk ends the run with the name of the file.
"""

import struct
import sys
from collections.abc import Sequence
from math import isnan
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedddp.core.files import Appended, write_record
from fedddp.records.metrics import cut_metrics, line, read_metrics
from fedddp.records.table import FILE, Table
from fedddp.records.tags import CURVES, histogram, tag
from fedddp.records.trackers import Trackers
from fedddp.rounds.report import Report

__all__ = ["Recorder", "cut_metrics", "last_three", "read_metrics"]

MOST_CURVES = 16
LARGEST = 1e19  # TensorBoard's bins end at 1e20, and it fails where none is filled
SHOWN = ("accuracy", "nll", "ece", "rmse", "train_loss")


class Recorder:
    """Writes a round's record to file, to TensorBoard and to the terminal."""

    def __init__(self, folder: Path, rounds: int, done: int, title: str, quiet: bool = False) -> None:
        from fedddp.records.board import Board, cut_events  # a second to import: only where it is needed

        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.rounds = folder, rounds
        self.bar = _bar(title, rounds, done) if not quiet else None
        self.quiet, self.title = quiet, title
        cut_metrics(folder / "metrics.jsonl", done, self.say)
        cut_metrics(folder / FILE, done, self.say, every=False)
        cut_events(folder, done, self.say)
        self.file = Appended(folder / "metrics.jsonl")
        self.tables: Appended | None = None  # opened with the first table
        self.last: Table | None = None
        self.trackers = Trackers(self.say)
        self.board: Any = Board(str(folder))  # type: ignore[no-untyped-call]

    def round(self, record: dict[str, Any], histograms: dict[str, Tensor], table: Table | None = None) -> None:
        """A line, the same numbers as scalars, and what is spread over clients as histograms; a line of the table."""
        step = record["round"]
        if table is not None:
            self.tables, self.last = self.tables or Appended(self.folder / FILE), table
            self.tables.write(line(table.record(step)).encode())
        self.file.write(line(record).encode())
        for name, value in record.items():
            if name != "round" and isinstance(value, int | float):
                self.board.add_scalar(tag(name), value, step)
            elif isinstance(value, list):  # a number for each rank
                self._by_rank(tag(name), value, step)
        for name, values in histograms.items():
            finite = values[values.isfinite()].clamp(-LARGEST, LARGEST)
            if len(finite):
                self.board.add_histogram(histogram(name), finite, step)
        if self.trackers.active:
            numbers = {tag(k): float(v) for k, v in record.items() if k != "round" and isinstance(v, int | float)}
            self.trackers.round(step, numbers)
        self.board.flush()
        self._show(record)

    def _by_rank(self, name: str, values: list[float], step: int) -> None:
        """A curve for each rank, or a histogram where there are too many to look at."""
        if len(values) > MOST_CURVES:
            self.board.add_histogram(name, torch.tensor(values), step)
            return
        for rank, value in enumerate(values):
            self.board.add_scalar(f"{name}/rank_{rank}", value, step)

    def begin(self, settings: dict[str, Any], texts: dict[str, str]) -> None:
        """What tells this run from others, and what it is, where TensorBoard shows them before any number."""
        self._session(settings)
        for name, text in texts.items():
            self.board.add_text(name, text, 0)
        self.board.add_custom_scalars({"fedddp": {title: ["Multiline", [own]] for title, own in CURVES.items()}})

    def _session(self, values: dict[str, Any]) -> None:
        """The run as a session of TensorBoard's HParams page; its scalars are the metrics there."""
        from torch.utils.tensorboard.summary import hparams

        plain = {k: v if isinstance(v, bool | int | float | str) else str(v) for k, v in values.items()}
        _, session, _ = hparams(plain, {})  # type: ignore[no-untyped-call]
        self.board.file_writer.add_summary(session, 0)

    def pictures(self, numbers: dict[str, Any], spread: dict[str, Tensor], draw: bool) -> None:
        """The numbers behind the pictures, to file; drawn, to TensorBoard, with what is spread over test examples."""
        write_record(self.folder / "pictures.json", numbers)
        for name, values in spread.items() if draw else ():
            self.board.add_histogram(histogram(f"test/{name}"), values, self.rounds)
        if draw and numbers:
            from fedddp.records.pictures import draw_all, png  # brings matplotlib: half a second

            for name, figure in draw_all(numbers, self.title):
                self._picture(name, png(figure))

    def clients(self, sizes: Sequence[int]) -> None:
        """The last table, to TensorBoard: clients as dots over their sizes."""
        if self.last is not None and self.last.metrics:
            from fedddp.records import clients_picture
            from fedddp.records.pictures import png

            metrics = {name: values.numpy() for name, values in self.last.metrics.items()}
            self._picture("clients", png(clients_picture.draw(metrics, sizes, self.last.unseen)))

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

    def sync(self) -> None:
        """To the disk, before a checkpoint says that these rounds are done."""
        self.file.sync()
        if self.tables is not None:
            self.tables.sync()

    def close(self, failed: bool = False) -> None:
        """What was not written when the run failed is not tried again: the first error is the one to show."""
        if self.bar is not None:
            self.bar.close()
        self.trackers.end(failed)
        if failed:
            self.board.abandon()
        else:
            self.board.close()
        self.file.close()
        if self.tables is not None:
            self.tables.close()


def _bar(title: str, rounds: int, done: int) -> Any:
    """A live bar on a terminal; None in a log file, which gets plain lines."""
    if not sys.stderr.isatty():
        return None
    from tqdm import tqdm

    return tqdm(total=rounds, initial=done, desc=title, unit="round", dynamic_ncols=True)


def last_three(records: list[dict[str, Any]], names: tuple[str, ...]) -> dict[str, float]:
    """The mean of the last three evaluated rounds, as the published tables report it."""
    evaluated = [r for r in records if any(r.get(n) is not None for n in names)][-3:]
    return {
        name: float(torch.tensor([r[name] for r in evaluated], dtype=torch.float64).mean())
        for name in names
        if evaluated and all(r.get(name) is not None for r in evaluated)
    }


def round_record(finished: int, report: Report, metrics: dict[str, float], seconds: float) -> dict[str, Any]:
    """A line of metrics.jsonl."""
    return {
        "round": finished,
        **metrics,
        "train_loss": None if isnan(report.train_loss) else report.train_loss,
        "seconds": seconds,
        **{f"seconds_{part}": value for part, value in report.seconds.items()},
        **_idle(report.idle),
        "bytes": report.bytes,
        "bytes_up": report.bytes_up,
        "bytes_down": report.bytes_down,
        "active": report.active,
        "skipped": report.skipped,
        **({} if report.clipped is None else {"clipped": report.clipped}),
        **report.metrics,
    }


def _idle(seconds: list[float]) -> dict[str, Any]:
    """How long ranks waited for the slowest; unknown where only sums are told."""
    if not seconds:
        return {}
    mean = sum(seconds) / len(seconds)
    return {"seconds_idle": seconds, "seconds_idle_mean": mean, "seconds_idle_max": max(seconds)}
