"""Checks of a method with a solver: the promises that fedddp holds its own methods to."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from fedddp.checks import launches, pretend, purity, small
from fedddp.checks.ranks import apart, train, warm
from fedddp.checks.rows import Broken, Sheet, Skipped
from fedddp.config.loading import Config
from fedddp.exchange.group import Exchange
from fedddp.reports.table import size

MLP = small.MODELS["mlp"]
CONV = ["data.test_fraction=0.92", "model.name=cnn", "model.channels=[4]", "model.groups=2"]
SOME = "federation.participation=0.7"  # five of seven, in two cohorts
FEW = [*CONV, "split.clients=2", "federation.cohort_width=1"]
STOPS = [*CONV, SOME, "checkpoint.every=1", "local.keep=true"]
SHOWN = 3  # complaints
CLOSE = 1e-3  # of a server's largest entry: how far convolutions on another layout may take a round
TINY = 1e-12


@dataclass
class Checks:
    """What is checked, `words`, on up to `ranks` ranks."""

    words: Sequence[str]
    ranks: int

    def runs(self) -> str:
        """A run of its own on one rank: the engine refuses a message or a server that is not finite."""
        with _folder() as folder:
            summary = train(small.load(self.words, *MLP), folder, 1)
        metrics = [f"{name} {summary[name]:.3f}" for name in ("accuracy", "rmse", "nll") if name in summary]
        return f"{summary['rounds']} rounds, {metrics[0] if metrics else 'not evaluated'}"

    def all_clients(self) -> str:
        warm()
        return _same(small.load(self.words, *CONV), range(1, self.ranks + 1))

    def some_clients(self) -> str:
        return _same(small.load(self.words, *CONV, SOME), (1, self.ranks))

    def few_clients(self) -> str:
        return _same(small.load(self.words, *FEW), (1, self.ranks))

    def stops(self) -> str:
        """Killed in the second and in the third round, each time to go on with other ranks."""
        config, worlds = small.load(self.words, *STOPS), (self.ranks - 1, max(self.ranks - 2, 1), self.ranks)
        if config.federation.rounds < len(worlds):
            raise Skipped(f"needs federation.rounds={len(worlds)} or more")
        with _folder() as folder:
            whole = train(config, folder / "whole", 1)["checksum"]
            for done, ranks in enumerate(worlds):
                parts = train(config, folder / "parts", ranks, done > 0, done + 2 if ranks != self.ranks else 0)
        if parts["checksum"] != whole:
            raise Broken(
                f"{whole} without a stop, {parts['checksum']} after stops; is all of its state in its memories?"
            )
        return f"{whole}: killed in rounds 2 and 3, on {', '.join(map(str, worlds))} ranks"

    def device(self) -> str:
        if not pretend.possible():
            raise Skipped("needs a newer torch")
        config = small.load(self.words, *MLP, "federation.rounds=1", "federation.participation=0.6")
        with _folder() as folder:
            on_cpu = train(config, folder / "cpu", 1)["checksum"]
            on_device = apart(partial(_on_device, config, folder / "device"))[0]
            if on_cpu == on_device:
                return f"{on_cpu} on the CPU and on a pretended device"
            name, gap = _gap(*(load_file(folder / where / "server.safetensors") for where in ("cpu", "device")))
        if gap > CLOSE:
            raise Broken(f"server.{name} on the CPU and on a device that is only pretended differ by {gap:.1g}")
        return (
            f"on a pretended device as on the CPU, to within {gap:.1g} of server.{name}: other layouts, other roundings"
        )

    def steps(self) -> str:
        """What a local step asks of a device; the host may neither send to it nor wait for it."""
        if not pretend.possible():
            raise Skipped("needs a newer torch")
        (row,) = launches.count([self.words])
        if row.copies or (row.reads and not small.load(self.words).local.waits):
            asked = f"{row.copies:.1f} copies to the device and {row.reads:.1f} numbers read back in each local step"
            lines = [f"{value:.1f} a step: {line}" for line, value in list(row.lines.items())[:SHOWN]]
            raise Broken("\n".join([asked, *lines]))
        waits = f"waits for {row.reads:.1f} numbers, as the solver says" if row.reads else "no number read back"
        return f"{row.kernels:.1f} kernels in a step of an MLP, nothing copied to the device, {waits}"

    @cached_property
    def _seen(self) -> purity.Seen:
        found: purity.Seen = apart(partial(purity.watch, small.load(self.words, *MLP)))[0]
        return found

    def pure(self) -> str:
        complaints = self._seen.complaints
        if complaints:
            more = [f"and {len(complaints) - SHOWN} more"] if len(complaints) > SHOWN else []
            raise Broken("\n".join([*complaints[:SHOWN], *more]))
        said = f"in {purity.ROUNDS} rounds: same bits when called again, and nothing else is changed"
        changed = ", ".join(self._seen.changed)
        return f"{said} ({changed} in place: allowed, clients are given copies)" if changed else said

    def sends(self) -> str:
        seen = self._seen
        amounts = f"{size(seen.bytes_up)} up, {size(seen.bytes_down)} down per client and round"
        return "\n".join([f"{amounts}; a client keeps {size(seen.bytes_kept)}", *seen.fields])


def check(sheet: Sheet, words: Sequence[str], ranks: int) -> None:
    """Fill the sheet; a method that does not run at all has no further checks."""
    checks = Checks(words, ranks)
    small.load(words)  # a mistake in the words ends here
    rows = {
        "device": checks.device,  # before the rest, see ranks.warm
        "local steps": checks.steps,
        "pure steps": checks.pure,
        "same bits": checks.all_clients,
        "same bits (some clients)": checks.some_clients,
        "same bits (few clients)": checks.few_clients,
        "same bits (after stops)": checks.stops,
    }
    if not sheet.hold("runs and stays finite", checks.runs):
        sheet.skip([*rows], "it does not run")
        return
    for name, row in rows.items():
        sheet.hold(name, row)
    sheet.hold("sends", checks.sends, outcome="info")


def _same(config: Config, worlds: Sequence[int]) -> str:
    """The checksum of the run on any of these numbers of ranks."""
    found: dict[str, list[int]] = {}
    for ranks in worlds:
        with _folder() as folder:
            found.setdefault(train(config, folder, ranks)["checksum"], []).append(ranks)
    said = "; ".join(f"{checksum} on {_ranks(worlds)}" for checksum, worlds in found.items())
    if len(found) > 1:
        raise Broken(said)
    return said


def _ranks(worlds: Sequence[int]) -> str:
    return f"{', '.join(map(str, worlds))} rank{'' if worlds == [1] else 's'}"


def _on_device(config: Config, folder: Path) -> str:
    device, exchange = pretend.install(), Exchange.connect(torch.device("cpu"))
    return pretend.run(config, folder, exchange, device)


def _gap(a: dict[str, Tensor], b: dict[str, Tensor]) -> tuple[str, float]:
    """The field that differs most, and by which part of its largest entry."""
    pairs = {name: (a[name].double(), b[name].double()) for name in a if a[name].numel()}
    gaps = {name: float((x - y).abs().max() / x.abs().max().clamp_min(TINY)) for name, (x, y) in pairs.items()}
    name = max(gaps, key=lambda name: gaps[name])
    return name, gaps[name]


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name) / "run"
