"""Measures the peak memory of a block of code."""

import weakref
from typing import Any

from torch import Tensor

from torchlayers.core import pytree
from torchlayers.core.tensors.storage import storage_of
from torchlayers.core.torch_private import TorchDispatchMode


class PeakMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of the tensors made inside a ``with`` block, on any device.

    ``peak`` is the largest number of bytes alive at once. Memory that a kernel allocates and
    frees within one operator is not counted.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._allocated = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        inputs = {*map(storage_of, _tensors((args, kwargs)))}
        result = func(*args, **kwargs)
        for tensor in _tensors(result):
            address = storage_of(tensor)
            if address is not None and address not in inputs | self._known:
                self._count(tensor, address)
        return result

    def _count(self, tensor: Tensor, address: int) -> None:
        storage = tensor.untyped_storage()
        size = storage.nbytes()
        self._known.add(address)
        self._allocated += size
        self.peak = max(self.peak, self._allocated)
        weakref.finalize(storage, self._let_go, address, size)

    def _let_go(self, address: int, size: int) -> None:
        self._known.discard(address)
        self._allocated -= size


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.leaves(values) if isinstance(leaf, Tensor)]
