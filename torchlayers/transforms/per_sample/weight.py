"""The gradient of one sample with respect to one tensor."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from torchlayers.core.errors import TransformError
from torchlayers.transforms.per_sample.squared_norms import dot, squares, squares_by_parts
from torchlayers.transforms.per_sample.uses import Use, add_parts, sum_gradients, wide


class WeightGradient:
    """Collects the parts of one sample's gradient with respect to one tensor, and its norm."""

    def __init__(self, like: Tensor, keeps: bool) -> None:
        self.nothing = wide(like.new_zeros(()))
        self.keeps = keeps  # whether to save what `total` needs
        self.uses: list[Use] = []  # those whose cotangents have arrived
        self.awaited = 0
        self.is_used_otherwise = False
        self.besides: Tensor | None = None  # the gradient from its other uses, by vmap(grad)
        self.square: Tensor | None = None
        self.saved: tuple[Tensor, ...] = ()

    def expect(self, use: Use) -> Callable[[Tensor], None]:
        """Returns a function to call with the use's cotangent."""
        self.awaited += 1

        def arrive(g: Tensor) -> None:
            use.g = g
            self.uses.append(use)
            self.awaited -= 1
            if self.awaited == 0 and not self.is_used_otherwise:
                self.settle()

        return arrive

    def add(self, gradient: Tensor) -> None:
        """Takes the complete gradient from the tensor's other uses."""
        if self.square is not None:
            raise TransformError(
                "torchlayers: a weight of a matrix product is also used where torch function modes "
                "are disabled (torch.DisableTorchFunction), so part of its gradient was missed. "
                "Compute 1 * weight beforehand, and use that there."
            )
        self.besides = gradient
        if self.awaited == 0 and not self.uses:
            self.settle()

    def settle(self) -> None:
        """Computes the squared norm, and frees everything that `total` does not need."""
        uses, gradient = self.uses, None
        size = sum(part.numel() for use in uses for part in use.residuals())
        if self.besides is None:
            self.square = squares(uses)
            keeps_gradient = self.keeps and uses[0].shape.numel() <= size
            if self.square is None and len(uses) == 1 and not keeps_gradient:
                self.square = squares_by_parts(uses[0])
        if self.square is None:
            gradient = sum_gradients(uses, self.besides)
            self.square = dot(gradient, gradient)
        if self.keeps:
            if gradient is not None and (self.besides is not None or gradient.numel() <= size):
                self.saved = (gradient,)
            else:
                self.saved = tuple(part for use in uses for part in use.residuals())
        for use in uses:
            use.forget()
        if len(self.saved) < 2:
            self.uses = []
        self.besides = None

    def squares(self) -> Tensor:
        """Returns the squared norm; to be called after the backward pass."""
        if self.square is None:
            if not self.uses and self.besides is None:
                return self.nothing
            self.settle()
        assert self.square is not None
        return self.square

    def total(self, like: Tensor, saved: Sequence[Tensor], scale: Tensor) -> Tensor:
        """Returns the sum of the samples' gradients, each times its scale.

        kept has the saved tensors of all samples, stacked.
        """
        if not saved:
            return torch.zeros_like(like)
        if not self.uses:
            (gradients,) = saved
            total: Tensor = torch.tensordot(scale.to(gradients.dtype), gradients, 1)
            return total.to(like.dtype)
        parts = []
        for use, x, g in zip(self.uses, saved[::2], saved[1::2], strict=True):
            scales = scale.to(g.dtype).reshape(-1, *[1] * (g.dim() - 1))
            parts.append(use.total(x, g * scales))
        return add_parts(parts).to(like.dtype)
