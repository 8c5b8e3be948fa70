"""Modules of a user's own, named by path in tests."""

from torch import Tensor, nn


class Tiny(nn.Module):
    def __init__(self, hidden: int = 8) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.Tanh(), nn.Linear(hidden, 10))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.body(inputs)


class WithBatchNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 10)
        self.norm = nn.BatchNorm1d(10)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.norm(self.linear(inputs.flatten(1)))


class ConvBatchNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3, stride=2), nn.BatchNorm2d(4)
        self.head = nn.Linear(36, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.norm(self.conv(inputs.unsqueeze(1))).relu().flatten(1))
