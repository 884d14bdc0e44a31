"""Derivatives of torchlayers' operators where plain autograd, or torch.func, differentiates them.

NOTE [Tangents outside layers]
torch.library.register_autograd knows reverse mode alone: an operator registered with it drops the
tangents of its arguments in silence. The kernel that it makes therefore runs behind one that looks
for tangents. If there are any, it calls the operator again on the primals, which plain autograd
records, and computes the tangent from ordinary operators, which are differentiated in turn.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from torchlayers.core.errors import TransformError, location

# Takes an operator's arguments, its result and the tangents of its arguments (None for a constant;
# a list for a list), and returns the result's tangent, or a list of them.
Jvp = Callable[[Sequence[Any], Any, Sequence[Any]], Any]


def register(
    name: str, jvp: Jvp, backward: Callable[..., Any], setup_context: Callable[..., None]
) -> None:
    """Registers both modes of the operator ``torchlayers::name``.

    ``backward`` and ``setup_context`` are those of torch.library.register_autograd.
    """
    _library.jvps[name] = jvp
    torch.library.register_autograd(
        f"torchlayers::{name}", backward, setup_context=setup_context, lib=_library
    )


def linear(op: Any) -> Jvp:
    """The jvp of an operator that is linear in its first argument, a tensor or a list."""

    def jvp(args: Sequence[Any], result: Any, tangents: Sequence[Any]) -> Any:
        tangent = tangents[0]
        if isinstance(tangent, list):
            pairs = zip(args[0], tangent, strict=True)
            tangent = [torch.zeros_like(x) if t is None else t for x, t in pairs]
        return op(tangent, *args[1:])

    return jvp


class Library(torch.library.Library):
    """A library of operators of torchlayers, which torch.func's grad refuses in words."""

    def __init__(self) -> None:
        super().__init__("torchlayers", "FRAGMENT")  # type: ignore[no-untyped-call]

    def impl(self, op_name: Any, fn: Any, *args: Any, **options: Any) -> None:
        if args[0] == "Autograd":
            fn = _explaining(op_name, fn)
        super().impl(op_name, fn, *args, **options)  # type: ignore[no-untyped-call]


class _DifferentiatedLibrary(Library):
    """Puts what looks for tangents in front of the kernels that torch.library makes."""

    def __init__(self) -> None:
        super().__init__()
        self.jvps: dict[str, Jvp] = {}

    def impl(self, op_name: Any, fn: Any, *args: Any, **options: Any) -> None:
        op = getattr(torch.ops.torchlayers, op_name).default
        super().impl(op_name, _with_tangents(op, self.jvps[op_name], fn), *args, **options)


_library = _DifferentiatedLibrary()


def _explaining(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel; an error says that torch.func's grad takes no operators of torch.library."""

    def run(*args: Any) -> Any:
        try:
            return kernel(*args)
        except RuntimeError as error:
            if "must override the setup_context" not in str(error):
                raise
            raise TransformError(
                f"torchlayers: torch.func's grad, vjp, jacrev and hessian can't go through {name}: "
                "they differentiate no operator of torch.library. Use torchlayers' transforms of "
                f"the same names.{location()}"
            ) from error

    return run


def _with_tangents(op: Any, jvp: Jvp, kernel: Callable[..., Any]) -> Callable[..., Any]:
    def run(keyset: Any, *args: Any) -> Any:
        primals, tangents = zip(*map(_unpack_dual, args), strict=True)
        if not any(map(_has_tangent, tangents)):
            return kernel(keyset, *args)
        result = op(*primals)
        tangent = jvp(primals, result, tangents)
        if isinstance(result, Tensor):
            return forward_ad.make_dual(result, tangent)  # type: ignore[no-untyped-call]
        return [*map(forward_ad.make_dual, result, tangent)]

    return run


def _unpack_dual(arg: Any) -> tuple[Any, Any]:
    """The primal and the tangent of an argument."""
    if isinstance(arg, Tensor):
        return tuple(forward_ad.unpack_dual(arg))  # type: ignore[no-untyped-call]
    if isinstance(arg, list) and arg and isinstance(arg[0], Tensor):
        primals, tangents = zip(*map(_unpack_dual, arg), strict=True)
        return [*primals], [*tangents]
    return arg, None


def _has_tangent(tangent: Any) -> bool:
    if isinstance(tangent, list):
        return any(map(_has_tangent, tangent))
    return tangent is not None
