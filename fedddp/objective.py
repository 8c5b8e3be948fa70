"""What a model is asked to do: a loss per example, a prediction, and metrics that add up over chunks of data."""

import torch
import torch.nn.functional as F
from torch import Tensor

BINS = 15  # of the calibration error


class CrossEntropy:
    """Classification: outputs [B, classes] are logits, targets [B] are class numbers."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """[B]; a plain minus log likelihood."""
        return F.cross_entropy(outputs, targets, reduction="none")

    def probabilities(self, outputs: Tensor) -> Tensor:
        return outputs.double().softmax(-1)

    def tally(self, probabilities: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Sums over examples; `metrics` of the sums of two chunks are the metrics of both together."""
        confidence, choice = probabilities.max(-1)
        right = (choice == targets).double()
        likelihood = probabilities.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        brier = probabilities.square().sum(-1) - 2 * likelihood + 1
        bin_ = (confidence * BINS).ceil().long().clamp(1, BINS) - 1
        bins = torch.zeros(3, BINS, dtype=torch.float64, device=targets.device)
        for row, value in enumerate((torch.ones_like(right), confidence, right)):
            bins[row].index_add_(0, bin_, value)
        entropy = -torch.special.xlogy(probabilities, probabilities).sum(-1)
        nll = -likelihood.clamp_min(torch.finfo(torch.float64).tiny).log()
        sums = torch.stack([right.sum(), nll.sum(), brier.sum(), entropy.sum()])
        return {"sums": sums, "bins": bins}

    def metrics(self, tally: dict[str, Tensor]) -> dict[str, float]:
        count, confidence, right = tally["bins"]
        total = count.sum()
        accuracy, nll, brier, entropy = (tally["sums"] / total).tolist()
        ece = float((confidence - right).abs().sum() / total)
        return {"accuracy": accuracy, "nll": nll, "ece": ece, "brier": brier, "entropy": entropy}


class SquaredError:
    """Regression with unit noise: outputs [B, 1] or [B], the loss is ½ (output - target)²."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return 0.5 * (outputs.reshape(targets.shape) - targets).square()

    def probabilities(self, outputs: Tensor) -> Tensor:
        return outputs.double()

    def tally(self, predictions: Tensor, targets: Tensor) -> dict[str, Tensor]:
        error = (predictions.reshape(targets.shape) - targets).square()
        return {"sums": torch.stack([error.sum(), torch.ones_like(error).sum()])}

    def metrics(self, tally: dict[str, Tensor]) -> dict[str, float]:
        error, count = tally["sums"].tolist()
        return {"rmse": (error / count) ** 0.5, "loss": 0.5 * error / count}


Objective = CrossEntropy | SquaredError
OBJECTIVES: dict[str, type[Objective]] = {"cross_entropy": CrossEntropy, "squared_error": SquaredError}
