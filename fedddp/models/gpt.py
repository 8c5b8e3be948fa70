"""A small GPT from scratch: tokens [T] -> the token that follows each position (Radford et al. 2019).

    x <- x + attention(norm(x)),  x <- x + mlp(norm(x)),    each position sees itself and those before it

With the defaults and 80 letters 417,280 parameters beside the positions' table.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedddp.core import model
from fedddp.core.check import check, check_count


class Model(model.Model):
    width: int = 128  # numbers of a position, at least 1; a multiple of heads
    layers: int = 2  # blocks of attention and MLP, from 1 to 1000
    heads: int = 4  # of each attention, at least 1
    dropout: float = 0.0  # share of the numbers dropped after each attention and MLP, in [0, 1)

    def __post_init__(self) -> None:
        check_count("model.width", self.width)
        check_count("model.layers", self.layers, most=1000)
        check_count("model.heads", self.heads)
        check("model.heads", self.heads, self.width % self.heads == 0, f"a divisor of model.width={self.width}")
        check("model.dropout", self.dropout, 0 <= self.dropout < 1, "in [0, 1)")

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        return GPT(self, shape[-1], outputs)


class GPT(nn.Module):
    def __init__(self, settings: Model, length: int, tokens: int) -> None:
        super().__init__()
        width = settings.width
        self.tokens, self.places = nn.Embedding(tokens, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(settings) for _ in range(settings.layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, tokens, bias=False)
        for layer in self.modules():
            if isinstance(layer, nn.Linear | nn.Embedding):
                nn.init.normal_(layer.weight, std=0.02)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """A mask is not needed: padding stands behind the text, where nothing before it looks."""
        x = self.tokens(input_ids) + self.places(torch.arange(input_ids.shape[-1], device=input_ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Block(nn.Module):
    def __init__(self, settings: Model) -> None:
        super().__init__()
        width, self.heads = settings.width, settings.heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inward, self.outward = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.drop, self.dropped = nn.Dropout(settings.dropout), nn.Dropout(settings.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.attend(self.before(x)))
        return x + self.dropped(self.mlp(self.after(x)))

    def attend(self, x: Tensor) -> Tensor:
        split = self.inward(x).unflatten(-1, (3, self.heads, -1)).movedim(-2, -4)  # [B, heads, T, 3, width/heads]
        query, key, value = split.unbind(-2)
        found = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.outward(found.movedim(-3, -2).flatten(-2))
