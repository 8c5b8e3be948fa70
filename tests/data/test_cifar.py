"""CIFAR-10 and CIFAR-100, in both published shapes; SVHN."""

import hashlib
import io
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from fedddp.data import cifar10, cifar100, svhn
from fedddp.data._cifar import ArraysOnly
from tests.data import writers

BATCHES = [f"data_batch_{number}" for number in range(1, 6)]


def cifar10_binary(folder: Path) -> None:
    for seed, name in enumerate([*BATCHES, "test_batch"]):
        writers.cifar_rows(folder / f"{name}.bin", np.arange(4, dtype=np.uint8)[:, None] + seed, seed)


def cifar10_python(folder: Path) -> None:
    for seed, name in enumerate([*BATCHES, "test_batch"]):
        writers.cifar_pickle(folder / name, seed, labels=[n + seed for n in range(4)])


def test_both_shapes_of_cifar10_read_alike(tmp_path: Path) -> None:
    cifar10_binary(tmp_path / "a/cifar-10-batches-bin")
    binary = cifar10.Source(root=str(tmp_path / "a")).load()
    assert binary.train.inputs.shape == (20, 3, 32, 32)
    assert binary.train.targets.tolist() == [n + batch for batch in range(5) for n in range(4)]
    assert torch.equal(binary.test.inputs.flatten(1), torch.from_numpy(writers.pixels(4, 3072, seed=5)))
    cifar10_python(tmp_path / "b/cifar-10-batches-py")
    pickled = cifar10.Source(root=str(tmp_path / "b")).load()
    for one, other in ((binary.train, pickled.train), (binary.test, pickled.test)):
        assert torch.equal(one.inputs, other.inputs)
        assert torch.equal(one.targets, other.targets)


def test_cifar100_has_two_labels(tmp_path: Path) -> None:
    both = np.array([[0, 10], [19, 99], [5, 50]], np.uint8)
    for seed, name in enumerate(("train", "test")):
        writers.cifar_rows(tmp_path / f"cifar-100-binary/{name}.bin", both, seed)
        labels = {"coarse_labels": both[:, 0].tolist(), "fine_labels": both[:, 1].tolist()}
        writers.cifar_pickle(tmp_path / f"py/cifar-100-python/{name}", seed=seed, **labels)
    for labels, column, classes in (("coarse", 0, 20), ("fine", 1, 100)):
        binary = cifar100.Source(root=str(tmp_path), labels=labels).load()
        pickled = cifar100.Source(root=str(tmp_path / "py"), labels=labels).load()
        assert binary.classes == pickled.classes == classes
        assert binary.train.targets.tolist() == pickled.train.targets.tolist() == both[:, column].tolist()
        assert torch.equal(binary.train.inputs, pickled.train.inputs)
    with pytest.raises(ValueError, match=r"data\.labels=all: must be coarse or fine"):
        cifar100.Source(labels="all")


def test_a_missing_batch_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="fedddp data get cifar10"):
        cifar10.Source(root=str(tmp_path)).load()
    cifar10_binary(tmp_path / "cifar-10-batches-bin")
    (tmp_path / "cifar-10-batches-bin/data_batch_3.bin").unlink()
    with pytest.raises(ValueError, match=r"data_batch_3\.bin: not found in .*cifar-10-batches-bin"):
        cifar10.Source(root=str(tmp_path)).load()


@pytest.mark.parametrize("content", [b"", bytes(3073 * 2 - 1), bytes([10]) + bytes(3072)])
def test_a_damaged_binary_file_is_named(tmp_path: Path, content: bytes) -> None:
    cifar10_binary(tmp_path)
    (tmp_path / "data_batch_2.bin").write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(str(tmp_path / "data_batch_2.bin"))):
        cifar10.Source(root=str(tmp_path)).load()


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (Path("exploded"),)  # type: ignore[return-value]


def test_a_pickle_that_would_run_code_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cifar10_python(tmp_path)
    for value in (Bomb(), [Bomb()], {"data": Bomb()}, np.array([Bomb()], object), print, eval, Path("x"), {1}):
        (tmp_path / "data_batch_4").write_bytes(pickle.dumps(value))
        with pytest.raises(ValueError, match="data_batch_4: cannot be read as a CIFAR batch"):
            cifar10.Source(root=str(tmp_path)).load()
    assert not Path("exploded").exists()


