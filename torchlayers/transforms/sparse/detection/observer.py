"""Tells control flow which values vary, while sparsity is detected."""

import contextlib
import threading
from collections.abc import Hashable, Iterator

import torch
from torch import Tensor

from torchlayers.core import varying_values
from torchlayers.core.torch_private import (
    functorch,
    is_wrapped,
    torch_private,
)
from torchlayers.transforms.layers.layer_tensor import LayerTensor
from torchlayers.transforms.sparse.bookkeeping import bookkeeping
from torchlayers.transforms.sparse.detection.index_sets import entries
from torchlayers.transforms.sparse.detection.layer import Sparsity


class _Observer:
    """Finds the tensors of global detection in tensors of the layers above it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = 0  # detections, on all threads

    @contextlib.contextmanager
    def during(self) -> Iterator[None]:
        with self._lock:
            self._running += 1
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1

    def varies(self, x: Tensor) -> bool:
        return bool(self._running and self._varying(x))

    def dependence(self, x: Tensor) -> Hashable:
        if not self._running:
            return None
        dependences = []
        for tensor in self._varying(x):
            with bookkeeping():
                dependences.append(tuple(tuple(index.tolist()) for index in entries(tensor.parts)))
        return tuple(dependences)

    def note_dense(self, x: Tensor, name: str) -> None:
        if self._running:
            for tensor in self._varying(x):
                tensor.layer.unknown[name] = None

    def _varying(self, x: Tensor) -> list[LayerTensor]:
        varying: list[LayerTensor] = []
        with torch.DisableTorchFunction():
            while True:
                if isinstance(x, LayerTensor):
                    sets = x.parts
                    if isinstance(x.layer, Sparsity) and sets is not None and not x.layer.is_local:
                        varying.append(x)
                    x = x.value
                elif torch_private._is_functional_tensor(x):
                    torch_private._functionalize_sync(x)
                    x = functorch.get_unwrapped(x)
                elif is_wrapped(x):
                    x = functorch.get_unwrapped(x)
                else:
                    return varying


observer = _Observer()
varying_values.observe(observer)
