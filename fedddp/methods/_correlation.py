"""Clients whose data depend on each other ("FedBEns", Eq. 14), when each has one Gaussian of diagonal curvature.

    log p(D_1 .. D_K | w) = Σ_k log p(D_k | w) + ρ Σ_{k<l} g(D_k, D_l, w)

The paper leaves g open. Here it is what two Gaussians of correlation ρ have in their joint log density to first order
in ρ: with r_k = (H_k/T)^½ (w - w_k), g = r_k · r_l. Of all pairs that is ½ (|Σ_k r_k|² - Σ_k |r_k|²), so sums over
clients tell it. It keeps a mode as long as ρ <= 1/(K - 1), where K Gaussians may not be more alike.
"""

import torch
from torch import Tensor

from fedddp.exchange.messages import Sum, Totals
from fedddp.methods._mixture import Mixture, known


def sums(mixture: Mixture, theta: Tensor, temperature: float) -> dict[str, Sum]:
    """What each client adds, at theta [M, P]."""
    curvature = (mixture.curvature[:, 0] * known(mixture).unsqueeze(1) / temperature).clamp_min(0).unsqueeze(1)
    away, root = theta - mixture.modes[:, :1], curvature.sqrt()  # [C, M, P] and [C, 1, P]
    pull = curvature * away
    return {
        "root": Sum(root[:, 0]),
        "moved": Sum(root * away),
        "own": Sum(pull),
        "apart": Sum((pull * away).sum(2, dtype=torch.float64)),
    }


def value(total: Totals, correlation: float) -> Tensor:
    """-ρ Σ_{k<l} r_k · r_l at each theta, [M]."""
    return (total["moved"].square().sum(1, dtype=torch.float64) - total["apart"]) * (-0.5 * correlation)


def slope(total: Totals, correlation: float) -> Tensor:
    """Gradient [M, P] of -ρ Σ_{k<l} r_k · r_l."""
    return torch.addcmul(-total["own"], total["root"], total["moved"]).mul_(-correlation)
