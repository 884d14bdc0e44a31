"""The listener that adds tangents to tapped values."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torchlayers import _C
from torchlayers.core import pytree
from torchlayers.core.errors import TapError
from torchlayers.core.operators import aten
from torchlayers.taps.listener import Listener
from torchlayers.taps.loop_steps import TappedLoop

_torch: Any = torch  # its private names have no type stubs


class Tangents(Listener):
    """Adds tangents at a jvp's level to the values."""

    def __init__(self, api: str, tangents: Mapping[str, Any]) -> None:
        if not isinstance(tangents, Mapping):
            raise TapError(
                f"torchlayers: {api}: taps must be a dict of tangents by name, got "
                f"{type(tangents).__name__}."
            )
        super().__init__(api, [*tangents])
        self.tangents = tangents
        self.duals: dict[str, list[Any]] = {}
        self.tapped: dict[str, Any] = {}

    def start(self) -> None:
        self.duals = {
            name: [
                _dual(leaf) if isinstance(leaf, Tensor) else leaf for leaf in pytree.leaves(value)
            ]
            for name, value in self.tangents.items()
        }

    @property
    def taken(self) -> dict[str, Any]:
        return self.tapped

    def take(
        self, name: str, i: int, tensor: Tensor, loops: Sequence[TappedLoop]
    ) -> tuple[Tensor, Any]:
        duals = self.duals[name]
        dual = duals[i] if i < len(duals) else None
        for loop in loops:
            dual = self._of_step(name, dual, loop)
        like = _C.seen_from(tensor.detach(), self.level)
        if not isinstance(dual, Tensor) or (dual.shape, dual.dtype) != (like.shape, like.dtype):
            got = (
                f"one of shape {tuple(dual.shape)} and {dual.dtype}"
                if isinstance(dual, Tensor)
                else type(dual).__name__
            )
            raise TapError(
                f"torchlayers: {self.api}: the tangent at {name!r} must be a tensor like the "
                f"value, of shape {tuple(like.shape)} and {like.dtype}, got {got}."
            )
        return tensor + _C.sample_of(dual, self.level), None

    def _of_step(self, name: str, dual: Any, loop: TappedLoop) -> Any:
        dim = loop.dim(self.level)
        if not isinstance(dual, Tensor):
            return dual
        if dual.dim() <= dim or dual.size(dim) != loop.length:
            raise TapError(
                f"torchlayers: {self.api}: the tangent at {name!r} must have dimension {dim} for "
                f"{loop.api}, of size {loop.length}, got shape {tuple(dual.shape)}."
            )
        return _C.at_level(self.level, lambda: loop.slice_of_step(dual, self.level))


def _dual(tangent: Tensor) -> Tensor:
    """Returns a dual of -0.0 and the tangent: adding it preserves a value, even a zero's sign."""
    nothing = torch.full_like(tangent, -0.0)
    dual: Tensor = aten._make_dual(nothing, tangent, level=0)
    return dual
