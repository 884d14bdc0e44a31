"""Reverse mode: grad_and_value, which is grad without dropping the value."""

# The last overloads are for lambdas inside of another transform, as in grad.py.
# mypy: disable-error-code="overload-overlap, overload-cannot-match"

from collections.abc import Callable
from typing import Any, Concatenate, Literal, NoReturn, overload

from torch import Tensor
from typing_extensions import Unpack

from torchlayers.core.annotations import A, Aux, B, C, P, Transformed
from torchlayers.core.argnums import Argnums
from torchlayers.core.jax_names import refuse_keywords, without_others
from torchlayers.taps import Names
from torchlayers.transforms.grad import GradOptions, gradient_function


@overload
def grad_and_value(
    func: Callable[Concatenate[A, P], Tensor],
    argnums: Literal[0] = 0,
    has_aux: Literal[False] = False,
    **options: Unpack[GradOptions],
) -> Callable[Concatenate[A, P], tuple[A, Tensor]]: ...
@overload
def grad_and_value(
    func: Callable[Concatenate[A, P], tuple[Tensor, Aux]],
    argnums: Literal[0] = 0,
    *,
    has_aux: Literal[True],
    **options: Unpack[GradOptions],
) -> Callable[Concatenate[A, P], tuple[A, tuple[Tensor, Aux]]]: ...
@overload
def grad_and_value(
    func: Callable[Concatenate[A, B, P], Tensor],
    argnums: Literal[1],
    has_aux: Literal[False] = False,
    **options: Unpack[GradOptions],
) -> Callable[Concatenate[A, B, P], tuple[B, Tensor]]: ...
@overload
def grad_and_value(
    func: Callable[Concatenate[A, B, P], tuple[Tensor, Aux]],
    argnums: Literal[1],
    *,
    has_aux: Literal[True],
    **options: Unpack[GradOptions],
) -> Callable[Concatenate[A, B, P], tuple[B, tuple[Tensor, Aux]]]: ...
@overload
def grad_and_value(
    func: Callable[Concatenate[A, B, P], Tensor],
    argnums: tuple[Literal[0], Literal[1]],
    has_aux: Literal[False] = False,
    **options: Unpack[GradOptions],
) -> Callable[Concatenate[A, B, P], tuple[tuple[A, B], Tensor]]: ...
@overload
def grad_and_value(
    func: Callable[Concatenate[A, B, P], tuple[Tensor, Aux]],
    argnums: tuple[Literal[0], Literal[1]],
    *,
    has_aux: Literal[True],
    **options: Unpack[GradOptions],
) -> Callable[Concatenate[A, B, P], tuple[tuple[A, B], tuple[Tensor, Aux]]]: ...
@overload
def grad_and_value(
    func: Callable[Concatenate[A, B, C, P], Tensor],
    argnums: tuple[Literal[0], Literal[1], Literal[2]],
    has_aux: Literal[False] = False,
    **options: Unpack[GradOptions],
) -> Callable[Concatenate[A, B, C, P], tuple[tuple[A, B, C], Tensor]]: ...
@overload
def grad_and_value(
    func: Callable[P, Tensor],
    argnums: Argnums,
    has_aux: Literal[False] = False,
    **options: Unpack[GradOptions],
) -> Transformed[P, tuple[Any, Tensor]]: ...
@overload
def grad_and_value(
    func: Callable[..., Tensor],
    argnums: Argnums,
    has_aux: Literal[False] = False,
    **options: Unpack[GradOptions],
) -> Any: ...
@overload
def grad_and_value(
    func: Callable[..., Any],
    argnums: Argnums = 0,
    *,
    has_aux: bool,
    taps: Names | None = None,
    **options: Unpack[GradOptions],
) -> Any: ...
@overload
def grad_and_value(
    func: Callable[..., Any],
    argnums: Argnums,
    has_aux: bool,
    *,
    taps: Names | None = None,
    **options: Unpack[GradOptions],
) -> Any: ...
@overload
def grad_and_value(
    func: Callable[P, Any],
    argnums: Argnums = 0,
    has_aux: bool = False,
    *,
    taps: Names | None,
    **options: Unpack[GradOptions],
) -> Transformed[P, Any]: ...
@without_others
def grad_and_value(
    func: Callable[..., Any],
    argnums: Argnums = 0,
    has_aux: bool = False,
    *,
    memory_budget: int | float | None = None,
    taps: Names | None = None,
    **others: NoReturn,
) -> Callable[..., Any]:
    """Gradient of a scalar-valued function together with its value.

    Takes the arguments, and raises the errors, of :func:`grad`.

    Returns:
        A function with func's arguments that returns ``(gradients, value)``; with has_aux
        ``(gradients, (value, aux))``.
    Example:
        >>> grad_and_value(torch.square)(torch.tensor(3.0))
        (tensor(6.), tensor(9.))

    Source: torch.func.grad_and_value.
    """
    if others:
        refuse_keywords(grad_and_value, others)
    return gradient_function("grad_and_value", True, memory_budget, taps, has_aux, func, argnums)
