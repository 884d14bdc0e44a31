"""check_grads: derivatives of any order and mode, against finite differences."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchlayers.core import pytree
from torchlayers.core.errors import DtypeError, NotTensorError, OutputError, TransformError
from torchlayers.transforms.testing.derivative_comparison import (
    GradientCheck,
    WrongDerivativeError,
)
from torchlayers.transforms.testing.differentiable import Differentiable, has_derivatives

_MODES = ("fwd", "rev")
_WIDE = {
    torch.float32: torch.float64,
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.complex64: torch.complex128,
    torch.complex32: torch.complex128,
}


def check_grads(
    f: Callable[..., Any],
    args: tuple[Any, ...],
    order: int,
    modes: Sequence[str] | str = _MODES,
    atol: float | None = None,
    rtol: float | None = None,
    eps: float | None = None,
    argnums: int | tuple[int, ...] | None = None,
) -> None:
    """Checks a function's derivatives of every order up to `order`, in forward and reverse mode.

    At each order, jvp and vjp are compared with central differences along random directions, and
    with each other: they have to be transposes. The next order is that of the jvp, as a function of
    primals and tangents, and of the vjp, as a function of primals and cotangents; so order 2 checks
    forward over forward, reverse over forward, forward over reverse and reverse over reverse.

    Args:
        f: takes args; returns a pytree. Its tensors of floating-point and complex dtypes are
            differentiated, its other leaves ignored. It must return the same if it is called again.
        args: pytrees. Their tensors of floating-point and complex dtypes are the point at which f
            is differentiated; all are converted to double precision. Other leaves are constants,
            as is what f captures.
        order: 1 for first derivatives.
        modes: of "fwd" and "rev", those to be checked; both by default.
        atol, rtol: a derivative may differ by ``atol + rtol * |expected|``, and by the rounding
            errors of the differences. By default, both are 1e-6 if f computes in double precision,
            and 1e-2 if some result is in single precision.
        eps: the step of the differences; by default, 1e-3 and, where that fails, 1e-5 (more if f
            computes in lower precision).
        argnums: the positions of the arguments to differentiate; by default, all.
    Raises:
        AssertionError: a derivative is wrong. The message names the order, the modes, the result,
            the leaf of the arguments, the value expected and the value found. Or f returns
            something else when it is called again.
        TransformError: order, modes or eps is invalid, or args is not a tuple.
        ArgnumsError: argnums does not match args.
        NotTensorError: args have nothing to differentiate.
        OutputError: f returns nothing to differentiate, or is infinite or nan in one direction
            and not in the other. Choose a point further inside its domain, or a smaller eps.
        DtypeError: f can't be called in double precision.

    Where f has a kink in the direction taken, any number between the derivatives of its two sides
    is right: ``relu`` at 0 may have the derivative 0 or 1. Where it has a jump, or is infinite or
    nan, there is nothing to compare with. For complex numbers, jvp is the real-linear derivative,
    and vjp its adjoint for the inner product ``Re(sum(conj(a) * b))``. The directions are the same
    at each call, and the global random state is neither read nor changed.

    Example:
        >>> check_grads(lambda x, y: {"z": x.sin() @ y}, (torch.ones(2), torch.ones(2, 3)), order=2)
        >>> class Twice(torch.autograd.Function):
        ...     @staticmethod
        ...     def forward(x):
        ...         return 2 * x
        ...     @staticmethod
        ...     def setup_context(ctx, inputs, output):
        ...         pass
        ...     @staticmethod
        ...     def backward(ctx, cotangent):
        ...         return 3 * cotangent
        >>> check_grads(Twice.apply, (torch.ones(()),), order=1, modes="rev")
        Traceback (most recent call last):
        AssertionError: torchlayers: check_grads: Twice.apply, order 1, mode rev: the cotangent of
        argument 0, times a direction, is wrong: expected -0.904346, got -1.35652 (1.5 times as
        much). They differ by 0.452173, and 1.9e-06 is allowed.

    Source: jax.test_util.check_grads.
    """
    kinds = _checked_modes(modes)
    if not isinstance(order, int) or order < 1:
        raise TransformError(
            f"torchlayers: check_grads: order must be a positive int, got {order!r}."
        )
    if eps is not None and not eps > 0:
        raise TransformError(f"torchlayers: check_grads: eps must be positive, got {eps!r}.")
    if not isinstance(args, tuple):
        raise TransformError(
            "torchlayers: check_grads: args must be the tuple of f's arguments, got "
            f"{type(args).__name__}."
        )
    function, primals = _flatten_function(f, args, argnums)
    _check_repeats(function, primals)
    generator = torch.Generator().manual_seed(0)
    check = GradientCheck(_name_of(f), order, kinds, atol, rtol, eps, generator)
    try:
        check.run(function, primals)
    except WrongDerivativeError as error:
        raise AssertionError(str(error)) from None


def _name_of(f: Callable[..., Any]) -> str:
    """The name of a function; with its class, if it is a class method (Function.apply)."""
    owner = getattr(f, "__self__", None)
    return f"{owner.__name__}.{f.__name__}" if isinstance(owner, type) else pytree.name_of(f)


def _checked_modes(modes: Sequence[str] | str) -> tuple[str, ...]:
    kinds = (modes,) if isinstance(modes, str) else tuple(modes)
    if not kinds or not {*kinds} <= {*_MODES}:
        raise TransformError(
            f"torchlayers: check_grads: modes must be some of 'fwd' and 'rev', got {modes!r}."
        )
    return tuple(kind for kind in _MODES if kind in kinds)


def _flatten_function(
    f: Callable[..., Any], args: tuple[Any, ...], argnums: int | tuple[int, ...] | None
) -> tuple[Differentiable, list[Tensor]]:
    """f as a function of the leaves to differentiate, and these in double precision."""
    places = (
        range(len(args)) if argnums is None else pytree.positions("check_grads", argnums, len(args))
    )
    leaves, spec = pytree.flatten(args)
    leaves = [
        leaf.detach().to(_WIDE.get(leaf.dtype, leaf.dtype)) if isinstance(leaf, Tensor) else leaf
        for leaf in leaves
    ]
    owners = [place for place, arg in enumerate(args) for _ in pytree.leaves(arg)]
    chosen = [i for i, owner in enumerate(owners) if owner in places and has_derivatives(leaves[i])]
    if not chosen:
        which = "args have" if argnums is None else f"argnums={argnums} choose"
        raise NotTensorError(
            f"torchlayers: check_grads: {which} no tensor of a floating-point or complex dtype."
        )

    def outputs(*tensors: Tensor) -> list[tuple[str, Tensor]]:
        filled = list(leaves)
        for place, tensor in zip(chosen, tensors, strict=True):
            filled[place] = tensor
        results = pytree.leaves_by_path(f(*pytree.unflatten(filled, spec)))
        return [(path, leaf) for path, leaf in results if has_derivatives(leaf)]

    primals = [leaves[i] for i in chosen]
    try:
        results = outputs(*(x.clone() for x in primals))
    except RuntimeError as error:
        if "dtype" not in str(error) and "scalar type" not in str(error):
            raise
        raise DtypeError(
            "torchlayers: check_grads: f can't be called with its arguments in double precision, "
            "which finite differences need. Convert what it captures too (module.double()), or "
            f"pass it as an argument. ({error})"
        ) from error
    if not results:
        raise OutputError(
            "torchlayers: check_grads: f returns no tensor of a floating-point or complex dtype."
        )
    call = lambda *tensors: tuple(leaf for _, leaf in outputs(*tensors))  # noqa: E731
    arguments = [pytree.leaf_name("argument", args, i) for i in chosen]
    return Differentiable(call, (), arguments, [f"result{path}" for path, _ in results]), primals


def _check_repeats(f: Differentiable, primals: Sequence[Tensor]) -> None:
    once, again = (f.call(*(x.clone() for x in primals)) for _ in range(2))
    for name, x, y in zip(f.results, once, again, strict=True):
        if not torch.equal(x.nan_to_num(nan=0.5), y.nan_to_num(nan=0.5)):
            raise AssertionError(
                f"torchlayers: check_grads: {name} is another one when f is called again with the "
                "same arguments, so it has no derivatives: f draws random numbers (pass it a seed) "
                "or depends on what it has changed."
            )
