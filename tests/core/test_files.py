"""Files: whole or not there, errors name them, and a record shows that it was changed."""

import json
import os
from contextlib import suppress

import pytest

from fedddp.core import files

VALUE = {"round": 3, "loss": float("inf"), "names": ["é", 1.5e-300], "deep": {"1": None}}


def test_a_record_comes_back_and_any_changed_byte_is_seen(tmp_path):
    path = tmp_path / "record.json"
    files.write_record(path, VALUE)
    found = files.read_record(path)
    assert {key: value for key, value in found.items() if key != files.SEAL} == VALUE
    assert found == json.loads(path.read_text())
    data = path.read_bytes()
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with suppress(files.Damaged):  # or the digest's own name was hit, and the rest is what it was
            got = files.read_record(path)
            assert {key: value for key, value in got.items() if key in VALUE} == VALUE
    for size in range(len(data) - 2):
        path.write_bytes(data[:size])
        with pytest.raises(files.Damaged, match=r"record.json: is damaged"):
            files.read_record(path)


def test_a_sealed_text_is_checked_and_one_without_a_digest_believed(tmp_path):
    path = tmp_path / "config.yaml"
    files.write_sealed_text(path, "a: 1\nb: 2\n")
    files.check_text(path)
    data = path.read_bytes()
    for broken in (data[:-3], data.replace(b"b: 2", b"b: 3"), b"", b"\n", data + b"c: 1\n"):
        path.write_bytes(broken)
        with pytest.raises(files.Damaged, match=r"config.yaml: is damaged"):
            files.check_text(path)
    path.write_text("a: 1\n")
    files.check_text(path)


def test_what_fails_leaves_the_old_file_and_names_it(tmp_path):
    path = tmp_path / "file"
    files.write_text(path, "old")

    def fail():
        with files.whole(path) as temporary:
            temporary.write_text("half")
            raise OSError(28, os.strerror(28))

    with pytest.raises(OSError, match=r"No space left on device: '.*/file'"):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(FileNotFoundError, match=r"gone/file'"):
        files.write_text(tmp_path / "gone" / "file", "text")


def test_a_file_that_was_removed_or_replaced_takes_no_more(tmp_path):
    for replace in (False, True):
        path = tmp_path / f"{replace}" / "metrics.jsonl"
        path.parent.mkdir()
        file = files.Appended(path)
        file.write(b"one\n")
        path.unlink()
        if replace:
            path.write_text("another's\n")
        with pytest.raises(FileNotFoundError, match="was removed or replaced while the run was at work"):
            file.write(b"two\n")
        file.close()
