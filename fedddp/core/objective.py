"""What a model is asked to do: a loss per example, a prediction, and metrics that add up over chunks of data.

`loss` is a plain minus log likelihood of each example. `tally` gives sums over examples, so that the sums of two
chunks, or of two ranks, are those of both together; `metrics` reads them.
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
        flat = F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="none")
        return flat.view(targets.shape).sum(1) / (targets != IGNORED).sum(1).clamp_min(1)

    def probabilities(self, outputs: Tensor) -> Tensor:
        return outputs.softmax(-1)  # not in double precision: a vocabulary is large

    def tally(self, probabilities: Tensor, targets: Tensor) -> dict[str, Tensor]:
        real = targets != IGNORED
        return super().tally(probabilities[real].double(), targets[real])

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


def _minus_log(likelihood: Tensor) -> Tensor:
    return -likelihood.clamp_min(torch.finfo(torch.float64).tiny).log()


def _f1(labels: Tensor) -> Tensor:
    """2 hits / (predicted + true) from the rows (hits, predicted, true); 0 where there is nothing to find."""
    hit, predicted, true = labels
    return 2 * hit / (predicted + true).clamp_min(1)
