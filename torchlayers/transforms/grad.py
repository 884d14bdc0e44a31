"""Reverse mode: grad.

It enters a grad layer, wraps the arguments at its level and marks those to differentiate with
respect to; then the function runs, and autograd records it at this level only. The backward pass
runs at once, inside the layer. The implementation is in csrc/python/calls/call_grad.cpp.
"""

# Later overloads of a transform say less of the same functions: Any is their results' type. The
# last ones are for lambdas inside of another transform, which mypy asks for a Callable[..., Any].
# mypy: disable-error-code="overload-overlap, overload-cannot-match"

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Concatenate, Literal, NamedTuple, NoReturn, overload

import torch
from torch import Tensor
from typing_extensions import TypedDict, Unpack

from torchlayers import _C
from torchlayers.core import pytree, torch_func, tracing_state
from torchlayers.core.annotations import A, Aux, B, C, P, Transformed
from torchlayers.core.argnums import Argnums, are_numbers, by_names
from torchlayers.core.errors import (
    DtypeError,
    NotScalarError,
    NotTensorError,
    OutputError,
    instead,
    warn,
)
from torchlayers.core.jax_names import refuse_keywords, without_others
from torchlayers.core.layer_stack import transformed
from torchlayers.remat.budget import budgeted
from torchlayers.taps import Names, with_taps


class GradSpec(NamedTuple):
    """A function and the arguments to differentiate it with respect to.

    The call is in C++, which reads the fields, and calls a method when an error has to be raised.
    """

    api: str
    func: Callable[..., Any]
    argnums: int | tuple[int, ...] | None  # None for all arguments
    has_aux: bool

    def refuse_arguments(self, args: tuple[Any, ...], places: Sequence[int]) -> None:
        for i, leaf in enumerate(pytree.leaves(pytree.pick(args, places))):
            if isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex()):
                continue
            name = pytree.leaf_name("argument", args, i, places)
            if isinstance(leaf, torch.nn.Module):
                raise NotTensorError(
                    f"torchlayers: {self.api}: {name} must be a tensor to be differentiated, got a "
                    f"module ({type(leaf).__name__}). Take its parameters as an argument: apply, "
                    "params, buffers = torchlayers.functional(module)."
                )
            if not isinstance(leaf, Tensor):
                raise NotTensorError(
                    f"torchlayers: {self.api}: {name} must be a tensor to be differentiated, got "
                    f"{type(leaf).__name__} ({leaf!r}). Convert it to a tensor, or "
                    f"{instead(self.api)}."
                )
            raise DtypeError(
                f"torchlayers: {self.api}: can't differentiate with respect to {name}, of dtype "
                f"{leaf.dtype}: only floating-point and complex tensors have gradients. Convert "
                f"it, or {instead(self.api)}."
            )

    def refuse_value(self, value: Any) -> NoReturn:
        must = f"torchlayers: {self.api}: {pytree.name_of(self.func)} must return a"
        if isinstance(value, (int, float, complex)):
            raise NotScalarError(
                f"{must} scalar tensor (no dimensions), got {type(value).__name__}. A Python "
                "number has no derivative: return the tensor, without .item() or float()."
            )
        if not isinstance(value, Tensor):
            raise NotScalarError(
                f"{must} scalar tensor (no dimensions), got {type(value).__name__}. With "
                "has_aux=True it may return (tensor, anything)."
            )
        if value.dim() != 0:
            raise NotScalarError(
                f"{must} scalar tensor (no dimensions), got shape {tuple(value.shape)}. Sum or "
                "average it, or use vjp or jacrev."
            )
        raise NotScalarError(f"{must} real tensor, got {value.dtype}. Take .real or .abs().")

    def warn_of_zeros(self, operator: str) -> None:
        warn(
            f"torchlayers: {self.api}: the gradients of {pytree.name_of(self.func)} are zeros: its "
            "result depends on the arguments by no operator that has a derivative, and "
            f"{operator} has none. Use a smooth function instead (softmax for argmax); if zeros "
            "are intended, call the operator with x.detach()."
        )

    def refuse_outputs(self, output: Any) -> None:
        outputs = pytree.leaves(output)
        pytree.check_outputs(self.api, outputs)
        for leaf in outputs:
            if not (leaf.is_floating_point() or leaf.is_complex()):
                raise OutputError(
                    f"torchlayers: {self.api}: All outputs of f must be floating-point or complex "
                    f"Tensors, got Tensor with dtype {leaf.dtype}. Return it as aux with "
                    "has_aux=True."
                )


