"""A use of a weight by a convolution."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torchlayers.core.operators import aten
from torchlayers.transforms.per_sample.uses import Product, Rows


class Convolution(Product):
    """Patches times a matrix, for each group of channels.

    A transposed convolution multiplies its input and adds up patches, so the weight's gradient is
    that of a convolution applied to the cotangents.
    """

    def __init__(
        self,
        weight: Tensor,
        x: Tensor,
        stride: Any,
        padding: Any,
        dilation: Any,
        groups: int,
        output_padding: Any = 0,
        is_transposed: bool = False,
    ) -> None:
        super().__init__(weight, x)
        self.kernel = weight.shape[2:]
        self.stride, self.dilation = self._per_dim(stride), self._per_dim(dilation)
        self.padding = self._paddings(padding)
        self.output_padding = self._per_dim(output_padding)
        self.groups, self.is_transposed = groups, is_transposed

    def _per_dim(self, value: Any) -> tuple[int, ...]:
        values = (value,) if isinstance(value, int) else tuple(value)
        return values * len(self.kernel) if len(values) == 1 else values

    def _paddings(self, padding: Any) -> list[tuple[int, int]]:
        """Returns the padding (before, after) of each dimension."""
        if padding == "valid":
            padding = 0
        if padding != "same":
            return [(pad, pad) for pad in self._per_dim(padding)]
        widths = [d * (k - 1) for d, k in zip(self.dilation, self.kernel, strict=True)]
        return [(width // 2, width - width // 2) for width in widths]

    def _images(self) -> tuple[Tensor, Tensor]:
        """Returns the tensor to split into patches and its factor, both with a batch dimension."""
        x, g = (
            x if x.dim() == len(self.kernel) + 2 else x.unsqueeze(0) for x in self.wide_operands
        )
        return (g, x) if self.is_transposed else (x, g)

    def sizes(self) -> tuple[int, int, int]:
        other = self.x if self.is_transposed else self.g
        assert other is not None
        channels = self.shape[0]
        q = math.prod(self.shape[1:])
        return other.numel() // max(1, channels), channels // self.groups, q

    def _group_channels(self, images: Tensor) -> Tensor:
        """Reshapes images x channels x positions to groups x positions x channels."""
        count, channels, positions = images.shape
        split = images.reshape(count, self.groups, channels // self.groups, positions)
        return split.permute(1, 0, 3, 2).flatten(1, 2)

    def _patches(self, images: Tensor, places: Sequence[int], offsets: Any) -> Tensor:
        """Returns the patches: images x (channels x offsets) x places."""
        slices = []
        for offset in offsets:
            steps = zip(offset, self.dilation, self.stride, places, strict=True)
            where = [slice(o * d, o * d + s * (n - 1) + 1, s) for o, d, s, n in steps]
            slices.append(images[(slice(None), slice(None), *where)])
        patches = slices[0].unsqueeze(2) if len(slices) == 1 else torch.stack(slices, 2)
        return patches.flatten(3).flatten(1, 2)

    def _pad_images(self, images: Tensor, places: Sequence[int]) -> Tensor:
        """Pads the images so that each place has a whole patch."""
        widths = []
        for i, (before, after) in enumerate(self.padding):
            needed = self.stride[i] * (places[i] - 1) + self.dilation[i] * (self.kernel[i] - 1) + 1
            widths.append((before, max(after, needed - before - images.shape[2 + i])))
        if not any(itertools.chain(*widths)):
            return images
        return F.pad(images, list(itertools.chain(*reversed(widths))))

    def _cut(self, at_once: int | None) -> Iterator[Rows]:
        """Yields left, and right for some of the kernel's offsets at a time."""
        images, others = self._images()
        places = others.shape[2:]
        padded = self._pad_images(images, places)
        left = self._group_channels(others.flatten(2))
        offsets = list(itertools.product(*map(range, self.kernel)))
        for start in range(0, len(offsets), at_once or len(offsets)):
            some = offsets[start : start + (at_once or len(offsets))]
            yield left, self._group_channels(self._patches(padded, places, some))

    def rows(self) -> Rows:
        return next(self._cut(None))

    def parts(self) -> Iterator[Tensor]:
        """Yields parts so small that their patches take at most twice the memory of x and g."""
        images, others = self._images()
        patch = max(1, images.shape[1] * others[:, 0].numel())
        at_once = max(1, 2 * (images.numel() + others.numel()) // patch)
        for left, right in self._cut(at_once):
            # Channels and offsets share a dimension: split it, so that offsets come last.
            part = left.mT @ right
            channels = self.shape[1]
            yield part.reshape(*part.shape[:-1], channels, part.shape[-1] // channels)

    def total(self, x: Tensor, g: Tensor) -> Tensor:
        if x.dim() == len(self.kernel) + 3:
            x, g = x.flatten(0, 1), g.flatten(0, 1)
        pads = self.padding
        if any(before != after for before, after in pads):
            x = F.pad(x, list(itertools.chain(*reversed(pads))))
            pads = [(0, 0)] * len(pads)
        gradients = aten.convolution_backward(
            g,
            x,
            x.new_empty(()).expand(self.shape),
            None,
            self.stride,
            [before for before, _ in pads],
            self.dilation,
            self.is_transposed,
            self.output_padding,
            self.groups,
            [False, True, False],
        )
        gradient: Tensor = gradients[1]
        return gradient
