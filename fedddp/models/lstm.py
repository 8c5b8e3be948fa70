"""LSTM language models: tokens [T] -> the token that follows the text, or the one that follows each position.

i, f, o = σ(W x_t + U h + b),  g = tanh(W x_t + U h + b);   c <- f c + i g;   h <- o tanh(c)

The defaults are LEAF's model of Shakespeare's characters (817,872 parameters for 80 letters). FedPA's model of
StackOverflow's words (Reddi et al. 2021) is embedding=96, hidden=670, layers=1, projection=96, predict=all:
4,050,748 parameters for 10,004 tokens. The recurrence is written out, because torch's own cannot be vectorised
over clients.
"""

from itertools import pairwise

import torch
from torch import Tensor, nn

from fedddp.core import model
from fedddp.core.check import check, check_count


class Model(model.Model):
    embedding: int = 8  # numbers that a token is embedded in, at least 1
    hidden: int = 256  # units of each LSTM layer, at least 1
    layers: int = 2  # LSTM layers, from 1 to 1000
    projection: int = 0  # units of a linear layer before the output; 0: none
    predict: str = "last"  # last: what follows the whole text; or all: what follows each position
    vocabulary: int = 0  # different input tokens; 0: as many as there are outputs

    def __post_init__(self) -> None:
        check("model.predict", self.predict, self.predict in ("last", "all"), "last or all")
        check_count("model.layers", self.layers, most=1000)
        check_count("model.embedding", self.embedding)
        check_count("model.hidden", self.hidden)
        check_count("model.projection", self.projection, least=0)
        check_count("model.vocabulary", self.vocabulary, least=0)

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        if len(shape) != 1:
            raise ValueError(f"model.name=lstm: takes a row of tokens [T]; the data's inputs are {list(shape)}")
        layers: list[nn.Module] = [nn.Embedding(self.vocabulary or outputs, self.embedding)]
        layers += [Recurrence(i, o) for i, o in pairwise([self.embedding] + [self.hidden] * self.layers)]
        layers += [Last()] if self.predict == "last" else []
        layers += [nn.Linear(self.hidden, self.projection)] if self.projection else []
        return nn.Sequential(*layers, nn.Linear(self.projection or self.hidden, outputs))


class Recurrence(nn.Module):
    """One layer: [B, T, inputs] -> [B, T, hidden], started at zero; forget gates start open."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.inward = nn.Linear(inputs, 4 * hidden)
        self.onward = nn.Linear(hidden, 4 * hidden, bias=False)
        with torch.no_grad():
            self.inward.bias.zero_()[hidden : 2 * hidden] = 1.0

    def forward(self, x: Tensor) -> Tensor:
        drive = self.inward(x)  # for all positions at once
        hidden = cell = drive.new_zeros(len(x), self.onward.in_features)
        states = []
        for position in drive.unbind(1):
            enter, forget, leave, new = (position + self.onward(hidden)).chunk(4, dim=-1)
            cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
            hidden = leave.sigmoid() * cell.tanh()
            states.append(hidden)
        return torch.stack(states, dim=1)


class Last(nn.Module):
    """[B, T, width] -> [B, width] of the last position."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, -1]
