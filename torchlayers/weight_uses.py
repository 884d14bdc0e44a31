"""The norm of a weight's gradient for a sample, told from what goes through the weight.

Where an operator multiplies by a weight, the weight's gradient is a product too, left.mT @ right,
of what goes in and the cotangents that come back (T x p and T x q, T the positions). Its squared
norm is the sum of (left @ left.mT) * (right @ right.mT), of T x T, for which the gradient, p x q
numbers, is never made. A convolution multiplies patches by its weight, and an embedding rows that
have a single one. All of this is written for one sample; vmap makes it a batch's.

Source: Goodfellow, "Efficient Per-Example Gradient Computations" (2015); Li, Tramer, Liang and
    Hashimoto, "Large Language Models Can Be Strong Differentially Private Learners" (2022),
    section 4; the choice by sizes as in Bu, Mao and Xu, "Scalable and Efficient Training of Large
    Convolutional Neural Networks with Differential Privacy" (2022), section 4.
"""

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["READERS", "Use", "added", "dot", "gradient", "squares", "squares_by_parts", "wide"]

Rows = tuple[Tensor, Tensor]  # left and right, each groups x positions x numbers


class Use(ABC):
    """An operator's call with a weight, of one sample.

    x is what goes in besides, and g the cotangent of what comes out, when the pass has brought it.
    """

    def __init__(self, weight: Tensor, x: Tensor) -> None:
        self.weight, self.x = weight, x
        self.shape = weight.shape
        self.g: Tensor | None = None

    @property
    def known(self) -> tuple[Tensor, Tensor]:
        """x and g. Half precision is too narrow for squares."""
        assert self.g is not None
        return wide(self.x), wide(self.g)

    def kept(self) -> tuple[Tensor, Tensor]:
        """What `total` takes, of this sample."""
        assert self.g is not None
        return self.x, self.g

    def forget(self) -> None:
        del self.weight, self.x, self.g

    @abstractmethod
    def gradient(self) -> Tensor:
        """The weight's, of the weight's shape."""

    @abstractmethod
    def total(self, x: Tensor, g: Tensor) -> Tensor:
        """The sum of the gradients of samples that lie in front of x and g."""


class _Product(Use):
    """A use whose gradient is left.mT @ right for each of its groups."""

    @abstractmethod
    def sizes(self) -> tuple[int, int, int]:
        """T, p and q."""

    @abstractmethod
    def rows(self) -> Rows: ...

    def parts(self) -> Iterator[Tensor]:
        """The gradient, cut along its last dimension."""
        left, right = self.rows()
        yield left.mT @ right

    def gradient(self) -> Tensor:
        return torch.cat(list(self.parts()), -1).reshape(self.shape)


class _Linear(_Product):
    """Rows times a matrix: left and right are the gradient's own order."""

    def __init__(self, weight: Tensor, x: Tensor, is_transposed: bool) -> None:
        super().__init__(weight, x)
        self.is_transposed = is_transposed  # the matrix is outputs x inputs

    def sizes(self) -> tuple[int, int, int]:
        p, q = self.shape
        return _positions(self.x), p, q

    def rows(self) -> Rows:
        x, g = (each.reshape(1, _positions(each), each.shape[-1]) for each in self.known)
        return (g, x) if self.is_transposed else (x, g)

    def total(self, x: Tensor, g: Tensor) -> Tensor:
        x, g = (each.reshape(_positions(each), each.shape[-1]) for each in (x, g))
        return g.mT @ x if self.is_transposed else x.mT @ g


