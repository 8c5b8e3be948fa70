"""The loops in C and the tensor operations they stand for: the same bits; and the noise they make."""

import math
import os

import pytest
import torch

from fedddp.clients.keyed_noise import CHUNK, Keyed
from fedddp.clients.noise import Quantile, quantiles
from fedddp.core import gaussian, kernels
from fedddp.core.data import Dataset, Examples
from fedddp.local import ivon
from fedddp.rounds.iterative import add_pull

compiled = pytest.mark.skipif(kernels.library() is None, reason="no C compiler on this machine")
SIZES = [1, 2, 7, 2047, 2048, 2049, 5001]


def rows(seed, count, size, low=0.5):
    generator = torch.Generator().manual_seed(seed)
    return [low + torch.rand(3, size, generator=generator) for _ in range(count)]


@compiled
@pytest.mark.parametrize("size", SIZES)
def test_noise_has_the_same_bits_with_and_without_a_compiler(size, monkeypatch):
    mean, variance, *_ = rows(0, 2, size)
    found = []
    for by_tensors in (False, True):
        monkeypatch.setattr(kernels, "suit", lambda _, off=by_tensors: not off)
        noise, out = Quantile(torch.tensor([5, -7, 2**62])), (torch.empty(3, size), torch.empty(3, size))
        for _ in range(3):
            noise.perturb(mean, variance, *out)
        found.append([*out])
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


@compiled
@pytest.mark.parametrize("size", SIZES)
def test_a_step_has_the_same_bits_with_and_without_a_compiler(size, monkeypatch):
    found = []
    for by_tensors in (False, True):
        monkeypatch.setattr(kernels, "suit", lambda _, off=by_tensors: not off)
        mean, variance, offset, pull, momentum, noise, grad, theta = rows(1, 8, size, low=-0.3)
        column = torch.tensor([[600.0], [37.0], [1.0]])
        state = ivon.State(
            mean,
            variance.abs() + 0.01,
            offset,
            pull,
            momentum,
            column,
            column / 100,
            column / 1e4,
            noise,
            grad,
            theta,
            torch.zeros(3, dtype=torch.int64),
        )
        for _ in range(3):
            ivon.Solver(beta2=0.99)._step(state, state.grad, column * 1.7)
            state.noise.copy_(state.mean * 0.7)  # both are scratch to a step
            state.grad.copy_(state.mean - 0.4)
        found.append([state.mean, state.variance, state.momentum])
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


@compiled
@pytest.mark.parametrize("size", SIZES)
def test_a_sites_pull_has_the_same_bits_with_and_without_a_compiler(size, monkeypatch):
    precision, shift, theta, slope = rows(2, 4, size, low=-0.3)
    site, found = torch.stack([shift, precision], dim=1), []
    for by_tensors in (False, True):
        monkeypatch.setattr(kernels, "suit", lambda _, off=by_tensors: not off)
        found.append(slope.clone())
        add_pull(found[-1], site, theta, gaussian.diagonal)
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


@compiled
@pytest.mark.parametrize("size", [*SIZES, 2 * CHUNK + 3])
def test_keyed_noise_has_the_same_bits_with_and_without_a_compiler(size, monkeypatch):
    pytest.importorskip("cryptography", reason="a cipher makes it: pip install 'fedddp[privacy]'")
    (start,), found = rows(3, 1, size, low=-0.3), []
    for by_tensors in (False, True):
        monkeypatch.setattr(kernels, "suit", lambda _, off=by_tensors: not off)
        noise = Keyed([bytes([row]) * 32 for row in range(3)])
        found.append(start.clone())
        for _ in range(2):
            noise.add(found[-1], [0.3, 1.0, 70.0])
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)
    assert (found[0] != start).all()


