"""What a model is asked to do: a loss per example, a prediction, and metrics that add up over chunks of data.

`loss` is a plain minus log likelihood of each example. `tally` gives sums over examples, so that the sums of two
chunks, or of two ranks, are those of both together; `metrics` reads them. `tally_by` gives fewer sums, but for each of
many groups of examples at once: a row [n] per group, which `metrics_by` reads.
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedddp.core.data import IGNORED, Dataset

BINS = 15  # of the calibration error
TOP = 5  # labels that recall_at_5 looks at


class CrossEntropy:
    """Classification: outputs [B, classes] are logits, targets [B] are class numbers."""

    axes: ClassVar[int] = 1  # of the targets

    def outputs(self, data: Dataset) -> int:
        """How many numbers the model gives for each prediction."""
        return data.classes

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """[B]"""
        return F.cross_entropy(outputs, targets, reduction="none")

    def probabilities(self, outputs: Tensor) -> Tensor:
        return outputs.double().softmax(-1)

    def tally(self, probabilities: Tensor, targets: Tensor) -> dict[str, Tensor]:
        confidence, choice = probabilities.max(-1)
        right = (choice == targets).double()
        likelihood = probabilities.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        brier = probabilities.square().sum(-1) - 2 * likelihood + 1
        bin_ = (confidence * BINS).ceil().long().clamp(1, BINS) - 1
        bins = torch.zeros(3, BINS, dtype=torch.float64, device=targets.device)
        for row, value in enumerate((torch.ones_like(right), confidence, right)):
            bins[row].index_add_(0, bin_, value)
        entropy = -torch.special.xlogy(probabilities, probabilities).sum(-1)
        sums = torch.stack([right.sum(), _minus_log(likelihood).sum(), brier.sum(), entropy.sum()])
        classes = probabilities.shape[-1]
        labels = [torch.bincount(found, minlength=classes) for found in (targets[right > 0], choice, targets)]
        return {"sums": sums, "bins": bins, "labels": torch.stack(labels).double()}

    def metrics(self, tally: dict[str, Tensor]) -> dict[str, float]:
        count, confidence, right = tally["bins"]
        total = count.sum()
        accuracy, nll, brier, entropy = (tally["sums"] / total).tolist()
        ece = float((confidence - right).abs().sum() / total)
        present = tally["labels"][1:].sum(0) > 0
        return {
            "accuracy": accuracy,
            "nll": nll,
            "ece": ece,
            "brier": brier,
            "entropy": entropy,
            "macro_f1": float(_f1(tally["labels"][:, present]).mean()),
        }

    def tally_by(self, probabilities: Tensor, targets: Tensor, group: Tensor, groups: int) -> Tensor:
        """[groups, 3 + BINS] examples, right answers and nll; in each bin, confidence minus right answers."""
        confidence, choice = probabilities.max(-1)
        right = (choice == targets).double()
        likelihood = probabilities.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        bin_ = (confidence * BINS).ceil().long().clamp(1, BINS) - 1
        gaps = probabilities.new_zeros(groups * BINS, dtype=torch.float64)
        gaps.index_add_(0, group * BINS + bin_, confidence.double() - right)
        sums = _sums_by(torch.stack([torch.ones_like(right), right, _minus_log(likelihood).double()], 1), group, groups)
        return torch.cat([sums, gaps.view(groups, BINS)], 1)

    def metrics_by(self, tally: Tensor) -> dict[str, Tensor]:
        """[groups] each; NaN for a group without examples."""
        count, right, nll = tally[:, :3].unbind(1)
        return {"accuracy": right / count, "nll": nll / count, "ece": tally[:, 3:].abs().sum(1) / count}


class Binary(CrossEntropy):
    """Two classes and one output [B, 1]: the logit of class 1."""

    def outputs(self, data: Dataset) -> int:
        if data.classes != 2:
            raise ValueError(f"model.loss=binary: the data has {data.classes} classes; choose cross_entropy")
        return 1

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        logits = outputs.reshape(targets.shape)
        return F.binary_cross_entropy_with_logits(logits, targets.to(logits.dtype), reduction="none")

    def probabilities(self, outputs: Tensor) -> Tensor:
        logit = outputs.double()
        return torch.cat([-logit, logit], dim=-1).sigmoid()


class NextToken(CrossEntropy):
    """Language: outputs [B, T, vocabulary] against targets [B, T], each the token that follows.

    An example's loss is the mean over its real tokens; metrics are over all real tokens.
    """

    axes: ClassVar[int] = 2

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        targets = targets[:, : outputs.shape[1]]  # what was cut off is padding
        flat = F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="none")
        return flat.view(targets.shape).sum(1) / (targets != IGNORED).sum(1).clamp_min(1)

    def probabilities(self, outputs: Tensor) -> Tensor:
        return outputs.softmax(-1)  # not in double precision: a vocabulary is large

    def tally(self, probabilities: Tensor, targets: Tensor) -> dict[str, Tensor]:
        targets = targets[:, : probabilities.shape[1]]
        real = targets != IGNORED
        return super().tally(probabilities[real].double(), targets[real])

    def tally_by(self, probabilities: Tensor, targets: Tensor, group: Tensor, groups: int) -> Tensor:
        targets = targets[:, : probabilities.shape[1]]
        real = targets != IGNORED
        owner = group.unsqueeze(1).expand_as(targets)[real]
        return super().tally_by(probabilities[real].double(), targets[real], owner, groups)

    def metrics(self, tally: dict[str, Tensor]) -> dict[str, float]:
        metrics = super().metrics(tally)
        return metrics | {"perplexity": float(torch.tensor(metrics["nll"], dtype=torch.float64).exp())}


class MultiLabel:
    """Several labels for each example: outputs [B, labels] are logits, targets [B, labels] are 0 or 1.

    The loss is the sum over labels. A label is predicted where its probability is above ½; recall_at_5 asks how many
    of the true labels are among an example's five likeliest. macro_f1 counts a label nobody has or predicts as 0.
    """

    axes: ClassVar[int] = 2

    def outputs(self, data: Dataset) -> int:
        return data.classes

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(outputs, targets.to(outputs.dtype), reduction="none").sum(-1)

    def probabilities(self, outputs: Tensor) -> Tensor:
        return outputs.double().sigmoid()

    def tally(self, probabilities: Tensor, targets: Tensor) -> dict[str, Tensor]:
        true, chosen = targets > 0, probabilities > 0.5
        top = probabilities.topk(min(TOP, probabilities.shape[-1])).indices
        nll = _minus_log(torch.where(true, probabilities, 1 - probabilities)).sum()
        found = true.gather(-1, top).sum()
        sums = torch.stack([nll, found.double(), nll.new_tensor(len(targets))])
        return {"sums": sums, "labels": torch.stack([(true & chosen).sum(0), chosen.sum(0), true.sum(0)]).double()}

    def metrics(self, tally: dict[str, Tensor]) -> dict[str, float]:
        nll, found, count = tally["sums"].tolist()
        hit, chosen, true = tally["labels"].sum(1).tolist()
        return {
            "nll": nll / count,
            "precision": hit / max(chosen, 1.0),
            "recall_at_5": found / max(true, 1.0),
            "micro_f1": float(_f1(tally["labels"].sum(1))),
            "macro_f1": float(_f1(tally["labels"]).mean()),
        }

    def tally_by(self, probabilities: Tensor, targets: Tensor, group: Tensor, groups: int) -> Tensor:
        """[groups, 6] examples, nll, true labels among the likeliest; hits, predicted and true labels."""
        true, chosen = targets > 0, probabilities > 0.5
        top = probabilities.topk(min(TOP, probabilities.shape[-1])).indices
        nll = _minus_log(torch.where(true, probabilities, 1 - probabilities))
        each = [torch.ones_like(nll[:, :1]), nll, true.gather(-1, top), true & chosen, chosen, true]
        return _sums_by(torch.stack([part.double().sum(-1) for part in each], 1), group, groups)

    def metrics_by(self, tally: Tensor) -> dict[str, Tensor]:
        count, nll, found, hit, chosen, true = tally.unbind(1)
        seen = torch.where(count > 0, 1.0, torch.nan)
        f1 = _f1(torch.stack([hit, chosen, true])) * seen
        return {"nll": nll / count, "recall_at_5": found / true.clamp_min(1) * seen, "micro_f1": f1}


class SquaredError:
    """Regression with unit noise: outputs shaped like the targets [B] or [B, D], the loss is ½ |output - target|²."""

    axes: ClassVar[int] = 0  # any

    def outputs(self, data: Dataset) -> int:
        targets = data.train.targets
        return targets.shape[1] if targets.dim() > 1 else 1

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        error = 0.5 * (outputs.reshape(targets.shape) - targets).square()
        return error if error.dim() == 1 else error.flatten(1).sum(1)

    def probabilities(self, outputs: Tensor) -> Tensor:
        return outputs.double()

    def tally(self, predictions: Tensor, targets: Tensor) -> dict[str, Tensor]:
        error = (predictions.reshape(targets.shape) - targets).square()
        return {"sums": torch.stack([error.sum(), torch.ones_like(error).sum()])}

    def metrics(self, tally: dict[str, Tensor]) -> dict[str, float]:
        error, count = tally["sums"].tolist()
        return {"rmse": (error / count) ** 0.5, "loss": 0.5 * error / count}

    def tally_by(self, predictions: Tensor, targets: Tensor, group: Tensor, groups: int) -> Tensor:
        """[groups, 2] numbers that were predicted, and their squared errors."""
        error = (predictions.reshape(targets.shape) - targets).square().reshape(len(targets), -1)
        each = torch.stack([torch.ones_like(error).sum(1), error.sum(1)], 1).double()
        return _sums_by(each, group, groups)

    def metrics_by(self, tally: Tensor) -> dict[str, Tensor]:
        count, error = tally.unbind(1)
        return {"rmse": (error / count).sqrt(), "loss": 0.5 * error / count}


Objective = CrossEntropy | MultiLabel | SquaredError
OBJECTIVES: dict[str, type[Objective]] = {
    "cross_entropy": CrossEntropy,
    "binary": Binary,
    "multi_label": MultiLabel,
    "next_token": NextToken,
    "squared_error": SquaredError,
}


def choose(kind: str, data: Dataset) -> Objective:
    """The objective that `model.loss=kind` stands for; auto: what the data's targets ask for."""
    if kind == "auto":
        several = "next_token" if data.tokens else "multi_label"
        kind = "squared_error" if not data.classes else several if data.train.targets.dim() == 2 else "cross_entropy"
    if kind not in OBJECTIVES:
        raise ValueError(f"model.loss={kind}: unknown; choose one of auto, {', '.join(OBJECTIVES)}")
    objective, axes = OBJECTIVES[kind](), data.train.targets.dim()
    if objective.axes not in (0, axes):
        raise ValueError(f"model.loss={kind}: needs targets with {objective.axes} axes, the data's have {axes}")
    return objective


def _sums_by(values: Tensor, group: Tensor, groups: int) -> Tensor:
    """[groups, n] of rows [B, n], added in their order."""
    return values.new_zeros(groups, values.shape[1]).index_add_(0, group, values)


def _minus_log(likelihood: Tensor) -> Tensor:
    return -likelihood.clamp_min(torch.finfo(torch.float64).tiny).log()


def _f1(labels: Tensor) -> Tensor:
    """2 hits / (predicted + true) from the rows (hits, predicted, true); 0 where there is nothing to find."""
    hit, predicted, true = labels
    return 2 * hit / (predicted + true).clamp_min(1)
