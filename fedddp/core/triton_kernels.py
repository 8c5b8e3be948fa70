"""The loops of kernels.c for CUDA, in Triton, and two more: a step of Adam and a step of SGD.

Their bits on a GPU were never seen: no GPU has run this file. What was seen is

- Triton's interpreter, which does each operation with numpy on the CPU: tests/core/test_triton.py holds it to kernels.c
  and to the tensor operations, bit by bit;
- the PTX that the compiler makes without a GPU: no fused multiply-add, no approximate division or root, nothing that
  takes small numbers for 0.

tests/cuda/test_triton.py makes the same comparisons on a GPU. There, and in the interpreter, every operation is rounded
as it is written:

- OPTIONS keep the compiler from joining a product and a sum (the interpreter never does);
- `tl.div_rn` and `tl.sqrt_rn` are rounded correctly in float32, where `/` and `tl.sqrt` are not on CUDA (in the
  interpreter they are the same). In float64 `/` and `tl.sqrt` are rounded correctly and there are no others.

Python's floats reach a compiled kernel as float32. What must be a double is therefore a constant of the compilation
(`tl.constexpr`), or in a tensor of float64. Settings of a run that the interpreter would read as doubles are only used
together with float32, so that they are rounded to it first, as in C.

All arguments that change from step to step may lie on the device, so that a CUDA graph can hold the whole step: the
number of the draw, the steps taken, the learning rates and the corrections of each row. The kernels read counters and
never change them, because blocks of the same launch read them at different times: add to them between the launches.
"""

# ruff: noqa: ANN001, ANN202 - the types of a kernel's arguments are Triton's own, and it finds them out

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024  # numbers that one program does
OPTIONS = {"enable_fp_fusion": False}  # no product and sum in one: they are two roundings in C
BITS = 1022  # a grid beyond 2^±1022 has no factor that is a normal double


