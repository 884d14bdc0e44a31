"""Side effects of a call, other than in-place writes to its inputs.

A captured graph only computes tensors. Changes to an input's memory (``.data``), to its ``.grad``,
to whether it requires grad, and to Python's state are made around each run of the graph.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from torch import Tensor

from torchlayers.compiler.capture.signature import TensorMetadata, tensor_metadata
from torchlayers.compiler.capture.state.python_writes import PythonWrites

Run = Callable[[list[Tensor]], Sequence[Tensor]]


class SideEffects(NamedTuple):
    """Side effects by index of the input; computed values are indices of the graph's outputs."""

    data: dict[int, int]  # x.data = a computed value
    grad: dict[int, int | None]  # x.grad = a computed value, or None
    requires_grad: dict[int, bool]
    grads_read: dict[int, int | None]  # the index of x.grad among the inputs; None if x had none
    leaves: list[int]  # results that require grad though nothing they are computed from does
    writes: PythonWrites

    @classmethod
    def none(cls) -> "SideEffects":
        return cls({}, {}, {}, {}, [], PythonWrites())

    @property
    def computed(self) -> set[int]:
        """The indices of the outputs that the side effects need."""
        put = self.writes.computed
        return {i for i in (*self.data.values(), *self.grad.values(), *put) if i is not None}

    def of_run(self, run: Run) -> Run:
        """Wraps ``run`` so that it also has these side effects, or none if it raises an error."""
        if not any(self):
            return run
        read, write = self.writes.reader(), self.writes.writer()
        if not any(self._replace(writes=PythonWrites())):

            def only_write(tensors: list[Tensor]) -> Sequence[Tensor]:
                inputs = [*tensors]
                numbers = read(inputs)
                computed = run(inputs)
                write(tensors, computed, numbers)
                return computed

            return only_write

        def call(tensors: list[Tensor]) -> Sequence[Tensor]:
            inputs = [*tensors]
            numbers = read(inputs)
            with self._requiring_grad(tensors):
                computed = run(self.with_grads(inputs))
            self._apply(tensors, computed)
            write(tensors, computed, numbers)
            return computed

        return call

    @contextlib.contextmanager
    def _requiring_grad(self, tensors: Sequence[Tensor]) -> Iterator[None]:
        """Lets inputs require grad before what is computed from them; after an error, as before."""
        changed = [tensors[place] for place, required in self.requires_grad.items() if required]
        changed = [tensor for tensor in changed if not tensor.requires_grad]
        try:
            for tensor in changed:
                tensor.requires_grad_()
            yield
        except BaseException:
            for tensor in changed:
                tensor.requires_grad_(False)
            raise

    def with_grads(self, tensors: list[Tensor]) -> list[Tensor]:
        """Replaces gradients among the inputs by the current ones."""
        for place, of in self.grads_read.items():
            gradient = tensors[place].grad
            if gradient is not None and of is not None:
                tensors[of] = gradient
        return tensors

    def _apply(self, tensors: Sequence[Tensor], computed: Sequence[Tensor]) -> None:
        for place, source in self.data.items():
            tensors[place].data = computed[source]
        for place, required in self.requires_grad.items():
            if not required:
                tensors[place].detach_()
        for place, value in self.grad.items():
            tensors[place].grad = None if value is None else computed[value]
        for index in self.leaves:
            computed[index].requires_grad_()

    def grads_like(self, tensors: Sequence[Tensor]) -> dict[int, TensorMetadata | None]:
        """Returns the metadata of the gradients that are read, by index of the input."""
        return {place: grad_of_layout(tensors[place]) for place in self.grads_read}


def grad_of_layout(tensor: Tensor) -> TensorMetadata | None:
    gradient = tensor.grad if tensor.is_leaf else None
    return None if gradient is None else tensor_metadata(gradient)
