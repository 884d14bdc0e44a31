"""Hessian-vector products, forward over reverse."""

from collections.abc import Callable
from typing import Any

from torchlayers.errors import StructureError
from torchlayers.grad import grad
from torchlayers.jvp import jvp


def hvp(
    func: Callable[..., Any],
    primals: tuple[Any, ...],
    tangents: tuple[Any, ...],
    *,
    has_aux: bool = False,
) -> Any:
    """Hessian-vector product: the derivative of func's gradient along the tangents.

    It costs a few times func's gradient, however many elements the primals have, and never
    makes the Hessian.

    Args:
        func: takes the primals; returns a real tensor without dimensions, or ``(that, aux)``
            with has_aux.
        primals: a tuple of tensors or pytrees of tensors: func's positional arguments.
        tangents: the vector, of the primals' structure, shapes and dtypes.
        has_aux: func returns a second value, which is passed through.
    Returns:
        The Hessian of func at the primals times the tangents: a tuple of the primals'
        structure, shapes and dtypes; with has_aux ``(that, aux)``.
    Raises:
        What :func:`grad` and :func:`jvp` raise.
    Example:
        >>> hvp(lambda x: (x**3).sum(), (torch.tensor([1.0, 2.0]),), (torch.tensor([1.0, 0.0]),))
        (tensor([6., 0.]),)

    Source: Pearlmutter, "Fast exact multiplication by the Hessian" (1994).
    """
    if not isinstance(primals, tuple):
        raise StructureError(
            "torchlayers: hvp: primals must be a tuple, so that func(*primals) can be called; "
            f"got {type(primals).__name__}. For one argument write (x,)."
        )
    gradient = grad(func, argnums=tuple(range(len(primals))), has_aux=has_aux)
    _, product, *aux = jvp(gradient, primals, tangents, has_aux=has_aux)
    return (product, *aux) if has_aux else product
