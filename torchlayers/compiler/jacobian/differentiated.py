"""A function whose Jacobian or Hessian is chosen a mode: the derivative in each of them."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

from torchlayers.core import torch_func, tracing_state
from torchlayers.core.argnums import Argnums, are_numbers, by_names
from torchlayers.core.layer_stack import transformed
from torchlayers.transforms import jvp_by_double_vjp
from torchlayers.transforms.batching_options import BatchingOptions
from torchlayers.transforms.chunking import ChunkSize
from torchlayers.transforms.jacobian.forward import forward_jacobian
from torchlayers.transforms.jacobian.reverse import reverse_jacobian
from torchlayers.transforms.sparse.coloring import Coloring, Mode
from torchlayers.transforms.sparse.derivatives import sparse_hessian, sparse_jacobian
from torchlayers.transforms.sparse.detection import detect_hessian, detect_jacobian
from torchlayers.transforms.sparse.pattern import SparsityPattern


@dataclass(frozen=True)
class DifferentiatedFunction:
    """A function with the arguments that it is differentiated with respect to.

    Attributes:
        func, argnums, has_aux: as for :func:`torchlayers.jacobian`, argnums without names.
        api: the name of the transform.
        coloring_mode: how a sparsity pattern is coloured.
        while_tracing: the mode inside torch.compile and torch.export.
    """

    func: Callable[..., Any]
    argnums: int | tuple[int, ...]
    has_aux: bool = False

    api: ClassVar[str]
    coloring_mode: ClassVar[Any]
    while_tracing: ClassVar[str]

    @property
    def key(self) -> tuple[Any, ...]:
        """All but the function, for which decisions are kept elsewhere."""
        return self.api, self.argnums, self.has_aux

    def with_function(self, func: Callable[..., Any]) -> "DifferentiatedFunction":
        return replace(self, func=func)

    def in_mode(self, mode: str, chunk_size: ChunkSize = None) -> Callable[..., Any]:
        """The derivative in "forward", "reverse" or "sparse" mode."""
        if mode == "sparse":
            return self.sparse(True, chunk_size)
        return (self.forward if mode == "forward" else self.reverse)(chunk_size)

    @abstractmethod
    def forward(self, chunk_size: ChunkSize = None) -> Callable[..., Any]: ...

    @abstractmethod
    def reverse(self, chunk_size: ChunkSize = None) -> Callable[..., Any]: ...

    @abstractmethod
    def sparse(self, sparse: Coloring | bool, chunk_size: ChunkSize = None) -> Callable[..., Any]:
        """The dense derivative by a colouring, or by a pattern that is detected."""

    @abstractmethod
    def detect_pattern(self, args: tuple[Any, ...]) -> SparsityPattern: ...

    @abstractmethod
    def rows(self, outputs: int, inputs: int) -> int:
        """The rows of the derivative, for these numbers of elements; its columns are the inputs."""

    @abstractmethod
    def reason_against_sparse(self, outputs: int) -> str:
        """Why the sparse mode does not have this derivative; empty if it has."""

    @abstractmethod
    def mode_by_sizes(self, outputs: int, inputs: int) -> str:
        """The mode where nothing can be counted."""


class JacobianOf(DifferentiatedFunction):
    """A function whose Jacobian is asked for."""

    api = "jacobian"
    coloring_mode: ClassVar[Mode | str] = "auto"
    while_tracing = "reverse"

    def forward(self, chunk_size: ChunkSize = None) -> Callable[..., Any]:
        options = BatchingOptions(chunk_size)
        return forward_jacobian(self.api, options, self.has_aux, "error", self.func, self.argnums)

    def reverse(self, chunk_size: ChunkSize = None) -> Callable[..., Any]:
        options = BatchingOptions(chunk_size)
        return reverse_jacobian(
            self.api, options, None, self.has_aux, False, self.func, self.argnums
        )

    def sparse(self, sparse: Coloring | bool, chunk_size: ChunkSize = None) -> Callable[..., Any]:
        options = BatchingOptions(chunk_size)
        return sparse_jacobian(
            self.api, self.func, self.argnums, sparse, "dense", options, has_aux=self.has_aux
        )

    def detect_pattern(self, args: tuple[Any, ...]) -> SparsityPattern:
        return detect_jacobian(self.func, args, self.argnums, has_aux=self.has_aux, api=self.api)

    def rows(self, outputs: int, inputs: int) -> int:
        return outputs

    def reason_against_sparse(self, outputs: int) -> str:
        return ""

    def mode_by_sizes(self, outputs: int, inputs: int) -> str:
        return "forward" if inputs < outputs else "reverse"


class HessianOf(DifferentiatedFunction):
    """A function whose Hessian is asked for: the Jacobian of its gradient."""

    api = "hessian"
    coloring_mode: ClassVar[Mode | str] = "star"
    while_tracing = "forward"

    def forward(self, chunk_size: ChunkSize = None) -> Callable[..., Any]:
        return dense_hessian(BatchingOptions(chunk_size), None, self.func, self.argnums)

    def reverse(self, chunk_size: ChunkSize = None) -> Callable[..., Any]:
        gradient = _gradient(None, self.func, self.argnums)
        options = BatchingOptions(chunk_size)
        return reverse_jacobian(self.api, options, None, False, False, gradient, self.argnums)

    def sparse(self, sparse: Coloring | bool, chunk_size: ChunkSize = None) -> Callable[..., Any]:
        options = BatchingOptions(chunk_size)
        return sparse_hessian(self.func, self.argnums, sparse, "dense", options, None)

    def detect_pattern(self, args: tuple[Any, ...]) -> SparsityPattern:
        return detect_hessian(self.func, args, self.argnums, api=self.api)

    def rows(self, outputs: int, inputs: int) -> int:
        return outputs * inputs

    def reason_against_sparse(self, outputs: int) -> str:
        return "" if outputs == 1 else f"the output has {outputs} elements"

    def mode_by_sizes(self, outputs: int, inputs: int) -> str:
        return "reverse"  # as many products, and any function that has a gradient has a second one


def dense_hessian(
    options: BatchingOptions,
    memory_budget: int | float | None,
    func: Callable[..., Any],
    argnums: Argnums,
) -> Callable[..., Any]:
    """The Hessian by forward over reverse mode, with all options of hessian but sparse."""
    api = "hessian"
    if not are_numbers(argnums):
        return by_names(api, partial(dense_hessian, options, memory_budget), func, argnums)
    gradient = _gradient(memory_budget, func, argnums)
    forward_over_reverse = forward_jacobian(api, options, False, "error", gradient, argnums)

    def wrapper(*args: Any) -> Any:
        if tracing_state.is_tracing():
            tracing_state.refuse_strict_export(api)
            options.refuse_while_tracing(api, any_chunks=True)
            gradients = torch_func.jacrev(func, argnums)
            torch_hessian = jvp_by_double_vjp.jacfwd(gradients, argnums, False, "error")
            return tracing_state.run_unless_traced(
                torch_hessian, lambda: forward_over_reverse, *args
            )
        return forward_over_reverse(*args)

    return transformed(func, wrapper)


def _gradient(
    memory_budget: int | float | None, func: Callable[..., Any], argnums: Argnums
) -> Callable[..., Any]:
    """The gradient of each output."""
    return reverse_jacobian(
        "hessian", BatchingOptions(), memory_budget, False, False, func, argnums
    )
