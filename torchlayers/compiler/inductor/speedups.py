"""Patches that speed up slow parts of Inductor without changing its results.

Each is active while one graph is compiled, on the thread that compiles it. If a torch version lacks
the patched function, nothing is done.
"""

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # importing sympy takes twice as long as importing this package
    import sympy  # type: ignore[import-untyped]

# Held while functions of Inductor are patched.
replacing = threading.RLock()


@contextlib.contextmanager
def faster_inductor() -> Iterator[None]:
    with replacing, _cache_dtype_rules(), _skip_sum_simplification():
        yield


@contextlib.contextmanager
def _cache_dtype_rules() -> Iterator[None]:
    """Stops Inductor from refilling its table of operator dtypes, a singleton, at each operator."""
    from torch._inductor import dtype_propagation
    from torch._inductor import lowering as lowering  # registers all operators

    table: Any = getattr(dtype_propagation, "DtypePropagationOpsHandler", None)
    if not hasattr(table, "_instance"):
        yield
        return
    table()
    fill, thread = table.__init__, threading.get_ident()

    def fill_elsewhere(self: Any) -> None:
        if threading.get_ident() != thread:
            fill(self)

    table.__init__ = fill_elsewhere
    try:
        yield
    finally:
        table.__init__ = fill


@contextlib.contextmanager
def _skip_sum_simplification() -> Iterator[None]:
    """Computes an index's stride along a loop variable without simplifying the index.

    Inductor simplifies each index first, which takes milliseconds, and loads another library for
    the first. An index without divisions is a sum of products of numbers and loop variables.
    """
    from torch._inductor import sizevars

    names = ("simplify_index_in_vec_range", "stride_at")
    module: Any = sizevars
    if not all(hasattr(module, name) for name in names):
        yield
        return
    simplified, stride_at = (getattr(module, name) for name in names)
    thread = threading.get_ident()

    def is_short(index: "sympy.Expr") -> bool:
        return threading.get_ident() == thread and _is_sum(index)

    @functools.wraps(simplified)
    def in_range(index: "sympy.Expr", var: "sympy.Symbol", *size: int) -> "sympy.Expr":
        return index if is_short(index) else simplified(index, var, *size)

    @functools.wraps(stride_at)
    def stride(index: "sympy.Expr", var: "sympy.Symbol") -> "sympy.Expr":
        if not is_short(index):
            return stride_at(index, var)
        return (index.xreplace({var: var + 1}) - index).expand()

    module.simplify_index_in_vec_range, module.stride_at = in_range, stride
    try:
        yield
    finally:
        module.simplify_index_in_vec_range, module.stride_at = simplified, stride_at


def _is_sum(index: "sympy.Expr") -> bool:
    """Whether the index is a sum of products of integers and distinct symbols."""
    import sympy

    def is_factor(part: "sympy.Expr") -> bool:
        return bool(part.is_Symbol or isinstance(part, sympy.Integer))

    def is_product(part: "sympy.Expr") -> bool:
        return all(map(is_factor, part.args)) if part.is_Mul else is_factor(part)

    return all(map(is_product, index.args)) if index.is_Add else is_product(index)
