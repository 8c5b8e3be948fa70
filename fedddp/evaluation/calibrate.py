"""calibration.json: how far the final model's answers can be trusted, learned and judged on held-out parts of clients.

`evaluation.calibration` is the share of each training client's part of the test set that calibrates; the rest, and the
parts of clients that never train, judge. From the calibrating examples come, by sums over clients alone,

    a histogram of conformal scores    from which `fedddp predict --coverage` makes sets (see conformal.py)
    a temperature T                    that minimises Σ nll of p^(1/T), by STAGES grids, each within the last one's best

and from the judging ones what coverage, sizes of sets, nll and ece then are, on average and for each client; accuracy
of the surest answers (selective prediction); aleatoric and epistemic parts of the entropy; and how well the entropy and
its epistemic part tell `evaluation.ood` from the test set. docs/clients.md has the fields.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import exp, log
from typing import Any

import torch
from torch import Tensor

from fedddp.core.data import Examples
from fedddp.core.rng import stream
from fedddp.evaluation.conformal import BINS, histogram, scores, sets, temper, threshold
from fedddp.evaluation.evaluate import Evaluator, add_up
from fedddp.evaluation.parts import Parts
from fedddp.evaluation.posterior import entropy
from fedddp.evaluation.predictions import Models, in_chunks
from fedddp.exchange.messages import Message, Sum

FILE = "calibration.json"
COVERAGES = (0.8, 0.9, 0.95)
STAGES, GRID, WIDEST = 4, 33, 20.0  # temperatures from 1/20 to 20
MOST = 1 << 20  # chunks that are added up, at most
UNCERTAIN = {"entropy": 0, "epistemic": 2}  # columns of what may tell strange inputs
CURVE = 100  # bins of confidence for selective prediction
Sums = dict[str, Tensor]


@dataclass(frozen=True)
class Answers:
    """Predictions for the examples of a chunk, on the rank that made them."""

    rows: Tensor  # [B] which examples these are
    probabilities: Tensor  # [B, classes] of the averaged prediction
    aleatoric: Tensor  # [B] mean entropy of the single predictions
    targets: Tensor  # [B]

    def take(self, some: Tensor) -> "Answers":
        return Answers(self.rows[some], self.probabilities[some], self.aleatoric[some], self.targets[some])

    @property
    def uncertainty(self) -> Tensor:
        """[B, 3] entropy, its aleatoric part (of single predictions) and its epistemic part (their disagreement)."""
        total = entropy(self.probabilities)
        return torch.stack([total, self.aleatoric, (total - self.aleatoric).clamp_min(0)], 1).double()


@dataclass(frozen=True)
class Calibration:
    evaluator: Evaluator
    parts: Parts
    share: float
    seed: int

    def __call__(self, server: Any, finished: int) -> dict[str, Any]:
        """What calibration.json holds, on every rank."""
        chosen = calibrating(self.parts, self.share, self.seed)
        kinds = self.evaluator.kinds(server, finished)
        found = {prefix.removesuffix("_") or "point": self._kind(models, chosen) for prefix, models in kinds.items()}
        return {"share": self.share, "samples": self.evaluator.samples, "unseen": self.parts.unseen, "kinds": found}

    def _kind(self, models: Models, chosen: Tensor) -> dict[str, Any]:
        owner = self.parts.owner
        answers = list(self._answers(models, self.evaluator.federation.task.data.test))
        teach = [chunk.take(chosen[chunk.rows]) for chunk in answers]
        test = [chunk.take(~chosen[chunk.rows] & (owner[chunk.rows] >= 0)) for chunk in answers]
        clients = len(owner[chosen].unique())
        counts = self._sum(teach, lambda a: {"counts": histogram(scores(a.probabilities, a.targets)).double()})
        held, temperature = counts["counts"].long(), self._temperature(teach)
        learned = {"temperature": temperature, "clients": clients, "bins": BINS, "scores": _sparse(held)}
        thresholds = {coverage: threshold(held, clients, coverage) for coverage in COVERAGES}
        return learned | self._judge(test, thresholds, temperature) | self._strange(test, models)

    def _answers(self, models: Models, examples: Examples) -> Iterator[Answers]:
        """This rank's chunks, and before them an answer cut to none, which tells their shapes to a rank without any."""
        task, exchange = self.evaluator.federation.task, self.evaluator.federation.exchange
        for number, chunk in enumerate([slice(0, 1), *in_chunks(task, examples)[exchange.rank :: exchange.world_size]]):
            with torch.no_grad():
                each = [task.objective.probabilities(task.outputs(theta, examples.inputs[chunk])) for theta in models]
            mean, aleatoric = torch.stack(each).mean(0), torch.stack([entropy(one) for one in each]).mean(0)
            rows = torch.arange(len(examples))[chunk]
            found = Answers(rows, mean.cpu(), aleatoric.cpu(), examples.targets[chunk].cpu())
            yield found if number else found.take(torch.zeros(len(rows), dtype=torch.bool))

    def _sum(self, chunks: list[Answers], tell: Callable[[Answers], Sums]) -> Sums:
        """Over all chunks of all ranks, exactly; what a chunk tells depends on no rank."""
        federation = self.evaluator.federation
        parts: list[Message] = [{n: Sum(v.unsqueeze(0)) for n, v in tell(chunk).items()} for chunk in chunks]
        return add_up(federation.exchange, parts, MOST, torch.device("cpu"))

    def _temperature(self, teach: list[Answers]) -> float:
        """By sums of nll at a grid of temperatures; nll is convex in 1/T, so the best lies beside the grid's best."""
        low, high = -log(WIDEST), log(WIDEST)
        for _ in range(STAGES):
            grid = torch.linspace(low, high, GRID, dtype=torch.float64)
            found = self._sum(teach, lambda a, grid=grid: {"nll": _nll(a, grid)})  # type: ignore[misc]
            best = int(found["nll"].argmin())
            low, high = float(grid[max(best - 1, 0)]), float(grid[min(best + 1, GRID - 1)])
        return exp((low + high) / 2)

    def _judge(self, test: list[Answers], thresholds: dict[float, float], temperature: float) -> dict[str, Any]:
        objective = self.evaluator.federation.task.objective

        def tell(a: Answers) -> Sums:
            plain = objective.tally(a.probabilities, a.targets)
            tempered = objective.tally(temper(a.probabilities, temperature), a.targets)
            table = _by_client(a, self.parts, list(thresholds.values()))
            named = {f"plain {n}": v for n, v in plain.items()} | {f"tempered {n}": v for n, v in tempered.items()}
            return {"table": table, "curve": _by_confidence(a), **named}

        sums = self._sum(test, tell)
        found: dict[str, Any] = {"selective": _selective(sums["curve"])}
        for kind in ("plain", "tempered"):
            own = {n.removeprefix(f"{kind} "): v for n, v in sums.items() if n.startswith(f"{kind} ")}
            metrics = objective.metrics(own)
            found[kind] = {name: metrics[name] for name in ("accuracy", "nll", "ece")}
        table = torch.cat([sums["table"], sums["table"].sum(0, keepdim=True)])
        shares = table[:, 1:] / table[:, :1]  # a row for each client, and one for all
        found["coverage"] = {
            str(coverage): {
                "threshold": q,
                "reached": float(shares[-1, 2 * i]),
                "size": float(shares[-1, 2 * i + 1]),
                "clients": _listed(shares[:-1, 2 * i]),
                "sizes": _listed(shares[:-1, 2 * i + 1]),
            }
            for i, (coverage, q) in enumerate(thresholds.items())
        }
        return found | dict(zip(("entropy", "aleatoric", "epistemic"), shares[-1, -3:].tolist(), strict=True))

    def _strange(self, test: list[Answers], models: Models) -> dict[str, Any]:
        """How often a strange input's entropy, or its epistemic part, is above that of one from the test set."""
        if self.evaluator.ood is None:
            return {}
        most = log(test[0].probabilities.shape[1])

        def tell(a: Answers) -> Sums:
            return {name: histogram(a.uncertainty[:, column] / most).double() for name, column in UNCERTAIN.items()}

        inside, outside = self._sum(test, tell), self._sum(list(self._answers(models, self.evaluator.ood)), tell)
        return {"ood_auroc": {name: auroc(inside[name], outside[name]) for name in UNCERTAIN}}


