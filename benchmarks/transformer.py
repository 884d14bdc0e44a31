"""A transformer block."""

import math

import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    """Attention, and a layer four times as wide, each after a norm and with a skip connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads, width // heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inputs, self.outputs = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.inputs(self.before(x)).unflatten(-1, (3, *self.heads))
        q, k, v = parts.movedim(-3, 0).transpose(-3, -2)
        weights = (q @ k.mT / math.sqrt(self.heads[1])).softmax(-1)
        x = x + self.outputs((weights @ v).transpose(-3, -2).flatten(-2))
        wider: Tensor = x + self.down(F.gelu(self.up(self.between(x))))
        return wider
