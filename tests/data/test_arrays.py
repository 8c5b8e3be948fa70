"""Arrays of the user's: npz and safetensors."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fedddp.core.data import Dataset
from fedddp.data import npz, safetensors


def write(path: Path, **arrays: np.ndarray) -> str:
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    else:
        save_file({name: torch.from_numpy(array) for name, array in arrays.items()}, path)
    return str(path)


def load(file: str, **settings: str | float) -> Dataset:
    source = npz.Source if file.endswith(".npz") else safetensors.Source
    return source(file=file, **settings).load()  # type: ignore[arg-type]


@pytest.fixture(params=["a.npz", "a.safetensors"])
def path(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    return tmp_path / request.param


def parts(inputs: np.ndarray, targets: np.ndarray) -> dict[str, np.ndarray]:
    return {
        "train_inputs": inputs[:6],
        "train_targets": targets[:6],
        "test_inputs": inputs[6:],
        "test_targets": targets[6:],
    }


def test_pixels_and_classes_and_clients(path: Path) -> None:
    inputs = np.arange(10 * 4, dtype=np.uint8).reshape(10, 2, 2)
    clients = {"train_clients": np.arange(6, dtype=np.int32), "test_clients": np.zeros(4, np.int64)}
    data = load(write(path, **parts(inputs, np.arange(10, dtype=np.int32) % 3), **clients))
    assert data.classes == 3
    assert data.scale == 1 / 255
    assert data.train.targets.dtype == torch.int64
    assert data.train.clients is not None
    assert data.train.clients.tolist() == list(range(6))
    assert torch.equal(data.test.inputs, torch.from_numpy(inputs[6:]))


def test_keras_names_and_a_column_of_targets(path: Path) -> None:
    held = parts(np.zeros((10, 4), np.uint8), (np.arange(10) % 2).reshape(-1, 1))
    short = {"train_inputs": "x_train", "train_targets": "y_train", "test_inputs": "x_test", "test_targets": "y_test"}
    data = load(write(path, **{short[name]: array for name, array in held.items()}))
    assert data.train.targets.tolist() == [0, 1, 0, 1, 0, 1]
    assert data.classes == 2


def test_floats_stay_unless_standardised(path: Path) -> None:
    inputs = np.random.default_rng(0).normal(3, 2, (10, 4))
    file = write(path, **parts(inputs, np.linspace(0, 1, 10)))
    data = load(file)
    assert data.classes == 0
    assert torch.equal(data.prepare(data.train.inputs, torch.float64), torch.from_numpy(inputs[:6]))
    seen = load(file, pixels="standardised")
    assert seen.prepare(seen.train.inputs, torch.float64).mean(0).abs().max() < 1e-12


def test_tokens_and_next_tokens(path: Path) -> None:
    words = np.arange(30).reshape(10, 3) % 5
    data = load(write(path, **parts(words, words.copy())))
    assert data.tokens
    assert data.classes == 5


def test_several_labels(path: Path) -> None:
    data = load(write(path, **parts(np.zeros((10, 3), np.float32), np.ones((10, 7), np.uint8))))
    assert data.classes == 7


def test_mistakes_are_named(path: Path) -> None:
    with pytest.raises(ValueError, match=f"{path.name}: not found"):
        load(str(path))
    with pytest.raises(ValueError, match=r"data\.file=: must be the path"):
        npz.Source().load()
    with pytest.raises(ValueError, match="lacks test_targets"):
        load(write(path, train_inputs=np.zeros(1), train_targets=np.zeros(1), test_inputs=np.zeros(1)))
    good = parts(np.zeros((10, 3), np.float32), np.arange(10) % 2)
    for name, value, reason in (
        ("train_targets", np.zeros(5, np.int64), r"train inputs are \[6, 3\], targets \[5\]"),
        ("test_inputs", np.zeros((4, 2), np.float32), r"an input is \[3\], to test \[2\]"),
        ("train_clients", np.zeros(5, np.int64), r"train_clients are \[5\] for 6 examples"),
    ):
        with pytest.raises(ValueError, match=reason):
            load(write(path, **(good | {name: value})))
    write(path, **good)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match=f"{path.name}: cannot be read as"):
        load(str(path))


def test_pickled_objects_in_an_npz_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", train_inputs=np.array([{}], object))
    with pytest.raises(ValueError, match=r"a\.npz: cannot be read as arrays.*allow_pickle"):
        npz.Source(root=str(tmp_path), file="a.npz").load()


NOTHING = np.zeros((10, 3), np.float32)
TWO = np.arange(10) % 2


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"train_inputs": np.zeros((6, 0), np.float32), "test_inputs": np.zeros((4, 0), np.float32)},
            "hold no numbers",
        ),
        ({"train_inputs": np.full((6, 3), np.nan, np.float32)}, "the training set holds numbers that are not finite"),
        (
            {"test_inputs": np.full((4, 3), np.inf, np.float32)},
            "the test set holds numbers .* in the inputs of example 0",
        ),
        ({"train_targets": np.arange(6) - 1}, "the training set has targets from -1 to 4, expected 0 to"),
        (
            {"train_targets": np.array([0, 1, 0, 1, 0, np.nan])},
            "targets are of type torch.float64, to test torch.int64",
        ),
        (
            {"train_targets": np.full(6, np.nan), "test_targets": np.zeros(4)},
            "the training set holds a target that is not",
        ),
        (
            {"train_targets": np.full((6, 2), 2, np.uint8), "test_targets": np.ones((4, 2), np.uint8)},
            "a 0 or 1 for each",
        ),
        ({"train_targets": np.full((6, 2), 0.5), "test_targets": np.ones((4, 2))}, "a 0 or 1 for each of 2 labels"),
        (
            {"train_targets": np.ones((6, 2), np.int64), "test_targets": np.ones((4, 2), np.int64)},
            "inputs are no tokens",
        ),
        (
            {"train_targets": np.ones((6, 2), np.uint8), "test_targets": np.ones((4, 3), np.uint8)},
            r"a target is \[2\], to",
        ),
        ({"train_targets": np.ones((6, 2), np.uint8)}, r"a target is \[2\], to test \[\]"),
        ({"test_inputs": np.zeros((4, 3), np.uint8)}, "inputs are of type torch.float32, to test torch.uint8"),
        (
            {"train_inputs": np.zeros((6, 3), bool), "test_inputs": np.zeros((4, 3), bool)},
            "inputs are of type torch.bool",
        ),
        ({"train_clients": np.full(6, 0.5)}, "train_clients are of type torch.float64; number the clients by integers"),
        ({"train_targets": np.zeros(6, int), "test_targets": np.zeros(4, int)}, "all examples are of one class"),
        ({"train_inputs": np.full((6, 3), -1), "test_inputs": np.zeros((4, 3), int)}, "holds the token -1"),
    ],
)
def test_numbers_that_cannot_be_meant(path: Path, changed: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(ValueError, match=message) as found:
        load(write(path, **(parts(NOTHING, TWO) | changed)))
    assert str(path) in str(found.value)
    assert len(str(found.value).splitlines()) == 1