@triton.jit
def _place(n, BLOCK: tl.constexpr):
    """The row of this program, its columns, and which of them there are; rows times blocks may be above 2^31."""
    blocks = (n + BLOCK - 1) // BLOCK
    row = (tl.program_id(0) // blocks).to(tl.int64)
    column = (tl.program_id(0) % blocks).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    return row, column, column < n


@triton.jit
def _mix32(x):
    """A 32-bit hash."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _row_hash(key, draw):
    """splitmix64's `draw`-th number from a key."""
    x = key.to(tl.uint64) + (draw.to(tl.uint64) + 1) * 0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit(do_not_specialize=["draw"])
def _perturb(key, draw, table, scale, mean, variance, noise, theta, n, COUNTED: tl.constexpr, BLOCK: tl.constexpr):
    """noise <- z √variance and theta <- mean + noise, z the `draw`-th quantile noise of each row's key."""
    row, column, there = _place(n, BLOCK)
    if COUNTED:
        draw = tl.load(draw)
    own = _row_hash(tl.load(key + row), draw)
    word = _mix32(_mix32(own.to(tl.uint32) + (column >> 1).to(tl.uint32)) ^ (own >> 32).to(tl.uint32))
    bits = (word >> ((column & 1) * 16).to(tl.uint32)) & 16383  # a word holds the bits of two neighbours
    at = row * n + column
    z = tl.load(table + bits, mask=there).to(tl.float32) * scale
    e = z * tl.sqrt_rn(tl.load(variance + at, mask=there))
    tl.store(noise + at, e, mask=there)
    tl.store(theta + at, tl.load(mean + at, mask=there) + e, mask=there)


@triton.jit(do_not_specialize=["draw", "below"])
def _dropout(key, draw, below, scale, mask, n, COUNTED: tl.constexpr, BLOCK: tl.constexpr):
    """mask <- scale where the word of the row's key, the draw and the place is at least `below`, else 0."""
    row, column, there = _place(n, BLOCK)
    if COUNTED:
        draw = tl.load(draw)
    own = _row_hash(tl.load(key + row), draw)
    word = _mix32(_mix32(own.to(tl.uint32) + column.to(tl.uint32)) ^ (own >> 32).to(tl.uint32))
    kept = tl.where(word.to(tl.int64) >= below, 1.0, 0.0) * scale
    tl.store(mask + row * n + column, kept, mask=there)


@triton.jit
def _add_pull(site, theta, slope, n, BLOCK: tl.constexpr):
    """slope <- slope + (precision theta - shift); site is [rows, 2, n], (shift, precision)."""
    row, column, there = _place(n, BLOCK)
    at = row * n + column
    move = site + 2 * row * n + column
    pull = tl.load(move + n, mask=there) * tl.load(theta + at, mask=there) - tl.load(move, mask=there)
    tl.store(slope + at, tl.load(slope + at, mask=there) + pull, mask=there)


@triton.jit
def _ivon_step(
    mean, variance, momentum, offset, pull, noise, factor, grad, curve, debiased, lr, keep, take, rate, n,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """g <- keep g + take grad;  v <- v / (1 + x + ½x²);  m <- m - lr v (pull m + offset + debiased g)

    with x = curve noise factor + rate (pull v - 1); curve, debiased and lr have a number for each row.
    """
    row, column, there = _place(n, BLOCK)
    at = row * n + column
    m, v, c = tl.load(mean + at, mask=there), tl.load(variance + at, mask=there), tl.load(pull + at, mask=there)
    seen = tl.load(noise + at, mask=there) * tl.load(factor + at, mask=there)
    x = seen * tl.load(curve + row) - rate + c * v * rate
    g = tl.load(momentum + at, mask=there) * keep + tl.load(grad + at, mask=there) * take
    v = tl.div_rn(v, x * x * 0.5 + x + 1.0)
    slope = c * m + tl.load(offset + at, mask=there) + g * tl.load(debiased + row)
    tl.store(momentum + at, g, mask=there)
    tl.store(variance + at, v, mask=there)
    tl.store(mean + at, m - slope * v * tl.load(lr + row), mask=there)


@triton.jit
def _gather(index, stored, scale, shift, out, n, BLOCK: tl.constexpr):
    """out <- stored[index] · scale + shift: examples of n bytes each."""
    row, column, there = _place(n, BLOCK)
    value = tl.load(stored + tl.load(index + row) * n + column, mask=there).to(tl.float32)
    tl.store(out + row * n + column, value * scale + shift, mask=there)


@triton.jit
def _to_grid(part, scale, word, n, ADDS: tl.constexpr, BLOCK: tl.constexpr):
    """word <- [word +] round(part · scale), to the nearest and even.

    Triton has no such rounding that the interpreter knows, so 2^23 is added and taken away: the sum has no room for a
    fraction, and is rounded as any sum. What is larger than 2^23 has no fraction. What int64 cannot hold, and nan,
    becomes -2^63 as on x86; CUDA's own conversion would make 2^63 - 1 of what is too large.
    """
    _, column, there = _place(n, BLOCK)
    value = tl.load(part + column, mask=there) * scale
    large = tl.where(value < 0, -8388608.0, 8388608.0)
    value = tl.where(tl.abs(value) < 8388608.0, (value + large) - large, value)
    value = tl.where(tl.abs(value) < 9223372036854775808.0, value, -9223372036854775808.0)
    total = value.to(tl.int64)
    if ADDS:
        total += tl.load(word + column, mask=there)
    tl.store(word + column, total, mask=there)


@triton.jit(do_not_specialize=["bits"])
def _from_grid(word, bits, weight, total, n, BLOCK: tl.constexpr):
    """total <- word · 2^-bits / weight, in double; the factor is made of its exponent's bits."""
    _, column, there = _place(n, BLOCK)
    scale = ((1023 - bits.to(tl.int64)) << 52).to(tl.float64, bitcast=True)
    value = tl.load(word + column, mask=there).to(tl.float64) * scale / tl.load(weight)
    tl.store(total + column, value.to(tl.float32), mask=there)


@triton.jit
def _power(base: tl.constexpr, exponent):
    """base^exponent in double, by squaring: within 10^-11, so that float32 does not tell it from C's pow."""
    result, square = tl.full((), 1.0, tl.float64), tl.full((), base, tl.float64)
    while exponent > 0:
        result = tl.where((exponent & 1) == 1, result * square, result)
        square = square * square
        exponent = exponent >> 1
    return result


@triton.jit
def _adam_step(
    theta, grad, first, second, taken, lr, n,
    BETA1: tl.constexpr, BETA2: tl.constexpr, DECAY: tl.constexpr, EPS: tl.constexpr, DECOUPLED: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """g = grad [+ decay theta];  m <- m + (1-β1)(g - m);  v <- β2 v + (1-β2) g²

        [theta <- (1 - lr decay) theta];  theta <- theta - lr/(1-β1ᵗ) m / (√v/√(1-β2ᵗ) + eps)

    in the order of torch._fused_adam_ and _fused_adamw_ on the CPU, and with their bits where they join no products and
    sums (ATEN_CPU_CAPABILITY=default); for AVX they do, in most of a tensor but not in its last few numbers. On CUDA
    torch computes in double, and its bits were not compared. Numbers of a row are doubles, rounded to float32 once.
    For β1 ≤ ½, torch writes m <- g - β1 (g - m), and so does this.
    """
    row, column, there = _place(n, BLOCK)
    at = row * n + column
    steps, rate = tl.load(taken + row).to(tl.int32), tl.load(lr + row).to(tl.float64)
    size = (rate / (1.0 - _power(BETA1, steps))).to(tl.float32)
    root = tl.sqrt(1.0 - _power(BETA2, steps)).to(tl.float32)
    p, g = tl.load(theta + at, mask=there), tl.load(grad + at, mask=there)
    if DECAY != 0:
        if DECOUPLED:
            p = p * (1.0 - rate * DECAY).to(tl.float32)
        else:
            g = g + p * DECAY
    m = tl.load(first + at, mask=there)
    share = tl.full((), 1 - BETA1, tl.float32)
    m = tl.where(share < 0.5, m + share * (g - m), g + (share - 1.0) * (g - m))
    v = tl.load(second + at, mask=there) * BETA2 + (1 - BETA2) * g * g
    tl.store(first + at, m, mask=there)
    tl.store(second + at, v, mask=there)
    tl.store(theta + at, p - tl.div_rn(size * m, tl.div_rn(tl.sqrt_rn(v), root) + EPS), mask=there)


@triton.jit
def _sgd_step(
    theta, grad, velocity, lr, momentum, decay, n,
    MOVING: tl.constexpr, NESTEROV: tl.constexpr, DECAYING: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """g = grad [+ decay theta];  velocity <- momentum velocity + g;  theta <- theta - lr velocity

    in the order of torch._fused_sgd_ on the CPU, and with its bits where Adam has; with Nesterov,
    theta <- theta - lr (g + momentum velocity).
    """
    row, column, there = _place(n, BLOCK)
    at = row * n + column
    p, g = tl.load(theta + at, mask=there), tl.load(grad + at, mask=there)
    if DECAYING:
        g = g + p * decay
    if MOVING:
        moved = tl.load(velocity + at, mask=there) * momentum + g
        tl.store(velocity + at, moved, mask=there)
        g = g + moved * momentum if NESTEROV else moved
    tl.store(theta + at, p - g * tl.load(lr + row).to(tl.float32), mask=there)


@triton.jit
def _cross_entropy(logits, target, share, losses, slope, each, n, WEIGHTED: tl.constexpr, BLOCK: tl.constexpr):
    """losses <- -share log p(target), slope <- share (p - onehot): one example a program, n classes in one block.

    Exponentials and logarithms are the device's own: these bits are not those of the CPU, as a product's are not.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    there = column < n
    x = tl.load(logits + row * n + column, mask=there, other=float("-inf"))
    wanted = tl.load(target + row)
    by = tl.load(share + row) if WEIGHTED else each
    top = tl.max(x, 0)
    power = tl.exp(x - top)
    total = tl.sum(power, 0)
    at = tl.sum(tl.where(column == wanted, x, 0.0), 0)
    tl.store(losses + row, (tl.log(total) + top - at) * by)
    value = tl.div_rn(power, total + tl.zeros_like(power)) - tl.where(column == wanted, 1.0, 0.0)
    tl.store(slope + row * n + column, value * by, mask=there)


def _launch(kernel: Any, rows: int, n: int, *arguments: Tensor | int | float, **constants: float) -> None:
    """A program for each block of each row, on the device of the tensors; nothing for nothing."""
    programs = rows * triton.cdiv(n, BLOCK)
    if programs:
        with torch.cuda.device_of(next(a for a in reversed(arguments) if isinstance(a, Tensor))):
            kernel[(programs,)](*arguments, n, **constants, BLOCK=BLOCK, **OPTIONS)


@lru_cache(maxsize=16)
def _there(table: Tensor, device: torch.device) -> Tensor:
    """A table that nobody changes, where a kernel can read it: copied once, not in every step."""
    return table.to(device)


def perturb(
    rows: int, n: int, key: Tensor, draw: Tensor | int, table: Tensor, scale: float,
    mean: Tensor, variance: Tensor, noise: Tensor, theta: Tensor,
) -> None:  # fmt: skip
    """`draw` is a number, or an int64 on the device; the table may be on the CPU, and so may the keys."""
    key, table = key.to(mean.device), _there(table, mean.device)
    counted = isinstance(draw, Tensor)
    _launch(_perturb, rows, n, key, draw, table, scale, mean, variance, noise, theta, COUNTED=counted)


def dropout(rows: int, n: int, key: Tensor, draw: Tensor | int, below: int, scale: float, mask: Tensor) -> None:
    """`draw` as for perturb."""
    _launch(_dropout, rows, n, key.to(mask.device), draw, below, scale, mask, COUNTED=isinstance(draw, Tensor))


def add_pull(rows: int, n: int, site: Tensor, theta: Tensor, slope: Tensor) -> None:
    _launch(_add_pull, rows, n, site, theta, slope)


def ivon_step(rows: int, n: int, *arguments: Tensor | float) -> None:
    """mean, variance, momentum, offset, pull, noise, factor, grad; curve, debiased, lr [rows]; keep, take, rate."""
    _launch(_ivon_step, rows, n, *arguments)


def gather(count: int, n: int, index: Tensor, stored: Tensor, scale: float, shift: float, out: Tensor) -> None:
    _launch(_gather, count, n, index, stored, scale, shift, out)


def to_grid(n: int, part: Tensor, scale: float, adds: int, word: Tensor) -> None:
    _launch(_to_grid, 1, n, part, scale, word, ADDS=bool(adds))


def from_grid(n: int, word: Tensor, bits: int, weight: Tensor, total: Tensor) -> None:
    if abs(bits) > BITS:
        raise ValueError(f"a grid of 2^-{bits}: at most {BITS} bits")
    _launch(_from_grid, 1, n, word, bits, weight, total)


def adam_step(
    rows: int, n: int, theta: Tensor, grad: Tensor, first: Tensor, second: Tensor, taken: Tensor, lr: Tensor,
    beta1: float, beta2: float, decay: float, eps: float, decoupled: int,
) -> None:  # fmt: skip
    """taken [rows] counts this step too; lr [rows] is float64 where the bits shall be torch's, or float32."""
    constants = {"BETA1": beta1, "BETA2": beta2, "DECAY": decay, "EPS": eps, "DECOUPLED": bool(decoupled)}
    _launch(_adam_step, rows, n, theta, grad, first, second, taken, lr, **constants)


def sgd_step(
    rows: int, n: int, theta: Tensor, grad: Tensor, velocity: Tensor, lr: Tensor,
    momentum: float, nesterov: int, decay: float,
) -> None:  # fmt: skip
    """Without momentum nobody looks at velocity: any tensor will do."""
    constants = {"MOVING": momentum != 0, "NESTEROV": bool(nesterov), "DECAYING": decay != 0}
    _launch(_sgd_step, rows, n, theta, grad, velocity, lr, momentum, decay, **constants)


def cross_entropy(
    rows: int, n: int, logits: Tensor, target: Tensor, share: Tensor | float, losses: Tensor, slope: Tensor
) -> None:
    weighted = isinstance(share, Tensor)
    given = (logits, target, share if weighted else losses, losses, slope, 0.0 if weighted else share, n)
    _cross_entropy[(rows,)](*given, WEIGHTED=weighted, BLOCK=triton.next_power_of_2(n), **OPTIONS)


KERNELS: dict[str, Callable[..., None]] = {
    "cross_entropy": cross_entropy,
    "perturb": perturb,
    "dropout": dropout,
    "add_pull": add_pull,
    "ivon_step": ivon_step,
    "gather": gather,
    "to_grid": to_grid,
    "from_grid": from_grid,
    "adam_step": adam_step,
    "sgd_step": sgd_step,
}


def probe(device: str) -> None:
    """Launch the shortest kernel: raises where Triton cannot compile or launch."""
    one = torch.ones(1, 2, 1, device=device)
    call("add_pull", 1, 1, one, one[0, :1], one[0, 1:])


def call(name: str, *arguments: Tensor | int | float) -> None:
    """A kernel by name, with the arguments of the one in C."""
    KERNELS[name](*arguments)
