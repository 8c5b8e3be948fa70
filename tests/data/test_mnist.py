"""idx files: MNIST and Fashion-MNIST."""

import gzip
import re
import struct
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from fedddp.data import fashion_mnist, mnist
from fedddp.data._idx import read
from tests.data import writers


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("folder", ["mnist", "MNIST/raw", "."])
def test_plain_and_packed_files_read_alike(tmp_path: Path, suffix: str, folder: str) -> None:
    writers.mnist(tmp_path / folder, suffix=suffix)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = mnist.Source(root=str(tmp_path)).load()
    assert data.train.inputs.dtype == torch.uint8
    assert torch.equal(data.train.inputs, torch.from_numpy(writers.pixels(50, 28, 28)))
    assert torch.equal(data.test.inputs, torch.from_numpy(writers.pixels(20, 28, 28, seed=1)))
    assert torch.equal(data.train.targets, torch.arange(50) % 10)
    assert (data.classes, data.input_shape, data.scale) == (10, (28, 28), 1 / 255)


def test_fashion_mnist_has_its_own_folder_and_names(tmp_path: Path) -> None:
    writers.mnist(tmp_path / "fashion-mnist", suffix=".gz")
    data = fashion_mnist.Source(root=str(tmp_path), pixels="0-255", fraction=0.2, validation=2).load()
    assert data.train.targets.bincount(minlength=10).sum() == 8
    assert data.validation is not None
    assert len(data.validation) == 2
    assert data.label_names[-1] == "ankle boot"
    assert data.prepare(data.test.inputs, torch.float32).max() == 255


def test_missing_files_are_named_with_folder_and_remedy(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="fedddp data get mnist") as error:
        mnist.Source(root=str(tmp_path)).load()
    assert "train-images-idx3-ubyte.gz" in str(error.value)
    assert str(tmp_path / "mnist") in str(error.value)


def damaged() -> dict[str, bytes]:
    header, body = struct.pack(">HBBI", 0, 8, 1, 100), bytes(100)
    return {
        "empty": b"",
        "half a header": header[:6],
        "not idx": b"\x7fELF" + bytes(200),
        "not bytes": struct.pack(">HBBI", 0, 0x0D, 1, 100) + body,
        "too short": header + body[:50],
        "too long": header + body + b"x",
        "a huge header": struct.pack(">HBBIII", 0, 8, 3, 2**31, 2**31, 2**31) + body,
    }


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", damaged())
def test_damaged_files_are_one_clear_line(tmp_path: Path, kind: str, packed: bool) -> None:
    path = tmp_path / ("file.gz" if packed else "file")
    path.write_bytes(gzip.compress(damaged()[kind]) if packed else damaged()[kind])
    with pytest.raises(ValueError, match=re.escape(f"{path}: cannot be read as an idx file")):
        read(path)


@pytest.mark.parametrize("cut", [5, 40, 200])
def test_a_gz_file_cut_short_or_changed_is_found(tmp_path: Path, cut: int) -> None:
    path = writers.idx(tmp_path / "file.gz", writers.pixels(10, 28))
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    with pytest.raises(ValueError, match="truncated or damaged"):
        read(path)
    path.write_bytes(whole[:-cut] + bytes([whole[-cut] ^ 1]) + whole[len(whole) - cut + 1 :])
    with pytest.raises(ValueError, match="truncated or damaged"):
        read(path)


def test_images_and_labels_must_agree(tmp_path: Path) -> None:
    writers.mnist(tmp_path / "mnist")
    writers.idx(tmp_path / "mnist/train-labels-idx1-ubyte", np.zeros(49, np.uint8))
    with pytest.raises(ValueError, match="50 images and 49 labels"):
        mnist.Source(root=str(tmp_path)).load()
    writers.idx(tmp_path / "mnist/train-labels-idx1-ubyte", np.full(50, 10, np.uint8))
    with pytest.raises(ValueError, match="labels go up to 10, expected 0 to 9"):
        mnist.Source(root=str(tmp_path)).load()


def test_a_plain_file_is_mapped_and_never_written(tmp_path: Path) -> None:
    path = writers.idx(tmp_path / "file", writers.pixels(10, 28))
    before = path.read_bytes()
    read(path).zero_()  # private pages: not even a mistake reaches the file
    assert path.read_bytes() == before


MEASURE = """
import sys, time
import numpy, torch
from fedddp.data import fashion_mnist

def memory(kind):
    return next(int(line.split()[1]) / 1024 for line in open("/proc/self/status") if line.startswith(kind))

before, start = [memory(kind) for kind in ("VmHWM", "RssAnon")], time.process_time()
data = fashion_mnist.Source(root=sys.argv[1]).load()
seconds = time.process_time() - start
data.train.inputs.max()  # touches every page
print(len(data.train), seconds, memory("VmHWM") - before[0], memory("RssAnon") - before[1])
"""


def measure(root: Path) -> list[float]:
    """Examples, processor seconds, peak MB added and MB added that no other process shares, in a fresh process."""
    run = subprocess.run([sys.executable, "-c", MEASURE, str(root)], check=True, capture_output=True, text=True)
    return [float(word) for word in run.stdout.split()]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_ranks_share_the_pages_of_plain_files(tmp_path: Path) -> None:
    writers.mnist(tmp_path / "fashion-mnist", train=20000)
    count, _, _, own = measure(tmp_path)
    assert count == 20000
    assert own < 8  # of 23 MB


@pytest.mark.data
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_real_fashion_mnist_is_light(data_root: Path) -> None:
    count, seconds, peak, _ = measure(data_root)
    assert count == 60000
    assert seconds < 1.5
    assert peak < 100


@pytest.mark.data
def test_the_real_mnist(data_root: Path) -> None:
    data = mnist.Source(root=str(data_root)).load()
    assert data.train.inputs.shape == (60000, 28, 28)
    assert data.train.targets.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert data.test.targets.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert data.train.targets[:5].tolist() == [5, 0, 4, 1, 9]
    standard = mnist.Source(root=str(data_root), pixels="standardised").load()
    assert isinstance(standard.scale, torch.Tensor)
    assert 1 / float(standard.scale) / 255 == pytest.approx(0.3081, abs=5e-5)  # the well-known moments
    assert -float(standard.shift) / float(standard.scale) / 255 == pytest.approx(0.1307, abs=5e-5)


@pytest.mark.data
def test_the_real_fashion_mnist_and_a_tenth_of_it(data_root: Path) -> None:
    data = fashion_mnist.Source(root=str(data_root), pixels="standardised").load()
    assert data.train.targets.bincount().tolist() == [6000] * 10
    assert data.test.targets.bincount().tolist() == [1000] * 10
    assert data.train.targets[:3].tolist() == [9, 0, 0]
    assert isinstance(data.scale, torch.Tensor)
    assert 1 / float(data.scale) / 255 == pytest.approx(0.3530, abs=5e-5)
    assert -float(data.shift) / float(data.scale) / 255 == pytest.approx(0.2860, abs=5e-5)
    tenth = fashion_mnist.Source(root=str(data_root), fraction=0.1).load()
    assert tenth.train.targets.bincount().tolist() == [600] * 10
