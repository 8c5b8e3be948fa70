"""Arrays by name as a Dataset: what the element types say about inputs and targets."""

from collections.abc import Mapping

import torch
from torch import Tensor

from fedddp.core.data import Dataset, Examples
from fedddp.data._settings import Images, Subset, centred, column_moments

NAMES = {  # ours, and the usual short ones
    "train_inputs": "x_train",
    "train_targets": "y_train",
    "test_inputs": "x_test",
    "test_targets": "y_test",
}


class Arrays(Images, extends=True):
    """Inputs: uint8 are pixels (data.pixels), other integers tokens, floats stay (or are standardised by column).

    Targets: integers [N] are classes, floats [N] numbers, integers [N, T] next tokens (-100: none), uint8, bool or
    floats [N, L] a 0 or 1 for each of L labels.
    """

    def from_arrays(self, arrays: Mapping[str, Tensor], where: str, label_names: tuple[str, ...] = ()) -> Dataset:
        absent = [name for name, short in NAMES.items() if name not in arrays and short not in arrays]
        if absent:
            raise ValueError(f"{where}: lacks {', '.join(absent)} (or {', '.join(NAMES.values())}); has {list(arrays)}")
        train, test = (_examples(arrays, part, where) for part in ("train", "test"))
        if train.inputs.shape[1:] != test.inputs.shape[1:]:
            raise ValueError(
                f"{where}: an input is {list(train.inputs.shape[1:])}, to test {list(test.inputs.shape[1:])}"
            )
        classes = _classes(train.targets, test.targets)
        if train.inputs.dtype == torch.uint8:
            return self.dataset(train, test, classes, label_names=label_names)
        tokens = not train.inputs.is_floating_point()
        data = Subset.dataset(self, train, test, classes, tokens=tokens, label_names=label_names)
        if tokens or self.pixels != "standardised":
            return data
        return centred(data, *column_moments(data.train.inputs))


def _examples(arrays: Mapping[str, Tensor], part: str, where: str) -> Examples:
    inputs, targets = (arrays.get(name, arrays.get(NAMES[name])) for name in (f"{part}_inputs", f"{part}_targets"))
    clients = arrays.get(f"{part}_clients")
    assert inputs is not None
    assert targets is not None
    if inputs.dim() == 0 or targets.dim() not in (1, 2) or len(inputs) != len(targets) or len(inputs) == 0:
        raise ValueError(f"{where}: {part} inputs are {list(inputs.shape)}, targets {list(targets.shape)}")
    if targets.dim() == 2 and targets.shape[1] == 1:  # a column of targets
        targets = targets[:, 0]
    if inputs.dim() == 1:  # one number each
        inputs = inputs.unsqueeze(1)
    if clients is not None and clients.shape != targets.shape[:1]:
        raise ValueError(f"{where}: {part}_clients are {list(clients.shape)} for {len(targets)} examples")
    if targets.dim() == 1 and not targets.is_floating_point():
        targets = targets.long()
    return Examples(inputs, targets, None if clients is None else clients.long())


def _classes(train: Tensor, test: Tensor) -> int:
    if train.dim() == 2 and (train.is_floating_point() or train.dtype in (torch.uint8, torch.bool)):
        return train.shape[1]
    if train.is_floating_point():
        return 0
    return int(max(train.max(), test.max())) + 1