def calibrating(parts: Parts, share: float, seed: int) -> Tensor:
    """[N] which test examples calibrate: a random share of each training client's part."""
    order = torch.randperm(len(parts.owner), generator=stream(seed, "calibration"))
    order = order[parts.owner[order].argsort(stable=True)]
    owner = parts.owner[order].contiguous()
    place = torch.arange(len(order)) - torch.searchsorted(owner, owner)  # within its client's part
    wanted = (share * parts.sizes).round()[owner]
    chosen = torch.zeros(len(order), dtype=torch.bool)
    chosen[order] = (place < wanted) & (owner >= 0) & (owner < parts.count - parts.unseen)
    return chosen


def _by_client(a: Answers, parts: Parts, thresholds: list[float]) -> Tensor:
    """[K, n] sums: examples, for each threshold how often the set holds the class and its size, and uncertainties."""
    columns = [torch.ones(len(a.rows), dtype=torch.float64)]
    for q in thresholds:
        inside = sets(a.probabilities, q)
        columns += [inside.gather(1, a.targets.unsqueeze(1)).squeeze(1).double(), inside.sum(1).double()]
    values = torch.cat([torch.stack(columns, 1), a.uncertainty], 1)
    return values.new_zeros(parts.count, values.shape[1]).index_add_(0, parts.owner[a.rows], values)


