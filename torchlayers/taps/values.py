"""The listener that collects tapped values."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from torchlayers import _C
from torchlayers.taps.listener import Listener, Names
from torchlayers.taps.loop_steps import TappedLoop


class Values(Listener):
    """Collects the values."""

    def __init__(self, api: str, names: Names | None) -> None:
        super().__init__(api, names)
        self.values: dict[str, Any] = {}

    def wholes(self) -> dict[str, Any]:
        return {name: self.whole(name, value) for name, value in self.values.items()}

    @property
    def taken(self) -> dict[str, Any]:
        return self.values

    def take(
        self, name: str, i: int, tensor: Tensor, loops: Sequence[TappedLoop]
    ) -> tuple[Tensor, Any]:
        return tensor, _C.seen_from(tensor, self.level)
