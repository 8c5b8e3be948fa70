"""Arrays by name as a Dataset: what the element types say about inputs and targets."""

from collections.abc import Mapping

import torch
from torch import Tensor

from fedddp.core.check import shown
from fedddp.core.data import Dataset, Examples
from fedddp.core.sound import refuse_unfit
from fedddp.data._settings import Images, Subset, centred, column_moments

NAMES = {  # ours, and the usual short ones
    "train_inputs": "x_train",
    "train_targets": "y_train",
    "test_inputs": "x_test",
    "test_targets": "y_test",
}
MANY, SHARE = 50, 0.05  # different targets, and their share of the examples, above which they may be no classes
LABELS = (torch.uint8, torch.bool)  # a 0 or 1 for each of several


class Arrays(Images, extends=True):
    """Inputs: uint8 are pixels (data.pixels), other integers tokens, floats stay (or are standardised by column).

    Targets: integers [N] are classes, floats [N] numbers, integers [N, T] next tokens (-100: none), uint8, bool or
    floats [N, L] a 0 or 1 for each of L labels.
    """

    def from_arrays(
        self,
        arrays: Mapping[str, Tensor],
        where: str,
        label_names: tuple[str, ...] = (),
        client_names: tuple[str, ...] = (),
    ) -> Dataset:
        absent = [name for name, short in NAMES.items() if name not in arrays and short not in arrays]
        if absent:
            has = shown(", ".join(arrays))
            raise ValueError(f"{where}: lacks {', '.join(absent)} (or {', '.join(NAMES.values())}); has {has}")
        train, test = (_examples(arrays, part, where) for part in ("train", "test"))
        _refuse_differing(train, test, where)
        classes = _classes(train.targets, test.targets)
        _refuse_quantity(train.targets, classes, where)
        names = {"label_names": label_names, "client_names": client_names}
        if train.inputs.dtype == torch.uint8:
            return self._fit(self.dataset(train, test, classes, **names), where)
        tokens = not train.inputs.is_floating_point()
        data = Subset.dataset(self, train, test, classes, tokens=tokens, **names)
        self._fit(data, where)
        if tokens or self.pixels != "standardised":
            return data
        return centred(data, *column_moments(data.train.inputs))

    def _fit(self, data: Dataset, where: str) -> Dataset:
        targets = data.train.targets
        if targets.dim() == 2 and not data.tokens and targets.dtype not in LABELS and not targets.is_floating_point():
            raise ValueError(
                f"{where}: targets [N, L] of type {targets.dtype} are next tokens, but its inputs are no tokens; "
                "store a 0 or 1 for each of several labels as uint8"
            )
        refuse_unfit(data, where)
        return data


def _examples(arrays: Mapping[str, Tensor], part: str, where: str) -> Examples:
    inputs, targets = (arrays.get(name, arrays.get(NAMES[name])) for name in (f"{part}_inputs", f"{part}_targets"))
    clients = arrays.get(f"{part}_clients")
    assert inputs is not None
    assert targets is not None
    if inputs.dim() == 0 or targets.dim() not in (1, 2) or len(inputs) != len(targets) or len(inputs) == 0:
        raise ValueError(f"{where}: {part} inputs are {list(inputs.shape)}, targets {list(targets.shape)}")
    if inputs.numel() == 0 or targets.numel() == 0:
        raise ValueError(
            f"{where}: {part} inputs {list(inputs.shape)} or targets {list(targets.shape)} hold no numbers"
        )
    if targets.dim() == 2 and targets.shape[1] == 1:  # a column of targets
        targets = targets[:, 0]
    if inputs.dim() == 1:  # one number each
        inputs = inputs.unsqueeze(1)
    if clients is not None and clients.shape != targets.shape[:1]:
        raise ValueError(f"{where}: {part}_clients are {list(clients.shape)} for {len(targets)} examples")
    if clients is not None and (clients.is_floating_point() or clients.is_complex()):
        raise ValueError(f"{where}: {part}_clients are of type {clients.dtype}; number the clients by integers")
    if targets.dim() == 1 and not targets.is_floating_point() and not targets.is_complex():
        targets = targets.long()
    return Examples(inputs, targets, None if clients is None else clients.long())


def _refuse_differing(train: Examples, test: Examples, where: str) -> None:
    """What is learnt on the one must mean the same on the other."""
    if train.inputs.shape[1:] != test.inputs.shape[1:]:
        raise ValueError(f"{where}: an input is {list(train.inputs.shape[1:])}, to test {list(test.inputs.shape[1:])}")
    if train.targets.shape[1:] != test.targets.shape[1:]:
        raise ValueError(
            f"{where}: a target is {list(train.targets.shape[1:])}, to test {list(test.targets.shape[1:])}"
        )
    for what, one, other in (("inputs", train.inputs, test.inputs), ("targets", train.targets, test.targets)):
        if one.is_complex() or (one.dtype == torch.bool and what == "inputs"):
            raise ValueError(
                f"{where}: {what} are of type {one.dtype}; store uint8 (pixels), integers (tokens) or floats"
            )
        kinds = [(t.dtype == torch.uint8, t.is_floating_point(), t.is_complex()) for t in (one, other)]
        if kinds[0] != kinds[1]:
            raise ValueError(f"{where}: {what} are of type {one.dtype}, to test {other.dtype}; store both alike")


def _classes(train: Tensor, test: Tensor) -> int:
    if train.dim() == 2 and (train.is_floating_point() or train.dtype in LABELS):
        return train.shape[1]
    if train.is_floating_point():
        return 0
    return int(max(train.max(), test.max())) + 1


def _refuse_quantity(targets: Tensor, classes: int, where: str) -> None:
    """Many integers with gaps between them are hardly the numbers of classes: a price, a year, an identifier."""
    if targets.dim() != 1 or not classes:
        return
    different = len(targets.unique())
    if different > MANY and different > SHARE * len(targets) and different < classes / 2:
        raise ValueError(
            f"{where}: targets hold {different} different integers up to {classes - 1}; store them as floats to "
            "predict a number, or, if they are classes, number these from 0 without gaps"
        )
