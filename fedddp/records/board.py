"""TensorBoard's files: written where the run is, without a thread, and cut back to a round on resume.

TensorBoard's own writer has a thread, which prints a traceback when the disk is full and loses what it held.
"""

import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.writer import FileWriter

from fedddp.core.files import Appended, whole

NUMBERS = count()  # several files of a process in the same second


class Board(SummaryWriter):
    """The writer that people know; what it writes is in the file after `flush`, or that raises."""

    file_writer: Any
    all_writers: Any

    def _get_file_writer(self) -> Any:
        if self.file_writer is None:
            self.file_writer = _Writer(self.log_dir)
            self.all_writers = {self.log_dir: self.file_writer}
        return self.file_writer

    def abandon(self) -> None:
        """Close the file as it is."""
        if self.file_writer is not None:
            self.file_writer.event_writer.file.close()
        self.file_writer = self.all_writers = None


class _Writer(FileWriter):
    def __init__(self, log_dir: str) -> None:
        self.event_writer = _EventFile(Path(log_dir))


class _EventFile:
    """What the writer asks of TensorBoard's EventFileWriter."""

    def __init__(self, folder: Path) -> None:
        place = f"{time.time():010.0f}.{socket.gethostname()}.{os.getpid()}.{next(NUMBERS)}"
        self.folder = folder
        self.file = Appended(folder / f"events.out.tfevents.{place}")
        self.records, self.waiting = RecordWriter(self), bytearray()
        self.add_event(Event(wall_time=time.time(), file_version="brain.Event:2"))
        self.flush()

    def get_logdir(self) -> str:
        return str(self.folder)

    def write(self, data: bytes) -> None:
        self.waiting += data

    def add_event(self, event: Any) -> None:
        self.records.write(event.SerializeToString())

    def flush(self) -> None:
        if self.waiting:
            self.file.write(bytes(self.waiting))
            self.waiting.clear()

    def close(self) -> None:
        self.flush()
        self.file.close()


def cut_events(folder: Path, done: int, say: Callable[[str], None] = lambda _: None) -> None:
    """Drop from TensorBoard's files what lies behind round `done` or is damaged; each is replaced whole."""
    for path in sorted(folder.glob("events.out.tfevents.*")):
        if done == 0:
            path.unlink()
            continue
        data = path.read_bytes()
        kept = b"".join(raw for raw, step in _events(path, data, say) if step <= done)
        if not kept:
            path.unlink()
        elif kept != data:
            with whole(path) as temporary:
                temporary.write_bytes(kept)


def _events(path: Path, data: bytes, say: Callable[[str], None]) -> Iterator[tuple[bytes, int]]:
    """(raw record, step) of a TensorBoard file: length, crc, event, crc.

    A damaged event is left out; behind a damaged length nothing can be found any more. An incomplete last record is
    what a kill leaves.
    """
    at = 0
    while at + 12 <= len(data):
        size, check = struct.unpack_from("<QI", data, at)
        if masked_crc32c(data[at : at + 8]) != check:
            say(f"{path}: is damaged at byte {at}; what follows is left out")
            return
        end = at + 12 + size + 4
        if end > len(data):
            return
        content = data[at + 12 : end - 4]
        if masked_crc32c(content) == struct.unpack_from("<I", data, end - 4)[0]:
            yield data[at:end], int(Event.FromString(content).step)
        else:
            say(f"{path}: the event at byte {at} is damaged and left out")
        at = end
