"""Shortcuts for slow computations of Inductor, with the same results: functions for patches.py."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torchlayers.core.private_names import lookup

if TYPE_CHECKING:  # importing sympy takes twice as long as importing this package
    import sympy  # type: ignore[import-untyped]


NEEDED_FOR_TAILS = ("torch._inductor.virtualized.V",)
NEEDED_FOR_DTYPES = ("torch._inductor.dtype_propagation.DtypePropagationOpsHandler._instance",)


def simplify(simplified: "Callable[..., sympy.Expr]") -> "Callable[..., sympy.Expr]":
    """For simplify_index_in_vec_range: leaves an index without divisions as it is.

    Inductor simplifies each index, which takes milliseconds, and loads another library for the
    first. An index without divisions is a sum of products of numbers and loop variables.
    """

    def in_range(index: "sympy.Expr", var: "sympy.Symbol", *size: int) -> "sympy.Expr":
        return index if _is_sum(index) else simplified(index, var, *size)

    return in_range


def stride_at(of_any: "Callable[..., sympy.Expr]") -> "Callable[..., sympy.Expr]":
    """For stride_at: an index without divisions is not simplified."""

    def stride(index: "sympy.Expr", var: "sympy.Symbol") -> "sympy.Expr":
        if not _is_sum(index):
            return of_any(index, var)
        return (index.xreplace({var: var + 1}) - index).expand()

    return stride


def skip_empty_tails(generate: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """For SchedulerNode.codegen: writes no code for the rest of a loop if vectors divide it.

    Inductor writes it, and then leaves it out of the kernel, since its range is empty.
    """
    V = lookup("torch._inductor.virtualized.V")  # Inductor's name
    sizes = ("tail_size", "inner_tail_size", "outer_tail_size")

    def codegen(self: Any, index_vars: Any) -> None:
        if not any(getattr(V.kernel, size, None) == 0 for size in sizes):
            generate(self, index_vars)

    return codegen


def fill_once(fill: Callable[[Any], None]) -> Callable[[Any], None]:
    """For DtypePropagationOpsHandler.__init__: a singleton, whose table is filled once a graph.

    Inductor fills it again at each operator.
    """
    is_filled = False

    def init(self: Any) -> None:
        nonlocal is_filled
        if not is_filled:
            fill(self)
            is_filled = True

    return init


def _is_sum(index: "sympy.Expr") -> bool:
    """Whether the index is a sum of products of integers and distinct symbols."""
    import sympy

    def is_factor(part: "sympy.Expr") -> bool:
        return bool(part.is_Symbol or isinstance(part, sympy.Integer))

    def is_product(part: "sympy.Expr") -> bool:
        return all(map(is_factor, part.args)) if part.is_Mul else is_factor(part)

    return all(map(is_product, index.args)) if index.is_Add else is_product(index)