class _Convolution(_Product):
    """Patches times a matrix, for each group of channels.

    A transposed one multiplies its input and adds patches up, so that its gradient is that of a
    convolution of the cotangents.
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
        self.stride, self.dilation = self._each(stride), self._each(dilation)
        self.padding = self._paddings(padding)
        self.output_padding = self._each(output_padding)
        self.groups, self.is_transposed = groups, is_transposed

    def _each(self, value: Any) -> tuple[int, ...]:
        values = (value,) if isinstance(value, int) else tuple(value)
        return values * len(self.kernel) if len(values) == 1 else values

    def _paddings(self, padding: Any) -> list[tuple[int, int]]:
        """Before and after, of each dimension."""
        if padding == "valid":
            padding = 0
        if padding != "same":
            return [(each, each) for each in self._each(padding)]
        widths = [d * (k - 1) for d, k in zip(self.dilation, self.kernel, strict=True)]
        return [(width // 2, width - width // 2) for width in widths]

    def _images(self) -> tuple[Tensor, Tensor]:
        """What is cut into patches, and what is multiplied with them, with the images in front."""
        x, g = (
            each if each.dim() == len(self.kernel) + 2 else each.unsqueeze(0) for each in self.known
        )
        return (g, x) if self.is_transposed else (x, g)

    def sizes(self) -> tuple[int, int, int]:
        other = self.x if self.is_transposed else self.g
        assert other is not None
        channels = self.shape[0]
        q = math.prod(self.shape[1:])
        return other.numel() // max(1, channels), channels // self.groups, q

    def _grouped(self, images: Tensor) -> Tensor:
        """Images x channels x positions, as groups x positions x channels."""
        count, channels, positions = images.shape
        split = images.reshape(count, self.groups, channels // self.groups, positions)
        return split.permute(1, 0, 3, 2).flatten(1, 2)

    def _patches(self, images: Tensor, places: Sequence[int], offsets: Any) -> Tensor:
        """Images x (channels x offsets) x places."""
        slices = []
        for offset in offsets:
            each = zip(offset, self.dilation, self.stride, places, strict=True)
            where = [slice(o * d, o * d + s * (n - 1) + 1, s) for o, d, s, n in each]
            slices.append(images[(slice(None), slice(None), *where)])
        patches = slices[0].unsqueeze(2) if len(slices) == 1 else torch.stack(slices, 2)
        return patches.flatten(3).flatten(1, 2)

    def _padded(self, images: Tensor, places: Sequence[int]) -> Tensor:
        """So wide that each place has a patch."""
        widths = []
        for i, (before, after) in enumerate(self.padding):
            needed = self.stride[i] * (places[i] - 1) + self.dilation[i] * (self.kernel[i] - 1) + 1
            widths.append((before, max(after, needed - before - images.shape[2 + i])))
        if not any(itertools.chain(*widths)):
            return images
        return F.pad(images, list(itertools.chain(*reversed(widths))))

    def _cut(self, at_once: int | None) -> Iterator[Rows]:
        """Left, and right for some of the kernel's offsets at a time."""
        images, others = self._images()
        places = others.shape[2:]
        padded = self._padded(images, places)
        left = self._grouped(others.flatten(2))
        offsets = list(itertools.product(*map(range, self.kernel)))
        for start in range(0, len(offsets), at_once or len(offsets)):
            some = offsets[start : start + (at_once or len(offsets))]
            yield left, self._grouped(self._patches(padded, places, some))

    def rows(self) -> Rows:
        return next(self._cut(None))

    def parts(self) -> Iterator[Tensor]:
        """So many that patches don't take more than twice what x and g do."""
        images, others = self._images()
        patch = max(1, images.shape[1] * others[:, 0].numel())
        at_once = max(1, 2 * (images.numel() + others.numel()) // patch)
        for left, right in self._cut(at_once):
            # Channels and offsets lie in one dimension: offsets have to come last.
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
        found = torch.ops.aten.convolution_backward(
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
        gradient: Tensor = found[1]
        return gradient


class _Lookup(Use):
    """Rows of a weight by their numbers. Cotangents of the padding row are zeros."""

    def __init__(self, weight: Tensor, x: Tensor, padding: int, by_frequency: bool) -> None:
        super().__init__(weight, x)
        self.padding = padding
        self.by_frequency = by_frequency

    @property
    def known(self) -> tuple[Tensor, Tensor]:
        """The numbers, T, and the cotangents, T x q."""
        assert self.g is not None
        numbers = self.x.flatten()
        g = wide(self.g).reshape(len(numbers), self.shape[1])
        if self.padding >= 0:
            g = g * (numbers != self.padding).unsqueeze(-1)
        if self.by_frequency:
            g = g / (numbers.unsqueeze(0) == numbers.unsqueeze(1)).sum(0).unsqueeze(-1)
        return numbers, g

    def kept(self) -> tuple[Tensor, Tensor]:
        return self.known

    def gradient(self) -> Tensor:
        return _added_up(*self.known, self.shape[0])

    def total(self, x: Tensor, g: Tensor) -> Tensor:
        return _added_up(x.flatten(), g.flatten(0, 1), self.shape[0])


def wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _added_up(numbers: Tensor, g: Tensor, count: int) -> Tensor:
    return g.new_zeros(count, g.shape[1]).index_add(0, numbers, g)


def _positions(rows: Tensor) -> int:
    return rows.numel() // max(1, rows.shape[-1])


def dot(a: Tensor, b: Tensor) -> Tensor:
    """The sum of a * b, which is not made."""
    return (a.reshape(1, a.numel()) @ b.reshape(b.numel(), 1)).reshape(())


# Squared norms.


def squares(uses: Sequence[Use]) -> Tensor | None:
    """The squared norm of the sum of the uses' gradients, where it is cheaper without them."""
    products = [use for use in uses if isinstance(use, _Product)]
    lookups = [use.known for use in uses if isinstance(use, _Lookup)]
    if products:
        sizes = [use.sizes() for use in products]
        (_, p, q), positions = sizes[0], sum(size for size, _, _ in sizes)
        if positions > 1 and positions * (p + q) > p * q:
            return None
    total: Any = 0
    if products:
        cut = [use.rows() for use in products]
        left, right = (_joined(each, 1) for each in zip(*cut, strict=True))
        total = _of_rows(left, right)
    if lookups:
        numbers, g = (_joined(each, 0) for each in zip(*lookups, strict=True))
        total = total + _of_lookups(numbers, g)
        if products:
            # A row that is looked up meets what the products bring to it.
            total = total + 2 * dot(right[0] @ g.mT, left[0].index_select(1, numbers))
    assert isinstance(total, Tensor)
    return total


def _joined(parts: Sequence[Tensor], dim: int) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim)


def _of_rows(left: Tensor, right: Tensor) -> Tensor:
    if left.shape[1] == 1:
        return (left.square().sum((1, 2)) * right.square().sum((1, 2))).sum()
    return dot(left @ left.mT, right @ right.mT)


def _of_lookups(numbers: Tensor, g: Tensor) -> Tensor:
    positions, size = g.shape
    if positions == 1:
        return g.square().sum()
    if positions <= size:
        alike = numbers.unsqueeze(0) == numbers.unsqueeze(1)
        return dot(g @ g.mT, alike.to(g.dtype))
    order = numbers.argsort()
    differs = numbers[order].diff() != 0
    places = F.pad(differs.cumsum(0), (1, 0))
    rows = _added_up(places, g[order], positions)
    return dot(rows, rows)


def gradient(uses: Sequence[Use], besides: Tensor | None = None) -> Tensor:
    """The sum of the uses' gradients, and of what there is besides."""
    return added([use.gradient() for use in uses] + ([] if besides is None else [besides]))


def added(parts: Sequence[Tensor]) -> Tensor:
    total = parts[0]
    for each in parts[1:]:
        total = total + each
    return total


def squares_by_parts(use: Use) -> Tensor | None:
    """The squared norm of a product's gradient, a part of it at a time."""
    if not isinstance(use, _Product):
        return None
    total: Any = 0
    for part in use.parts():
        total = total + dot(part, part)
    assert isinstance(total, Tensor)
    return total


# What each operator does with a weight. A reader has the operator's signature, and returns None
# where the call is none of these.


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Use | None:
    return _Linear(weight, input, is_transposed=True) if weight.dim() == 2 else None


def _matmul(input: Tensor, other: Tensor, *, out: Any = None) -> Use | None:
    return _Linear(other, input, is_transposed=False) if other.dim() == 2 else None


def _mm(input: Tensor, mat2: Tensor, *, out: Any = None) -> Use | None:
    return _matmul(input, mat2)


def _addmm(
    input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Any = 1, alpha: Any = 1, out: Any = None
) -> Use | None:
    return _matmul(mat1, mat2) if alpha == 1 else None


def _conv(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Use | None:
    return _Convolution(weight, input, stride, padding, dilation, groups)


def _conv_transpose(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Use | None:
    return _Convolution(
        weight, input, stride, padding, dilation, groups, output_padding, is_transposed=True
    )


def _embedding(
    weight: Tensor,
    indices: Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Use | None:
    return _Lookup(weight, indices, padding_idx, scale_grad_by_freq)


READERS: dict[Any, Callable[..., Use | None]] = {
    F.linear: _linear,
    torch.matmul: _matmul,
    Tensor.matmul: _matmul,
    Tensor.__matmul__: _matmul,
    torch.mm: _mm,
    Tensor.mm: _mm,
    torch.addmm: _addmm,
    F.conv1d: _conv,
    F.conv2d: _conv,
    F.conv3d: _conv,
    F.conv_transpose1d: _conv_transpose,
    F.conv_transpose2d: _conv_transpose,
    F.conv_transpose3d: _conv_transpose,
    torch.embedding: _embedding,
}
