"""The exact sum beside a plain float32 all_reduce of as many numbers, in turn on the same ranks.

`exact` is what a round does: find the scales and agree on them, encode, add and decode in pieces that overlap. `masked`
is the same behind masks (exchange.secure=rank); without the package for them it is `exact` once more. `parts` are the
same steps one after the other, to see where the time goes.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from fedddp.exchange.fixed_point import Segment, cut
from fedddp.exchange.group import Exchange
from fedddp.exchange.masks import Masks, available, meet, unmasked
from fedddp.exchange.reduce import Field, Reduction

SIZES = (178_110, 10_000_000)  # the MLP 784-200-100-10, and a small ResNet
PARTS = ("scales", "encode", "reduce", "decode")


def call(words: list[str], exchange: Exchange) -> list[dict[str, Any]]:
    rows = []
    for size in SIZES:
        rows.append(compare(size, exchange))
        if exchange.rank == 0:
            print(line(rows[-1]), flush=True)
    return rows


def compare(size: int, exchange: Exchange) -> dict[str, Any]:
    """Median seconds of the slowest rank, and the median of the ratios within each repetition."""
    value, weight = torch.randn(size), torch.ones(1)
    floats = torch.randn(size)
    transport = exchange.transport(size + 1, exchange.device)
    flat, most = torch.zeros(size, dtype=torch.int64), transport.source.shape[1]
    (piece,) = cut([Segment([value], 50, torch.empty(size), torch.ones(1, dtype=torch.float64))], size)
    lengths = [min(most, size - low) for low in range(0, size, most)]
    steps: dict[str, Callable[[], object]] = {
        "float32": lambda: exchange.add_floats(floats),
        "exact": lambda: _exact(size, exchange, [value, weight]),
        "masked": lambda: _masked(size, exchange, [value, weight]),
        "scales": lambda: _scales(size, exchange, [value, weight]),
        "encode": lambda: piece.encode(flat),
        "reduce": lambda: [transport.start(0, words)() for words in lengths],
        "decode": lambda: piece.decode(flat),
    }
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(max(10, 20_000_000 // size)):
        for name, step in steps.items():
            exchange.barrier()
            start = time.perf_counter()
            step()
            if turn:  # the first warms up
                seconds[name].append(time.perf_counter() - start)
        floats.mul_(0.5)
    slowest = {name: [n / 1e9 for n in exchange.agree([int(s * 1e9) for s in own])] for name, own in seconds.items()}
    ratios = [exact / plain for exact, plain in zip(slowest["exact"], slowest["float32"], strict=True)]
    masked = [hidden / exact for hidden, exact in zip(slowest["masked"], slowest["exact"], strict=True)]
    return {
        "workload": "exchange",
        "numbers": size,
        "ranks": exchange.world_size,
        "seconds": {name: statistics.median(own) for name, own in slowest.items()},
        "time_ratio": statistics.median(ratios),
        "masked_ratio": statistics.median(masked),
        "bytes_ratio": 8 * (size + 1) / (4 * size),
    }


def line(row: dict[str, Any]) -> str:
    ms = {name: 1e3 * seconds for name, seconds in row["seconds"].items()}
    whole = sum(ms[name] for name in PARTS)
    parts = ", ".join(f"{name} {ms[name]:.2f} ({ms[name] / whole:.0%})" for name in PARTS)
    return (
        f"exchange {row['numbers']:>10,} numbers  {row['ranks']} ranks  float32 {ms['float32']:.2f} ms  "
        f"exact {ms['exact']:.2f} ms  time {row['time_ratio']:.2f}x  bytes {row['bytes_ratio']:.2f}x  "
        f"masked {ms['masked']:.2f} ms  {row['masked_ratio']:.2f}x exact  "
        f"one by one: {parts} ms"
    )


def _scales(size: int, exchange: Exchange, parts: list[torch.Tensor]) -> tuple[Reduction, list[int]]:
    reduction = Reduction(0, [Field("theta", "mean", (size,), "float32")])
    reduction.hold(parts)
    return reduction, exchange.agree(reduction.exponents())


def _exact(size: int, exchange: Exchange, parts: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    reduction, scales = _scales(size, exchange, parts)
    return reduction.total(exchange, scales, exchange.world_size, exchange.device)


def _masked(size: int, exchange: Exchange, parts: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    reduction, scales = _scales(size, exchange, parts)
    hide = unmasked if available() else Masks(meet(exchange, range(exchange.world_size))).hide
    return reduction.total(exchange, scales, exchange.world_size, exchange.device, hide)