class GradOptions(TypedDict, total=False, closed=True):
    """The options of grad that leave the types of its results as they are."""

    memory_budget: int | float | None


@overload
def grad(
    func: Callable[Concatenate[A, P], Tensor],
    argnums: Literal[0] = 0,
    has_aux: Literal[False] = False,
    **options: Unpack[GradOptions],
) -> Callable[Concatenate[A, P], A]: ...
@overload
def grad(
    func: Callable[Concatenate[A, P], tuple[Tensor, Aux]],
    argnums: Literal[0] = 0,
    *,
    has_aux: Literal[True],
    **options: Unpack[GradOptions],
) -> Callable[Concatenate[A, P], tuple[A, Aux]]: ...
@overload
def grad(
    func: Callable[Concatenate[A, B, P], Tensor],
    argnums: Literal[1],
    has_aux: Literal[False] = False,
    **options: Unpack[GradOptions],
) -> Callable[Concatenate[A, B, P], B]: ...
@overload
def grad(
    func: Callable[Concatenate[A, B, P], tuple[Tensor, Aux]],
    argnums: Literal[1],
    *,
    has_aux: Literal[True],
    **options: Unpack[GradOptions],
) -> Callable[Concatenate[A, B, P], tuple[B, Aux]]: ...
@overload
def grad(
    func: Callable[Concatenate[A, B, P], Tensor],
    argnums: tuple[Literal[0], Literal[1]],
    has_aux: Literal[False] = False,
    **options: Unpack[GradOptions],
) -> Callable[Concatenate[A, B, P], tuple[A, B]]: ...
@overload
def grad(
    func: Callable[Concatenate[A, B, P], tuple[Tensor, Aux]],
    argnums: tuple[Literal[0], Literal[1]],
    *,
    has_aux: Literal[True],
    **options: Unpack[GradOptions],
) -> Callable[Concatenate[A, B, P], tuple[tuple[A, B], Aux]]: ...
@overload
def grad(
    func: Callable[Concatenate[A, B, C, P], Tensor],
    argnums: tuple[Literal[0], Literal[1], Literal[2]],
    has_aux: Literal[False] = False,
    **options: Unpack[GradOptions],
) -> Callable[Concatenate[A, B, C, P], tuple[A, B, C]]: ...
@overload
def grad(
    func: Callable[P, Tensor],
    argnums: Argnums,
    has_aux: Literal[False] = False,
    **options: Unpack[GradOptions],
) -> Transformed[P, Any]: ...
@overload
def grad(
    func: Callable[..., Tensor],
    argnums: Argnums,
    has_aux: Literal[False] = False,
    **options: Unpack[GradOptions],
) -> Any: ...
@overload
def grad(
    func: Callable[..., Any],
    argnums: Argnums = 0,
    *,
    has_aux: bool,
    taps: Names | None = None,
    **options: Unpack[GradOptions],
) -> Any: ...
@overload
def grad(
    func: Callable[..., Any],
    argnums: Argnums,
    has_aux: bool,
    *,
    taps: Names | None = None,
    **options: Unpack[GradOptions],
) -> Any: ...
@overload
def grad(
    func: Callable[P, Any],
    argnums: Argnums = 0,
    has_aux: bool = False,
    *,
    taps: Names | None,
    **options: Unpack[GradOptions],
) -> Transformed[P, Any]: ...
@without_others
def grad(
    func: Callable[..., Any],
    argnums: Argnums = 0,
    has_aux: bool = False,
    *,
    memory_budget: int | float | None = None,
    taps: Names | None = None,
    **others: NoReturn,
) -> Callable[..., Any]:
    """Gradient of a scalar-valued function.

    Args:
        func: takes tensors and pytrees of tensors; returns a scalar tensor (no dimensions),
            or ``(scalar, aux)`` with has_aux.
        argnums: which positional arguments to differentiate with respect to (negative ints count
            from the end); or which entries of a dict argument: :func:`torchlayers.names`.
        has_aux: func returns a second value, which is passed through.
        taps: names of :func:`torchlayers.tap`, and paths of modules, whose values to
            differentiate with respect to as well.
        memory_budget: a limit on the residuals that func saves for its gradient, together with
            those it recomputes at one time (docs/memory.md): in bytes, or as a fraction, up to
            1.0, of what func saves without a budget.
    Returns:
        A function with func's arguments that returns the gradients, in the structure of
        the chosen arguments, with their shapes and dtypes (a tuple if argnums is a tuple);
        with has_aux ``(gradients, aux)``. An argument that func does not use gets a zero
        gradient. With taps, the result is ``(gradients, {name: gradient})`` instead of
        gradients.
    Raises:
        NotScalarError: func returned something other than a real scalar tensor.
        NotTensorError: a chosen argument holds something other than tensors.
        DtypeError: a chosen tensor is neither floating-point nor complex.
        ArgnumsError: argnums does not match the arguments.
        OutputError: has_aux is set, and func did not return a pair.
        TapError: a name among taps has no value in func, or several.
        MemoryBudgetError: the memory budget is too small. The message gives the minimum.
    Example:
        >>> grad(torch.sin)(torch.tensor(0.0))
        tensor(1.)
        >>> grad(grad(torch.sin))(torch.tensor(0.0))
        tensor(-0.)

    Source: torch.func.grad; reverse accumulation as in Griewank and Walther,
        "Evaluating Derivatives" (2008), chapter 3.
    """
    if others:
        refuse_keywords(grad, others)
    return gradient_function("grad", False, memory_budget, taps, has_aux, func, argnums)


