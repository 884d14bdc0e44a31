"""grid_sample by gathering corners, for the transforms that torch's kernels have no formula for.

It takes images of any number of dimensions. The cubic interpolation of images is that of
Keys, "Cubic convolution interpolation for digital image processing" (1981), with a = -0.75.
"""

import itertools
import math
from typing import Any

import torch
from torch import Tensor

from torchlayers.grad import vjp

_LINEAR, _NEAREST, _CUBIC = range(3)
_ZEROS, _BORDER, _REFLECTION = range(3)
_KEYS = -0.75

# A pixel's place along a dimension, and its weight there.
Tap = tuple[Tensor, Tensor | float]


def grid_sampler(
    image: Tensor, grid: Tensor, interpolation: int, padding: int, align_corners: bool
) -> Tensor:
    """Samples image (N, C, *sizes) at grid (N, *out, D), in [-1, 1], last dimension first.

    interpolation and padding are the numbers that torch's operators have for linear, nearest
    and cubic, and for zeros, border and reflection. Returns (N, C, *out).
    """
    sizes = image.shape[2:]
    places = [
        _unnormalize(grid[..., -1 - axis], size, align_corners) for axis, size in enumerate(sizes)
    ]
    if interpolation == _CUBIC:
        taps = [_cubic_taps(place) for place in places]
    else:
        places = [
            _pad(place, size, padding, align_corners)
            for place, size in zip(places, sizes, strict=True)
        ]
        taps = [
            _nearest_tap(place) if interpolation == _NEAREST else _linear_taps(place)
            for place in places
        ]
    result = None
    for corner in itertools.product(*taps):
        weight = math.prod(weight for _, weight in corner)
        indices = [index for index, _ in corner]
        if interpolation == _CUBIC:
            indices = [
                _pad(index, size, padding, align_corners).round()
                for index, size in zip(indices, sizes, strict=True)
            ]
        term = _gather(image, indices)
        if isinstance(weight, Tensor):
            term = term * weight.unsqueeze(1)
        result = term if result is None else result + term
    assert result is not None
    return result


def _unnormalize(place: Tensor, size: int, align_corners: bool) -> Tensor:
    if align_corners:
        return (place + 1) / 2 * (size - 1)
    return ((place + 1) * size - 1) / 2


def _pad(place: Tensor, size: int, padding: int, align_corners: bool) -> Tensor:
    if padding == _ZEROS:
        return place
    if padding == _REFLECTION:
        place = _reflect(place, 0.0, size - 1.0) if align_corners else _reflect(place, -0.5, size)
    return place.clamp(0, size - 1)


def _reflect(place: Tensor, low: float, span: float) -> Tensor:
    """Folds the line at low and at low + span, again and again."""
    if span == 0:
        return torch.zeros_like(place)
    distance = (place - low).abs()
    flips = (distance.detach() / span).floor()
    extra = distance - flips * span
    return torch.where(flips % 2 == 0, extra + low, span - extra + low)


def _linear_taps(place: Tensor) -> list[Tap]:
    below = place.detach().floor()
    fraction = place - below
    return [(below, 1 - fraction), (below + 1, fraction)]


def _nearest_tap(place: Tensor) -> list[Tap]:
    return [(place.detach().round(), 1.0)]


def _cubic_taps(place: Tensor) -> list[Tap]:
    below = place.detach().floor()
    fraction = place - below
    return [(below + k, _keys((fraction - k).abs(), near=k in (0, 1))) for k in (-1, 0, 1, 2)]


def _keys(distance: Tensor, near: bool) -> Tensor:
    d = distance
    if near:
        return ((_KEYS + 2) * d - (_KEYS + 3)) * d * d + 1
    return ((_KEYS * d - 5 * _KEYS) * d + 8 * _KEYS) * d - 4 * _KEYS


def _gather(image: Tensor, indices: list[Tensor]) -> Tensor:
    """The pixels at the indices (N, *out), zero outside of the image: (N, C, *out)."""
    batch, channels, *sizes = image.shape
    flat = torch.zeros_like(indices[0], dtype=torch.long)
    inside = torch.ones_like(indices[0], dtype=torch.bool)
    for index, size in zip(indices, sizes, strict=True):
        inside = inside & (index >= 0) & (index <= size - 1)
        flat = flat * size + index.detach().clamp(0, size - 1).long()
    pixels = image.flatten(2).gather(2, flat.flatten(1).unsqueeze(1).expand(-1, channels, -1))
    pixels = pixels.reshape(batch, channels, *flat.shape[1:])
    return torch.where(inside.unsqueeze(1), pixels, pixels.new_zeros(()))


def grid_sampler_backward(
    gradient: Tensor,
    image: Tensor,
    grid: Tensor,
    interpolation: int,
    padding: int,
    align_corners: bool,
    output_mask: list[bool],
) -> tuple[Tensor | None, ...]:
    """The gradients of grid_sampler by image and grid, where the mask asks for them."""

    def sampled(image: Tensor, grid: Tensor) -> Tensor:
        return grid_sampler(image, grid, interpolation, padding, align_corners)

    pulled: Any = vjp(sampled, image, grid)[1]
    return tuple(
        found if wanted else None
        for found, wanted in zip(pulled(gradient), output_mask, strict=True)
    )
