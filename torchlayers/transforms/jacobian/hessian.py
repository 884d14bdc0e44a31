"""hessian: forward over reverse mode."""

# The last overload of each is for lambdas inside of another transform, as in grad.py.
# mypy: disable-error-code="overload-cannot-match"

from collections.abc import Callable
from functools import partial
from typing import Any, Concatenate, Literal, overload

from torch import Tensor
from typing_extensions import Unpack

from torchlayers.core import torch_func, tracing_state
from torchlayers.core.annotations import A, P, Transformed
from torchlayers.core.argnums import Argnums, are_numbers, by_names
from torchlayers.core.layer_stack import transformed
from torchlayers.transforms import jvp_by_double_vjp
from torchlayers.transforms.batching_options import BatchingOptions
from torchlayers.transforms.jacobian.forward import forward_jacobian
from torchlayers.transforms.jacobian.options import JacobianOptions, read_options, with_options
from torchlayers.transforms.jacobian.reverse import reverse_jacobian
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
    func: Callable[..., Any],
    argnums: Argnums = 0,
    **options: Unpack[JacobianOptions],
) -> Any: ...
@with_options(JacobianOptions)
def hessian(
    func: Callable[..., Any],
    argnums: Argnums = 0,
    **options: Unpack[JacobianOptions],
) -> Callable[..., Any]:
    """Hessian by forward over reverse mode: ``jacfwd(jacrev(func))``.

    Args:
        func, argnums: as for :func:`jacrev`.
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
        With sparse, a matrix of shape ``(elements of I, elements of I)``, or tuples of those.
    Raises:
        The errors of :func:`jacfwd` and :func:`jacrev`.
    Example:
        >>> hessian(lambda x: (x**3).sum())(torch.tensor([1.0, 2.0]))
        tensor([[ 6.,  0.],
                [ 0., 12.]])

    Source: torch.func.hessian; forward over reverse as in Griewank and Walther, "Evaluating
        Derivatives" (2008), chapter 5.
    """
    batching, sparse, layout, _ = read_options(hessian, options)
    of_func, batching = batching.split_budget("hessian")
    if sparse is not None:
        return sparse_hessian(func, argnums, sparse, layout, batching, of_func)
    batching.refuse_check("hessian")
    return _hessian(batching, of_func, func, argnums)


def _hessian(
    options: BatchingOptions,
    memory_budget: int | float | None,
    func: Callable[..., Any],
    argnums: Argnums,
) -> Callable[..., Any]:
    if not are_numbers(argnums):
        return by_names("hessian", partial(_hessian, options, memory_budget), func, argnums)
    gradient = reverse_jacobian(
        "hessian", BatchingOptions(), memory_budget, False, False, func, argnums
    )
    forward_over_reverse = forward_jacobian("hessian", options, False, "error", gradient, argnums)

    def wrapper(*args: Any) -> Any:
        if tracing_state.is_tracing():
            tracing_state.refuse_strict_export("hessian")
            options.refuse_while_tracing("hessian", any_chunks=True)
            gradients = torch_func.jacrev(func, argnums)
            torch_hessian = jvp_by_double_vjp.jacfwd(gradients, argnums, False, "error")
            return tracing_state.run_unless_traced(
                torch_hessian, lambda: forward_over_reverse, *args
            )
        return forward_over_reverse(*args)

    return transformed(func, wrapper)
