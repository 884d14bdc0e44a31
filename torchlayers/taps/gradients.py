"""The listener that collects gradients with respect to tapped values."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchlayers import _C
from torchlayers.core import pytree
from torchlayers.core.errors import TapError
from torchlayers.core.layer_stack import current_stack
from torchlayers.core.torch_private import functorch
from torchlayers.taps.listener import Listener, Names
from torchlayers.taps.loop_steps import StepValues, TappedLoop


class Gradients(Listener):
    """Collects the gradients that a reverse pass at its level computes for the values."""

    def __init__(self, api: str, names: Names) -> None:
        super().__init__(api, names)
        self.values: dict[str, Any] = {}
        self.zero: Tensor | None = None

    def connect_to(self, args: Any) -> None:
        """Takes the arguments of the function at the level of the transform.

        A reverse pass runs the nodes between the result and the differentiated arguments only. So a
        tapped value that does not depend on these gets a zero added that does.
        """
        level = functorch.maybe_current_level()
        for x in pytree.leaves(args):
            if isinstance(x, Tensor) and x.requires_grad and functorch.maybe_get_level(x) == level:
                nothing = x.reshape(-1)[:0].sum()
                self.zero = -(nothing.real if x.is_complex() else nothing)  # preserves -0.0
                return

    @property
    def taken(self) -> dict[str, Any]:
        return self.values

    def gradients(self) -> dict[str, Any]:
        for value in self.values.values():
            if isinstance(value, StepValues):
                value.values = {
                    place: _completed(gradient) for place, gradient in value.values.items()
                }
        whole_by_name = {
            name: value if isinstance(value, StepValues) else _completed(value)
            for name, value in self.values.items()
        }
        return {name: self.whole(name, value) for name, value in whole_by_name.items()}

    def take(
        self, name: str, i: int, tensor: Tensor, loops: Sequence[TappedLoop]
    ) -> tuple[Tensor, Any]:
        dims = _C.held_at(tensor, self.level)[1]
        if -1 not in dims:
            tensor = tensor.view_as(tensor)
        elif all(layer.kind == "vmap" for layer in current_stack()[self.level :]):
            tensor = _C.sample_of(_C.seen_from(tensor, self.level), self.level)
        else:
            raise TapError(
                f"torchlayers: {self.api}: {name!r} is the same for all samples of a vmap and is "
                "inside another derivative, so there is no gradient for each sample."
            )
        tensor = self.connected(tensor)
        return tensor, _Gradient(tensor, self.level)

    def meet_again(self, value: Any) -> Any:
        return pytree.map_tensors(self.connected, value)

    def connected(self, tensor: Tensor) -> Tensor:
        """Returns the tensor as one that the transform differentiates."""
        is_number = tensor.is_floating_point() or tensor.is_complex()
        if self.zero is None or not is_number or _C.held_at(tensor, self.level)[0].requires_grad:
            return tensor
        with torch.enable_grad():
            return tensor + self.zero.to(tensor.device, tensor.dtype)


class _Gradient:
    """The gradient by one tensor; zeros if the reverse pass does not reach the tensor."""

    def __init__(self, tensor: Tensor, level: int) -> None:
        unwrapped, self.dims = _C.held_at(tensor, level)
        self.level = level
        self.shape, self.dtype, self.device = unwrapped.shape, unwrapped.dtype, unwrapped.device
        self.sum: Tensor | None = None
        if unwrapped.requires_grad:
            unwrapped.register_hook(self.add)  # type: ignore[no-untyped-call]

    def add(self, g: Tensor | None) -> None:
        if g is None:
            return
        g = _C.unwrap(g, self.level)
        self.sum = g if self.sum is None else self.sum + g

    def complete(self) -> Tensor:
        gradient = self.sum
        if gradient is None:
            gradient = torch.zeros(self.shape, dtype=self.dtype, device=self.device)
        for place, dim in enumerate(self.dims):
            gradient = gradient.movedim(place + dim, place)
        return gradient


def _completed(gradients: Any) -> Any:
    leaves, spec = pytree.flatten(gradients)
    return pytree.unflatten(
        [leaf.complete() if isinstance(leaf, _Gradient) else leaf for leaf in leaves], spec
    )
