"""What a call does besides writing numbers to its inputs.

A recording computes tensors. That an input then has another memory (``.data``) or another
``.grad``, that it requires grad or an attribute has another value, is done around each run.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from torchlayers.compiler.capture.optimizers import Stepped
from torchlayers.compiler.capture.python_mutations import Change
from torchlayers.compiler.capture.signature import Like, like

Run = Callable[[list[Tensor]], Sequence[Tensor]]


class Effects(NamedTuple):
    """By the places of inputs; what is computed is one of the graph's outputs, by its index."""

    data: dict[int, int]  # x.data = what is computed
    grad: dict[int, int | None]  # x.grad = what is computed, or None
    requires_grad: dict[int, bool]
    grads_read: dict[int, int | None]  # the input that x.grad is, or None where there was none
    attributes: list[tuple[dict[str, Any], str, int]]  # an object's, a name, what is computed
    leaves: list[int]  # results that require grad though nothing that they are made of does
    changes: list[Change]  # of Python
    stepped: list[Stepped]  # whose learning rates are inputs

    @classmethod
    def none(cls) -> "Effects":
        return cls({}, {}, {}, {}, [], [], [], [])

    @property
    def computed(self) -> set[int]:
        """The outputs that these need."""
        put = (source for *_, source in self.attributes)
        return {i for i in (*self.data.values(), *self.grad.values(), *put) if i is not None}

    def of_run(self, run: Run) -> Run:
        """The same, which does this, too."""
        if not any(self):
            return run

        def call(tensors: list[Tensor]) -> Sequence[Tensor]:
            for place, required in self.requires_grad.items():
                if required:  # what is computed of it requires grad as well
                    tensors[place].requires_grad_()
            for stepped in self.stepped:
                stepped.read_rates()
            computed = run(self._with_grads([*tensors]))
            self._apply(tensors, computed)
            return computed

        return call

    def _with_grads(self, tensors: list[Tensor]) -> list[Tensor]:
        """Gradients are those that the inputs have now."""
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
        for holder, name, source in self.attributes:
            holder[name] = computed[source]
        for index in self.leaves:
            computed[index].requires_grad_()
        for change in self.changes:
            change.again()

    def grads_like(self, tensors: Sequence[Tensor]) -> dict[int, Like | None]:
        """What the gradients are that are read, of inputs."""
        return {place: grad_like(tensors[place]) for place in self.grads_read}


def grad_like(tensor: Tensor) -> Like | None:
    gradient = tensor.grad if tensor.is_leaf else None
    return None if gradient is None else like(gradient)