def test_the_unpickler_admits_plain_values_and_arrays_alone() -> None:
    plain = [1, "a", b"b", {"c": [2]}]
    for protocol in range(5):  # arrays of protocol 5 are written in another way, and CIFAR's are of protocol 2
        assert ArraysOnly(io.BytesIO(pickle.dumps(plain, protocol))).load() == plain
        assert ArraysOnly(io.BytesIO(pickle.dumps(np.arange(4), protocol))).load().tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("content", [b"", b"\x80\x02", pickle.dumps({}), pickle.dumps({b"data": 1, b"labels": [1]})])
def test_a_damaged_pickle_is_named(tmp_path: Path, content: bytes) -> None:
    cifar10_python(tmp_path)
    (tmp_path / "test_batch").write_bytes(content)
    with pytest.raises(ValueError, match="test_batch: cannot be read as a CIFAR batch"):
        cifar10.Source(root=str(tmp_path)).load()


def test_svhn_from_mat_files(tmp_path: Path) -> None:
    from scipy.io import savemat

    (tmp_path / "svhn").mkdir()
    colours = writers.pixels(32, 32, 3, 12)
    labels = np.array([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10, 1], np.uint8)[:, None]
    for name in ("train", "test"):
        savemat(tmp_path / f"svhn/{name}_32x32.mat", {"X": colours, "y": labels}, do_compression=name == "train")
    data = svhn.Source(root=str(tmp_path), pixels="standardised").load()
    assert data.train.targets.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0, 1]
    assert data.train.inputs.shape == (12, 3, 32, 32)
    assert data.train.inputs.is_contiguous()
    assert data.train.inputs[5, 2, 7, 9] == colours[7, 9, 2, 5]


def test_damaged_mat_files_are_named(tmp_path: Path) -> None:
    from scipy.io import savemat

    with pytest.raises(ValueError, match=r"train_32x32\.mat: not found"):
        svhn.Source(root=str(tmp_path)).load()
    path = tmp_path / "train_32x32.mat"
    savemat(path, {"X": writers.pixels(32, 32, 3, 4), "y": np.array([[1], [2], [3], [11]])})
    whole = path.read_bytes()
    for content in (b"", whole[:-100], b"x" * 500, whole):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="cannot be read as an SVHN"):
            svhn.Source(root=str(tmp_path)).load()
    savemat(path, {"X": writers.pixels(32, 32, 3, 4), "z": np.zeros(4)})
    with pytest.raises(ValueError, match="cannot be read as an SVHN"):
        svhn.Source(root=str(tmp_path)).load()


@pytest.mark.data
def test_the_real_cifar10(data_root: Path) -> None:
    data = cifar10.Source(root=str(data_root), pixels="standardised").load()
    assert data.train.targets.bincount().tolist() == [5000] * 10
    assert data.test.targets.bincount().tolist() == [1000] * 10
    first = (data_root / "cifar-10-batches-bin/data_batch_1.bin").read_bytes()
    assert hashlib.md5(first).hexdigest() == "5dd7e06a14cb22eb9f671a540d1b7c25"
    assert data.train.inputs[0].numpy().tobytes() == first[1:3073]
    assert isinstance(data.scale, torch.Tensor)
    deviation = (1 / data.scale / 255).flatten()
    torch.testing.assert_close(deviation, torch.tensor([0.2470, 0.2435, 0.2616]).double(), atol=5e-5, rtol=0)
    mean = (-data.shift / data.scale / 255).flatten()
    torch.testing.assert_close(mean, torch.tensor([0.4914, 0.4822, 0.4465]).double(), atol=5e-5, rtol=0)


@pytest.mark.data
def test_the_real_cifar100(data_root: Path) -> None:
    fine, coarse = (cifar100.Source(root=str(data_root), labels=labels).load() for labels in ("fine", "coarse"))
    assert fine.test.targets.bincount().tolist() == [100] * 100
    assert coarse.test.targets.bincount().tolist() == [500] * 20
    group = torch.zeros(100, dtype=torch.long).scatter(0, fine.test.targets, coarse.test.targets)
    assert torch.equal(group[fine.train.targets], coarse.train.targets)  # a class has one group
