"""jacobian and costs: a Jacobian in the mode that costs least, and what each mode costs."""

# The last overload is for lambdas inside of another transform, as in grad.py.
# mypy: disable-error-code="overload-cannot-match"

from collections.abc import Callable
from functools import partial
from typing import Any, Concatenate, Literal, overload

from torch import Tensor

from torchlayers.compiler.jacobian.decision import decide
from torchlayers.compiler.jacobian.derivative import (
    JacobianFunction,
    Mode,
    check_options,
    derivative_in_mode,
)
from torchlayers.compiler.jacobian.differentiated import JacobianOf
from torchlayers.compiler.jacobian.mode_costs import JacobianCosts
from torchlayers.core.annotations import A, Aux, B, P, R
from torchlayers.core.argnums import Argnums, are_numbers
from torchlayers.core.errors import ArgnumsError
from torchlayers.core.function_checks import check_function

__all__ = ["costs", "jacobian"]


@overload
def jacobian(
    func: Callable[Concatenate[A, P], Tensor],
    argnums: Literal[0] = 0,
    *,
    has_aux: Literal[False] = False,
    mode: Mode = "auto",
    memory_budget: int | None = None,
) -> JacobianFunction[Concatenate[A, P], A]: ...
@overload
def jacobian(
    func: Callable[Concatenate[Tensor, P], R],
    argnums: Literal[0] = 0,
    *,
    has_aux: Literal[False] = False,
    mode: Mode = "auto",
    memory_budget: int | None = None,
) -> JacobianFunction[Concatenate[Tensor, P], R]: ...
@overload
def jacobian(
    func: Callable[Concatenate[A, B, P], Tensor],
    argnums: Literal[1],
    *,
    has_aux: Literal[False] = False,
    mode: Mode = "auto",
    memory_budget: int | None = None,
) -> JacobianFunction[Concatenate[A, B, P], B]: ...
@overload
def jacobian(
    func: Callable[Concatenate[A, B, P], Tensor],
    argnums: tuple[Literal[0], Literal[1]],
    *,
    has_aux: Literal[False] = False,
    mode: Mode = "auto",
    memory_budget: int | None = None,
) -> JacobianFunction[Concatenate[A, B, P], tuple[A, B]]: ...
@overload
def jacobian(
    func: Callable[Concatenate[A, P], tuple[Tensor, Aux]],
    argnums: Literal[0] = 0,
    *,
    has_aux: Literal[True],
    mode: Mode = "auto",
    memory_budget: int | None = None,
) -> JacobianFunction[Concatenate[A, P], tuple[A, Aux]]: ...
@overload
def jacobian(
    func: Callable[P, Any],
    argnums: Argnums = 0,
    *,
    has_aux: bool = False,
    mode: Mode = "auto",
    memory_budget: int | None = None,
) -> JacobianFunction[P, Any]: ...
@overload
def jacobian(
    func: Callable[..., Any],
    argnums: Argnums = 0,
    *,
    has_aux: bool = False,
    mode: Mode = "auto",
    memory_budget: int | None = None,
) -> Any: ...
def jacobian(
    func: Callable[..., Any],
    argnums: Argnums = 0,
    *,
    has_aux: bool = False,
    mode: Mode = "auto",
    memory_budget: int | None = None,
) -> Any:
    """Jacobian in the mode that costs least: forward, reverse or sparse.

    At the first call with arguments of some shapes and dtypes, the Jacobian is captured in each
    mode, as :func:`torchlayers.costs` does it, without computing anything, and the one with the
    least estimate is kept for all such calls. Sparse mode detects the sparsity pattern, for which
    func runs once, and is used where all that the pattern depends on is as it was then: the other
    arguments, the captured tensors and the Python state that func read.

    Args:
        func, argnums, has_aux: as for :func:`jacrev`.
        mode: "auto"; or "forward" for :func:`jacfwd`, "reverse" for :func:`jacrev`, "sparse" for
            ``jacfwd(func, sparse=True, layout="dense")``.
        memory_budget: only with mode="auto": bytes that a call may take besides the arguments, by
            its estimate; if it takes more, the products run in chunks. None for half of the free
            memory of the device.
    Returns:
        A function with func's arguments that returns the dense Jacobian, as :func:`jacrev` does: of
        shape ``(*O, *I)`` for an output of shape O and an argument of shape I, with has_aux
        ``(jacobian, aux)``. Its method ``report()`` says which mode was chosen, and why. Inside
        torch.compile and torch.export the mode is reverse; inside :func:`torchlayers.compile` the
        one with fewer products of forward and reverse, unless one was kept. They also decide where
        func can't be captured.
    Raises:
        ValueError: mode is none of these, or memory_budget is not positive.
        DtypeError, NotTensorError, OutputError, ArgnumsError: as for :func:`jacrev`.
        CallError: func is not a function.
    Example:
        >>> f = torchlayers.jacobian(lambda x: torch.stack([x.sin(), x.cos()]))
        >>> f(torch.tensor(0.0))
        tensor([1., -0.])
        >>> f.report().signatures[0].mode
        'forward'

    Source: the choice by counted costs is ours; the modes are those of Griewank and Walther,
        "Evaluating Derivatives" (2008), chapters 3 and 8.
    """
    check_function("jacobian", "func", func)
    check_options("jacobian", mode, memory_budget)
    build = partial(JacobianOf, has_aux=has_aux)
    return derivative_in_mode("jacobian", build, mode, memory_budget, func, argnums)


def costs(
    f: Callable[..., Any],
    /,
    *args: Any,
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    memory_budget: int | None = None,
) -> JacobianCosts:
    """What the Jacobian of f costs in forward, reverse and sparse mode, without computing it.

    Each mode is captured on tensors without values, and the operators, floating-point operations,
    bytes and peak memory of its graph are counted. For the sparse mode f runs once, to detect the
    pattern.

    Args:
        f: as for :func:`jacobian`.
        args: its arguments; a :class:`ShapeDtypeStruct` may stand for a tensor, and the sparse mode
            is left out then.
        argnums, has_aux, memory_budget: as for :func:`jacobian`; argnums without names.
    Returns:
        A :class:`JacobianCosts`, which prints as a table. It has ``modes``, with the costs of each
        mode or why it is refused; ``mode`` and ``chunk_size``, which :func:`jacobian` would choose;
        and ``why``.
    Raises:
        ValueError: memory_budget is not positive.
        DtypeError, NotTensorError, ArgnumsError: as for :func:`jacrev`.
        CallError: f is not a function.
    Example:
        >>> x = torchlayers.ShapeDtypeStruct((1000,))
        >>> result = torchlayers.costs(lambda x: (x * x).sum(), x)
        >>> result.mode, [mode.products for mode in result.modes[:2]]
        ('reverse', [1000, 1])

    Source: the counts are those of a graph's operators, as in torch.utils.flop_counter.
    """
    check_function("costs", "f", f)
    check_options("costs", "auto", memory_budget)
    if not are_numbers(argnums):
        raise ArgnumsError(
            "torchlayers: costs: argnums must be an int or a tuple of ints, without names. Pass "
            "the chosen entries as an argument of their own."
        )
    return decide(JacobianOf(f, argnums, has_aux), args, memory_budget).costs
