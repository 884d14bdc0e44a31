"""Handles written inputs that alias others: a graph whose writes come last would be wrong then."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

Run = Callable[[list[Tensor]], Sequence[Tensor]]


class AliasGuard:
    """Runs the adopted callable or, if a written input is aliased, one that writes in order."""

    def __init__(self, written: Sequence[int], in_order: Callable[[], Run]) -> None:
        """
        Args:
            written: the indices of the inputs that are written to.
            in_order: makes the callable that runs if memory is shared.
        """
        self._written = [*written]
        self._make_in_order = in_order
        self._in_order: Run | None = None
        self.run: Run

    def adopt(self, run: Run) -> None:
        self.run = run

    def __call__(self, tensors: list[Tensor]) -> Sequence[Tensor]:
        if not share_memory(tensors, self._written):
            # Inductor's code clears the list, and writes without bumping versions.
            written = [tensors[i] for i in self._written if not tensors[i].is_inference()]
            results = self.run(tensors)
            torch.autograd.graph.increment_version(written)
            return results
        if self._in_order is None:
            self._in_order = self._make_in_order()
        return self._in_order(tensors)


def share_memory(tensors: Sequence[Tensor], written: Iterable[int]) -> bool:
    """Whether a written input shares memory with another one."""
    memory = [tensor.untyped_storage().data_ptr() for tensor in tensors]
    return any(memory.count(memory[i]) > 1 for i in written if i < len(memory) and memory[i])
