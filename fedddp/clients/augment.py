"""Pictures moved and mirrored anew in every step: data.augment=crops.

crops     a picture is padded by 4 black pixels on each side, a window of its own size is cut out of that at random, and
          half of the windows are mirrored left to right (as the published CIFAR-10 runs of FedBEns have it)

Where a window lies is a hash of the client's key for the round, the step and the place in the batch: it has no state,
is drawn on the device, and does not depend on the number of ranks or on the batches' neighbours. Curvatures, full
gradients and evaluation see whole pictures.
"""

import torch
from torch import Tensor

from fedddp.clients.noise import words
from fedddp.core.task import Task

PAD = 4


class Crops:
    def __init__(self, task: Task, keys: Tensor) -> None:
        self.keys = keys  # [C] on the device
        stored = task.data.train.inputs
        nothing = torch.zeros(1, *stored.shape[1:], dtype=stored.dtype, device=task.device)
        self.black = task.data.prepare(nothing, task.dtype)

    def __call__(self, inputs: Tensor, step: int | Tensor) -> Tensor:
        """Pictures [c, B, ..., H, W] of that step, cut anew; of a recorded step, a counter on the device, int64 [1]."""
        drawn = words(self.keys[: len(inputs)], step, inputs.shape[1]).flatten()
        down, right = ((drawn >> shift & 0x7FFF) * (2 * PAD + 1) >> 15 for shift in (0, 15))
        return cut(inputs.flatten(0, 1), down, right, drawn >> 30 & 1, self.black).view_as(inputs)


def cut(pictures: Tensor, down: Tensor, right: Tensor, mirrored: Tensor, black: Tensor) -> Tensor:
    """The windows of pictures [n, ..., H, W] that begin at `down`, `right` [n], from 0 to 2 PAD, in the padded ones."""
    height, width = pictures.shape[-2:]
    across = torch.arange(width, device=pictures.device)
    across = torch.where(mirrored.unsqueeze(1) == 1, across.flip(0), across)  # [n, W]
    rows = torch.arange(height, device=pictures.device) + (down - PAD).unsqueeze(1)  # [n, H]
    columns = across + (right - PAD).unsqueeze(1)
    planes = pictures.reshape(len(pictures), -1, height, width)
    picture = torch.arange(len(planes), device=planes.device).view(-1, 1, 1, 1)
    plane = torch.arange(planes.shape[1], device=planes.device).view(1, -1, 1, 1)
    y, x = rows.clamp(0, height - 1).view(-1, 1, height, 1), columns.clamp(0, width - 1).view(-1, 1, 1, width)
    inside = _within(rows, height).view(-1, 1, height, 1) & _within(columns, width).view(-1, 1, 1, width)
    return torch.where(inside, planes[picture, plane, y, x], black.view(1, -1, height, width)).view_as(pictures)


def _within(place: Tensor, size: int) -> Tensor:
    return (place >= 0) & (place < size)
