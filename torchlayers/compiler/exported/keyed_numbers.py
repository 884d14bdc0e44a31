"""Keyed normal numbers for programs that can't read the bits of a floating-point number (ONNX).

csrc/rules/random/philox_tensors.cpp computes logarithms from these bits, and is the same to the
last bit everywhere. Here they are the runtime's, so the numbers agree within rounding.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_ops: Any = torch.ops.torchlayers

_WORD = 2**32 - 1


def normal(key: Tensor, size: Sequence[int], dtype: torch.dtype) -> Tensor:
    """torchlayers::random_normal, from the same words of the same blocks."""
    count = math.prod(size)
    of_block = 2 if dtype is torch.float64 else 4
    blocks = (count + (of_block - 1)) // of_block
    words = _ops.random_bits_of_tensors(key, [2 * blocks], torch.int64)
    first, second = words & _WORD, (words >> 32) & _WORD
    if dtype is torch.float64:
        halves = [part.unflatten(-1, (-1, 2)) for part in (first, second)]
        radius = [half.select(-1, 0) for half in halves]
        angle = [half.select(-1, 1) for half in halves]
        whole = (radius[0] >> 5).to(dtype) * 2.0**26 + (radius[1] >> 6).to(dtype)
        uniform = whole * 2.0**-53 + 2.0**-54
        turn = _centred(angle[0], dtype) + (angle[1] >> 10).to(dtype) * 2.0**-52
        quadrant = angle[0] >> 30
    else:
        whole = (first >> 16).to(torch.float32) * 2.0**16 + (first & 0xFFFF).to(torch.float32)
        uniform, turn = whole * 2.0**-32 + 2.0**-33, _centred(second, torch.float32)
        quadrant = second >> 30
    numbers = torch.stack(_box_muller(uniform, turn, quadrant), -1).flatten(-2)
    return numbers.narrow(-1, 0, count).reshape([*key.shape, *size]).to(dtype)


def _centred(word: Tensor, dtype: torch.dtype) -> Tensor:
    return ((word & 0x3FFFFFFF) - 0x20000000).to(dtype) * 2.0**-30


def _box_muller(uniform: Tensor, turn: Tensor, quadrant: Tensor) -> list[Tensor]:
    radius = (uniform.log() * -2).sqrt()
    angle = turn * (math.pi / 2)
    sine, cosine = angle.sin(), angle.cos()
    is_odd = (quadrant & 1) != 0
    x = radius * torch.where(is_odd, sine, cosine)
    y = radius * torch.where(is_odd, cosine, sine)
    return [
        torch.where(((quadrant + 1) & 2) != 0, -x, x),
        torch.where((quadrant & 2) != 0, -y, y),
    ]
