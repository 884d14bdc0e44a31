"""custom_vmap: a function with a batching rule of its own."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from torch import Tensor

from torchlayers.autograd_function.batched_call import BatchedCall, Dims
from torchlayers.autograd_function.custom_derivatives.declaration import bind
from torchlayers.autograd_function.vmap_rule import leaves_with_dims
from torchlayers.core import pytree, tracing_state
from torchlayers.core.annotations import P, R
from torchlayers.core.errors import FunctionError, RuleError
from torchlayers.core.function_checks import check_function

Rule = TypeVar("Rule", bound=Callable[..., Any])


class custom_vmap(Generic[P, R]):
    """A function with its own batching rule, which :func:`vmap` calls instead of the function.

    The rule sees each vmap by itself, so nested vmaps call it once each. Other transforms go
    through the function, and under a vmap through the rule: a derivative is that of the rule, in
    forward and reverse mode, to any order. jet, laplacian and layers in Python, inside a vmap, go
    through the function. Captured tensors do not reach the rule: pass them as arguments.

    Args:
        fun: takes and returns tensors and pytrees of tensors.
    Raises:
        RuleError: there is no rule when the function is called.
        FunctionError: the rule returned no pair, or out_dims that do not match its outputs.
        CallError: the arguments do not match the function's signature, or are by keyword only.
    Example:
        >>> @torchlayers.custom_vmap
        ... def solve(a, b):
        ...     return torch.linalg.solve(a, b)
        >>> @solve.def_vmap
        ... def solve_vmap(batch_size, in_dims, a, b):
        ...     if in_dims == (None, 0):  # one matrix: one factorization for all samples
        ...         return torch.linalg.solve(a, b.T).T, 0
        ...     a = a if in_dims[0] == 0 else a.expand(batch_size, *a.shape)
        ...     b = b if in_dims[1] == 0 else b.expand(batch_size, *b.shape)
        ...     return torch.linalg.solve(a, b), 0
        >>> b = torch.tensor([[2.0, 4.0], [6.0, 8.0]])
        >>> torchlayers.vmap(solve, (None, 0))(2 * torch.eye(2), b)
        tensor([[1., 2.],
                [3., 4.]])

    Source: jax.custom_batching.custom_vmap.
    """

    _rule: Callable[..., Any] | None = None

    def __init__(self, fun: Callable[P, R]) -> None:
        check_function("custom_vmap", "fun", fun)
        self.fun = fun
        functools.update_wrapper(self, fun)

    def def_vmap(self, rule: Rule) -> Rule:
        """Sets the rule, and returns it.

        Args:
            rule: ``rule(batch_size, in_dims, *args)`` returns ``(output, out_dims)``. args are
                those of the function, with all samples along the first dimension of some tensors.
                in_dims has the structure of args, with 0 for such tensors and None for what the
                samples share. out_dims is an int, None, or a pytree of these that matches the
                output, or a prefix of it.
        Example:
            >>> @torchlayers.custom_vmap
            ... def total(x):
            ...     return x.sum()
            >>> @total.def_vmap
            ... def total_vmap(batch_size, in_dims, x):
            ...     print(batch_size, in_dims, x.shape)
            ...     return x.flatten(1).sum(1), 0
            >>> torchlayers.vmap(total)(torch.ones(2, 3))
            2 (0,) torch.Size([2, 3])
            tensor([3., 3.])
        """
        self._rule = rule
        return rule

    @tracing_state.skipped_while_tracing
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        name = pytree.name_of(self.fun)
        if self._rule is None:
            raise RuleError(
                f"torchlayers: custom_vmap: {name} has no rule. Define one with @{name}.def_vmap."
            )
        leaves = pytree.TensorLeaves(bind("custom_vmap", self.fun, args, kwargs))
        tensors, leaves.tensors = leaves.tensors, []
        call = _Call(name, self.fun, self._rule, leaves)
        results = call(tensors)
        return call.output.put_in(results)  # type: ignore[no-any-return]


class _Call(BatchedCall):
    """A call of a custom_vmap."""

    output: pytree.TensorLeaves

    def __init__(
        self,
        name: str,
        fun: Callable[..., Any],
        rule: Callable[..., Any],
        leaves: pytree.TensorLeaves,
    ) -> None:
        self._name, self._fun, self._rule, self._leaves = name, fun, rule, leaves

    def run(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return self._take(self._fun(*self._leaves.put_in(tensors)))

    def _take(self, output: Any) -> list[Tensor]:
        """Returns the tensors of an output, and keeps the rest of it."""
        self.output = pytree.TensorLeaves(output)
        tensors, self.output.tensors = self.output.tensors, []
        return tensors

    def run_batch(
        self, size: int, dims: Dims, tensors: Sequence[Tensor]
    ) -> tuple[list[Tensor], Dims]:
        in_dims = self._in_dims(dims)
        pair = self._rule(size, in_dims, *self._leaves.put_in(tensors))
        where = f"torchlayers: custom_vmap: the rule of {self._name}"
        if not (isinstance(pair, (tuple, list)) and len(pair) == 2):
            raise FunctionError(
                f"{where} must return (output, out_dims), got {type(pair).__name__}."
            )
        output, out_dims = pair
        leaves, flat = leaves_with_dims(where, output, out_dims)
        pairs = [(x, dim) for x, dim in zip(leaves, flat, strict=True) if isinstance(x, Tensor)]
        for x, dim in pairs:
            if dim is not None and not _is_dim(x, dim, size):
                raise FunctionError(
                    f"{where} returned an output of shape {tuple(x.shape)} with out_dim {dim!r}: "
                    f"that must be None, or a dimension of the size of the batch, {size}."
                )
        return self._take(output), [dim for _, dim in pairs]

    def _in_dims(self, dims: Dims) -> Any:
        """Puts the dimensions in the places of the tensors, and None in those of other leaves."""
        rest = iter(dims)
        spec, constants = self._leaves.spec, self._leaves.constants
        places = range(spec.num_leaves)
        return pytree.unflatten([None if i in constants else next(rest) for i in places], spec)


def _is_dim(x: Tensor, dim: Any, size: int) -> bool:
    return isinstance(dim, int) and -x.dim() <= dim < x.dim() and x.shape[dim] == size
