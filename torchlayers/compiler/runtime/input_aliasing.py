"""Inputs that share memory, one of them written: a graph whose writes come last is not enough."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Run = Callable[[list[Tensor]], Sequence[Tensor]]


class UnlessShared:
    """Runs what is adopted, or, where a written input shares memory, what writes in order."""

    def __init__(self, written: Sequence[int], in_order: Callable[[], Run]) -> None:
        """
        Args:
            written: which of the inputs.
            in_order: makes what runs where memory is shared.
        """
        self._written = [*written]
        self._make_in_order = in_order
        self._in_order: Run | None = None
        self.run: Run

    def adopt(self, run: Run) -> None:
        self.run = run

    def __call__(self, tensors: list[Tensor]) -> Sequence[Tensor]:
        if not self._shared(tensors):
            # Inductor's code clears the list, and writes without telling autograd.
            written = [tensors[i] for i in self._written if not tensors[i].is_inference()]
            results = self.run(tensors)
            torch.autograd.graph.increment_version(written)
            return results
        if self._in_order is None:
            self._in_order = self._make_in_order()
        return self._in_order(tensors)

    def _shared(self, tensors: list[Tensor]) -> bool:
        memory = [tensor.untyped_storage().data_ptr() for tensor in tensors]
        return any(memory.count(memory[i]) > 1 for i in self._written if memory[i])
