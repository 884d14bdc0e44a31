"""hessian: forward over reverse mode, or in the mode that costs least."""

# The last overload of each is for lambdas inside of another transform, as in grad.py.
# mypy: disable-error-code="overload-cannot-match"

from collections.abc import Callable
from typing import Any, Concatenate, Literal, overload

from torch import Tensor
from typing_extensions import Unpack

from torchlayers.compiler.jacobian.derivative import (
    JacobianFunction,
    Mode,
    check_options,
    derivative_in_mode,
)
from torchlayers.compiler.jacobian.differentiated import HessianOf, dense_hessian
from torchlayers.core.annotations import A, P, Transformed
from torchlayers.core.argnums import Argnums
from torchlayers.core.function_checks import check_function
from torchlayers.transforms.jacobian.options import JacobianOptions, read_options, with_options
from torchlayers.transforms.sparse.derivatives import sparse_hessian


@overload
def hessian(
    func: Callable[Concatenate[Tensor, P], Tensor],
    argnums: Literal[0] = 0,
    **options: Unpack[JacobianOptions],
) -> Callable[Concatenate[Tensor, P], Tensor]: ...
@overload
def hessian(
    func: Callable[Concatenate[A, Tensor, P], Tensor],
    argnums: Literal[1],
    **options: Unpack[JacobianOptions],
) -> Callable[Concatenate[A, Tensor, P], Tensor]: ...
@overload
def hessian(
    func: Callable[Concatenate[Tensor, Tensor, P], Tensor],
    argnums: tuple[Literal[0], Literal[1]],
    **options: Unpack[JacobianOptions],
) -> Callable[
    Concatenate[Tensor, Tensor, P], tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]
]: ...
@overload
def hessian(
    func: Callable[P, Any],
    argnums: Argnums = 0,
    **options: Unpack[JacobianOptions],
) -> Transformed[P, Any]: ...
@overload
def hessian(
    func: Callable[Concatenate[Tensor, P], Tensor],
    argnums: Literal[0] = 0,
    *,
    mode: Mode,
    memory_budget: int | None = None,
) -> JacobianFunction[Concatenate[Tensor, P], Tensor]: ...
@overload
def hessian(
    func: Callable[P, Any],
    argnums: Argnums = 0,
    *,
    mode: Mode,
    memory_budget: int | None = None,
) -> JacobianFunction[P, Any]: ...
@overload
def hessian(
    func: Callable[..., Any],
    argnums: Argnums = 0,
    *,
    mode: Mode,
    memory_budget: int | None = None,
) -> Any: ...
@overload
def hessian(
    func: Callable[..., Any],
    argnums: Argnums = 0,
    **options: Unpack[JacobianOptions],
) -> Any: ...
@with_options(JacobianOptions)
def hessian(
    func: Callable[..., Any],
    argnums: Argnums = 0,
    *,
    mode: Mode | None = None,
    **options: Unpack[JacobianOptions],
) -> Any:
    """Hessian by forward over reverse mode, ``jacfwd(jacrev(func))``, or as ``mode`` says.

    Args:
        func, argnums: as for :func:`jacrev`.
        mode: None, for forward over reverse mode with the options below. Or, with no other option
            than memory_budget, "auto" for the mode that costs least, chosen as by
            :func:`jacobian`; "forward" for forward over reverse; "reverse" for reverse over
            reverse, which needs no jvp of func's operators; "sparse" for ``sparse=True,
            layout="dense"``. memory_budget is then only for mode="auto", in bytes, as for
            :func:`jacobian`.
        chunk_size: how many columns of the Hessian to compute at a time, to save memory: an int,
            None for all at once, or "auto" for as many as the memory budget allows.
        memory_budget, progress: as for :func:`jacrev`.
        mesh, out, check: as for :func:`jacfwd`.
        sparse, layout: as for :func:`jacrev`, by one Hessian-vector product for each color of a
            star coloring, or of the given one ("star", "acyclic" or "columns"). The output must be
            a scalar.
    Returns:
        A function with func's arguments. For an output of shape O and one chosen argument of
        shape I the Hessian has shape ``(*O, *I, *I)``; with argnums a tuple, a tuple of tuples.
        With sparse, a matrix of shape ``(elements of I, elements of I)``, or tuples of those. With
        a mode, the function has a method ``report()``, which says what was chosen, and why; inside
        torch.compile and torch.export the mode "auto" is forward over reverse.
    Raises:
        ValueError: mode is none of these, or is combined with an option other than memory_budget;
            or that is not positive.
        The errors of :func:`jacfwd` and :func:`jacrev`.
    Example:
        >>> hessian(lambda x: (x**3).sum())(torch.tensor([1.0, 2.0]))
        tensor([[ 6.,  0.],
                [ 0., 12.]])
        >>> f = hessian(lambda x: (x[1:] * x[:-1]).square().sum(), mode="auto")
        >>> f(torch.ones(1000)).shape
        torch.Size([1000, 1000])
        >>> f.report().signatures[0].mode
        'sparse'

    Source: torch.func.hessian; forward over reverse as in Griewank and Walther, "Evaluating
        Derivatives" (2008), chapter 5.
    """
    if mode is not None:
        return _in_mode(mode, func, argnums, **options)
    batching, sparse, layout, _ = read_options(hessian, options)
    of_func, batching = batching.split_budget("hessian")
    if sparse is not None:
        return sparse_hessian(func, argnums, sparse, layout, batching, of_func)
    batching.refuse_check("hessian")
    return dense_hessian(batching, of_func, func, argnums)


def _in_mode(
    mode: Mode,
    func: Callable[..., Any],
    argnums: Argnums,
    memory_budget: Any = None,
    **others: Any,
) -> Any:
    check_function("hessian", "func", func)
    check_options("hessian", mode, memory_budget)
    if others:
        read_options(hessian, others)  # refuses names that are no options
        name, value = next(iter(others.items()))
        raise ValueError(
            f"torchlayers: hessian: {name}={value!r} and mode={mode!r} can't be combined. Leave "
            "one of them out: without mode, the Hessian is forward over reverse, and takes the "
            "options of jacfwd."
        )
    return derivative_in_mode("hessian", HessianOf, mode, memory_budget, func, argnums)
