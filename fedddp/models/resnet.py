"""Residual networks for small images (He et al. 2016): ResNet-20 and its kin, or ResNet-18; with a norm or none.

depth 20, 32, 44, 56   16-32-64 channels, (depth - 2)/6 blocks each, shortcuts by subsampling and zero channels
depth 18               64-128-256-512 channels, 2 blocks each, shortcuts by convolution 1x1

With norm=batch, model.buffers says what becomes of the running statistics.
ResNet-20 with 100 classes has 275,572 parameters.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from fedddp.core import model
from fedddp.core.check import check
from fedddp.models._image import channels


class Model(model.Model):
    depth: int = 20  # layers: 18, 20, 32, 44 or 56
    norm: str = "group"  # of the convolutions: group, batch or none
    groups: int = 2  # groups of each GroupNorm: 1, 2, 4, 8 or 16
    bias: bool = True  # whether the output layer adds a bias

    def __post_init__(self) -> None:
        check("model.depth", self.depth, self.depth in (18, 20, 32, 44, 56), "18, 20, 32, 44 or 56")
        check("model.norm", self.norm, self.norm in ("group", "batch", "none"), "group, batch or none")
        check("model.groups", self.groups, self.groups >= 1 and 16 % self.groups == 0, "1, 2, 4, 8 or 16")

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        large = self.depth == 18
        widths, blocks = ([64, 128, 256, 512], 2) if large else ([16, 32, 64], (self.depth - 2) // 6)
        layers, depth = channels(shape)
        layers += [_conv3(depth, widths[0]), self._norm(widths[0]), nn.ReLU()]
        inputs = widths[0]
        for width in widths:
            for _ in range(blocks):
                layers.append(self._block(inputs, width, projects=large))
                inputs = width
        module = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, outputs, self.bias))
        if self.norm != "none":  # without norms, torch's smaller default keeps the residual sums bounded
            for layer in module.modules():
                if isinstance(layer, nn.Conv2d | nn.Linear):
                    nn.init.kaiming_normal_(layer.weight)
        return module

    def _block(self, inputs: int, outputs: int, projects: bool) -> nn.Module:
        stride = 1 if inputs == outputs else 2
        body = nn.Sequential(
            _conv3(inputs, outputs, stride),
            self._norm(outputs),
            nn.ReLU(),
            _conv3(outputs, outputs),
            self._norm(outputs),
        )
        shortcut: nn.Module = nn.Identity() if inputs == outputs else Subsample(outputs - inputs)
        if inputs != outputs and projects:
            shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), self._norm(outputs))
        return Residual(body, shortcut)

    def _norm(self, width: int) -> nn.Module:
        if self.norm == "batch":
            return nn.BatchNorm2d(width)
        return nn.GroupNorm(self.groups, width) if self.norm == "group" else nn.Identity()


class Residual(nn.Module):
    """relu(body(x) + shortcut(x))"""

    def __init__(self, body: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.body, self.shortcut = body, shortcut

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


class Subsample(nn.Module):
    """Every second pixel, and zeros for the new channels."""

    def __init__(self, more: int) -> None:
        super().__init__()
        self.more = more

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.more // 2, self.more - self.more // 2))


def _conv3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
