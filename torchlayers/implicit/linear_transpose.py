"""linear_transpose: the transpose of a linear function."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchlayers.core import pytree
from torchlayers.core.errors import NotTensorError
from torchlayers.core.function_checks import require_function
from torchlayers.transforms.vjp import vjp


def linear_transpose(func: Callable[..., Any], *like: Any) -> Callable[[Any], Any]:
    """The transpose of a linear function.

    Args:
        func: a linear function of tensors or pytrees of tensors, that returns a pytree of tensors.
            Whether it is linear is not checked.
        like: examples of its arguments, of which only structure, shapes, dtypes and devices are
            used. (Their values may be anything; meta tensors are not possible.)
    Returns:
        A function that takes a pytree like func's result, and returns a tuple with one entry for
        each argument. For complex tensors it is the transpose, not the adjoint: nothing is
        conjugated.
    Raises:
        NotTensorError: an example holds something other than tensors.
        The errors of :func:`torchlayers.vjp`.
    Example:
        >>> A = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
        >>> transposed = linear_transpose(lambda x: A @ x, torch.zeros(2))
        >>> transposed(torch.tensor([1.0, 0.0, 0.0]))
        (tensor([1., 2.]),)

    Source: jax.linear_transpose.
    """
    require_function(func)
    for i, leaf in enumerate(pytree.leaves(like)):
        if not isinstance(leaf, Tensor):
            raise NotTensorError(
                f"torchlayers: linear_transpose: {pytree.leaf_name('example', like, i)} must be a "
                f"tensor, got {type(leaf).__name__}. Bind other arguments beforehand."
            )

    def transposed(cotangents: Any) -> Any:
        zeros = pytree.map_tensors(torch.zeros_like, like)
        _, pull = vjp(func, *zeros)
        return pytree.map_tensors(_conj, pull(pytree.map_tensors(_conj, cotangents)))

    return transposed


def _conj(x: Tensor) -> Tensor:
    return x.conj().resolve_conj() if x.is_complex() else x
