"""What is spread over clients or parameters: histograms for TensorBoard."""

from torch import Tensor

from fedddp.core.device import to_host
from fedddp.core.gaussian import Family, family_of
from fedddp.rounds.report import Report

MOST = 1_000_000  # numbers in a histogram; of more, every n-th client's, then every n-th


def histograms(report: Report, lam: Tensor | None, duals: Tensor | None) -> dict[str, Tensor]:
    """Losses and message norms of active clients, the posterior's precision, the duals of the clients at home here."""
    spread = {"clients/train_loss": report.losses, "clients/message_norm": report.norms}
    family = None if lam is None else family_of(lam)
    if lam is not None and family is not None:
        spread["server/precision"] = _precision(family, lam)
    if duals is not None:
        spread |= _duals(family, _rows(duals))
    return to_host({name: _thinned(values) for name, values in spread.items() if values is not None})


def _rows(values: Tensor) -> Tensor:
    """Of many clients every n-th: the others' rows need not even be read."""
    return values[:: max(1, values.numel() // MOST)]


def _duals(family: Family | None, dual: Tensor) -> dict[str, Tensor]:
    """[H, P] of a point method; of a posterior, the two parts of natural parameters [H, ...]."""
    if family is None:
        return {"clients/dual": dual}
    return {"clients/dual": family.shift(dual), "clients/dual_precision": _precision(family, dual)}


def _precision(family: Family, lam: Tensor) -> Tensor:
    precision = family.precision(lam)
    return precision.diagonal(dim1=-2, dim2=-1) if family.name == "full" else precision


def _thinned(values: Tensor) -> Tensor:
    flat = values.flatten()
    return flat[:: max(1, len(flat) // MOST)]
