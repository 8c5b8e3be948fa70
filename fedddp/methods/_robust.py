"""Losses that outliers hurt less, of the probability p_y that a model gives to an example's label.

    generalised_cross_entropy   (1 - p_y^q)/q                                   (Zhang & Sabuncu 2018)
    density_power               (1 + β)/β (1 - p_y^β) + Σ_c p_c^(1+β) - 1        (Basu et al. 1998)

Both go to -log p_y as the strength, q or β, goes to 0; an example's gradient has the factor p_y to that power, so what
the model holds for impossible does not move it.
"""

from torch import Tensor

from fedddp.core.objective import CrossEntropy, NextToken, Objective

LOSSES = ("log", "generalised_cross_entropy", "density_power")


class Robust(CrossEntropy):
    """A robust loss in place of a classifier's log loss; everything else is the classifier's."""

    def __init__(self, plain: CrossEntropy, kind: str, strength: float) -> None:
        self.plain, self.kind, self.strength = plain, kind, strength

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        minus_log, s = self.plain.loss(outputs, targets), self.strength
        rest = -(-s * minus_log).expm1() / s
        if self.kind == "generalised_cross_entropy":
            return rest
        chances = self.plain.probabilities(outputs).to(outputs.dtype)
        return (1 + s) * rest + chances.pow(1 + s).sum(-1) - 1

    def probabilities(self, outputs: Tensor) -> Tensor:
        return self.plain.probabilities(outputs)


def robust(plain: Objective, kind: str, strength: float) -> Objective:
    if kind == "log":
        return plain
    if not isinstance(plain, CrossEntropy) or isinstance(plain, NextToken):
        raise ValueError(f"method.loss={kind}: needs a classification with one label for each example; choose log")
    return Robust(plain, kind, strength)