def _by_confidence(a: Answers) -> Tensor:
    """[CURVE, 2] in each bin of confidence: answers, and right ones."""
    confidence, choice = a.probabilities.max(1)
    right = (choice == a.targets).double()
    bin_ = (confidence * CURVE).floor().long().clamp(0, CURVE - 1)
    return right.new_zeros(CURVE, 2).index_add_(0, bin_, torch.stack([torch.ones_like(right), right], 1))


def auroc(inside: Tensor, outside: Tensor) -> float:
    """From histograms [BINS]; two in one bin count as equal."""
    below = inside.cumsum(0) - inside / 2
    return float((below * outside).sum() / (inside.sum() * outside.sum()))


def _selective(curve: Tensor) -> dict[str, list[float]]:
    """Answering only where confidence is at least so high: what share is answered, and how often that is right."""
    answered, right = curve.flip(0).cumsum(0).flip(0).unbind(1)
    kept = (answered > 0).nonzero().flatten()
    return {
        "confidence": (kept.double() / CURVE).tolist(),
        "answered": (answered[kept] / answered[0]).tolist(),
        "accuracy": (right[kept] / answered[kept]).tolist(),
    }


def _nll(a: Answers, grid: Tensor) -> Tensor:
    """[G] sums over the examples, at logarithms of temperatures."""
    found = []
    for t in grid.tolist():
        likelihood = temper(a.probabilities, exp(t)).gather(1, a.targets.unsqueeze(1))
        found.append(-likelihood.clamp_min(torch.finfo(torch.float64).tiny).log().sum())
    return torch.stack(found)


def _sparse(counts: Tensor) -> list[list[int]]:
    """[bin, count] of the bins that are not empty."""
    there = counts.nonzero().flatten()
    return torch.stack([there, counts[there]], 1).tolist()


def _listed(values: Tensor) -> list[float | None]:
    return [None if x != x else x for x in values.tolist()]