def gradient_function(
    api: str,
    with_value: bool,
    memory_budget: int | float | None,
    taps: Names | None,
    has_aux: bool,
    func: Callable[..., Any],
    argnums: Argnums,
) -> Callable[..., Any]:
    """grad, or grad_and_value if it is with the value."""
    if taps is not None:
        transform = partial(
            gradient_function, api, with_value, None, None, has_aux, argnums=argnums
        )
        within = budgeted(api, func, memory_budget)
        return with_taps(api, transform, within, taps, has_aux or with_value)
    if not are_numbers(argnums):
        transform = partial(gradient_function, api, with_value, memory_budget, None, has_aux)
        return by_names(api, transform, func, argnums)
    spec = GradSpec(api, budgeted(api, func, memory_budget), argnums, has_aux)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if tracing_state.is_tracing():
            tracing_state.refuse_strict_export(api)
            torch_transform = torch_func.grad_and_value if with_value else torch_func.grad
            ours = partial(
                gradient_function, api, with_value, memory_budget, None, has_aux, func, argnums
            )
            traced = torch_transform(func, argnums, has_aux)
            return tracing_state.run_unless_traced(traced, ours, *args, **kwargs)
        gradients, value, aux = _C.call_grad(spec, args, kwargs)
        if with_value:
            return (gradients, (value, aux)) if has_aux else (gradients, value)
        return (gradients, aux) if has_aux else gradients

    return transformed(func, wrapper)


def by_argnums(chosen: tuple[Any, ...], argnums: int | tuple[int, ...]) -> Any:
    """Returns the single gradient if argnums is an int, else the tuple of gradients."""
    return chosen[0] if isinstance(argnums, int) else chosen