@compiled
@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (1 / 255, 0.0), (2 / 255, -1.0)])
def test_gathered_bytes_have_the_same_bits_with_and_without_a_compiler(scale, shift, monkeypatch):
    stored = torch.arange(5 * 77, dtype=torch.int64).mul(37).remainder(256).to(torch.uint8).view(5, 7, 11)
    examples = Examples(stored, torch.arange(5))
    data, index = Dataset(examples, examples, 5, scale=scale, shift=shift), torch.tensor([[4, 0, 2], [1, 4, 4]])
    fast = data.gather(index, torch.float32)
    monkeypatch.setattr(Dataset, "_bytes", lambda *_: False)
    torch.testing.assert_close(fast, data.gather(index, torch.float32), rtol=0, atol=0)
    assert fast[1].tolist() == [[4, 0, 2], [1, 4, 4]]


def test_noise_depends_on_key_and_draw_alone():
    """Not on the neighbours in a cohort, nor on how many parameters follow."""
    whole, alone = Quantile(torch.tensor([3, 4, 5]), drawn=2), Quantile(torch.tensor([5]), drawn=2)
    assert torch.equal(whole.draw(whole.keys, 1001)[2, :500], alone.draw(alone.keys, 500)[0])


def test_noise_is_standard_normal_and_uncorrelated():
    size = 1 << 18
    noise = Quantile(torch.tensor([1, 2]))
    draws = []
    for _ in range(4):
        draws.append(noise.draw(noise.keys, size))
        noise.drawn += 1
    z = torch.cat(draws).double()  # [8, size]: two clients, four draws
    bound = 5 / math.sqrt(size)
    assert z.mean(1).abs().max() < bound
    assert (z.square().mean(1) - 1).abs().max() < bound * math.sqrt(2)
    assert (z.pow(4).mean(1) - 3).abs().max() < bound * math.sqrt(96)
    correlation = z @ z.T / size - torch.eye(8, dtype=torch.float64)
    assert correlation.fill_diagonal_(0).abs().max() < bound
    assert (z[:, 1:] * z[:, :-1]).mean(1).abs().max() < bound
    share = (z[0].unsqueeze(1) < torch.tensor([-2.0, -1.0, 0.5, 1.5, 3.0])).double().mean(0)
    truth = torch.special.ndtr(torch.tensor([-2.0, -1.0, 0.5, 1.5, 3.0], dtype=torch.float64))
    assert (share - truth).abs().max() < bound


def test_the_quantiles_have_unit_variance():
    table, scale = quantiles()
    z = table.double() * scale
    assert int(table.long().sum()) == 0
    assert float(z.square().mean()) == pytest.approx(1, abs=1e-12)
    assert float(z.max()) == pytest.approx(4.0, abs=0.02)


@pytest.mark.parametrize("setting", ["FEDDDP_KERNELS=off", "CC=no-such-compiler", "CC=false"])
def test_without_a_compiler_there_are_none(setting, monkeypatch, tmp_path):
    for word in (setting, f"XDG_CACHE_HOME={tmp_path}", f"TMPDIR={tmp_path}"):
        monkeypatch.setenv(*word.split("="))
    monkeypatch.setattr("tempfile.tempdir", None)  # ask for the folder anew
    assert kernels.library.__wrapped__() is None


@compiled
@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("fault", ["folder of another", "folder others may write to", "file of another", "a link"])
def test_only_ones_own_library_is_loaded(tmp_path, fault):
    """In a shared temporary folder somebody else could have put a library of the same name."""
    folder = tmp_path / "cache"
    made = kernels._compiled("cc", folder)
    if fault == "folder of another":
        os.chown(folder, 12345, 12345)
    elif fault == "folder others may write to":
        folder.chmod(0o777)
    elif fault == "file of another":
        os.chown(made, 12345, 12345)
    else:
        made.rename(tmp_path / "elsewhere.so")
        made.symlink_to(tmp_path / "elsewhere.so")
    with pytest.raises(PermissionError, match="belongs to another user, or others may write to it"):
        kernels._compiled("cc", folder)
