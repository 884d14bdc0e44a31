"""Patches that speed up slow parts of Inductor without changing its results.

Each is active while one graph is compiled: on the thread that compiles it, or, if the results are
equal for any caller, on all threads. If a torch version lacks the patched function, nothing is
done.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from torchlayers.core.private_names import lookup

if TYPE_CHECKING:  # importing sympy takes twice as long as importing this package
    import sympy  # type: ignore[import-untyped]

# Held while functions of Inductor are patched.
replacing = threading.RLock()


@contextlib.contextmanager
def faster_inductor() -> Iterator[None]:
    with replacing, contextlib.ExitStack() as stack:
        for speedup in _SPEEDUPS:
            stack.enter_context(speedup())
        yield


@contextlib.contextmanager
def _replaced(path: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Replaces a function or a method of Inductor, if there is one.

    Args:
        make: takes the function, and returns its replacement.
    """
    place, _, name = path.rpartition(".")
    owner, original = lookup(place, None), lookup(path, None)
    if original is None or name not in vars(owner):
        yield
        return
    setattr(owner, name, make(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


def _skip_empty_tails() -> contextlib.AbstractContextManager[None]:
    """Writes no code for what remains of a loop after its vectors if nothing remains.

    Inductor writes it, and then leaves it out of the kernel, since its range is empty.
    """
    V = lookup("torch._inductor.virtualized.V")  # Inductor's name
    names = ("tail_size", "inner_tail_size", "outer_tail_size")

    def make(generate: Any) -> Any:
        def generate_unless_empty(self: Any, index_vars: Any) -> None:
            kernel: Any = V.kernel
            if not any(getattr(kernel, name, None) == 0 for name in names):
                generate(self, index_vars)

        return generate_unless_empty

    return _replaced("torch._inductor.scheduler.SchedulerNode.codegen", make)


@contextlib.contextmanager
def _cache_dtype_rules() -> Iterator[None]:
    """Stops Inductor from refilling its table of operator dtypes, a singleton, at each operator."""
    lookup("torch._inductor.lowering")  # registers all operators
    table = lookup("torch._inductor.dtype_propagation.DtypePropagationOpsHandler", None)
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
    thread = threading.get_ident()

    def is_short(index: "sympy.Expr") -> bool:
        return threading.get_ident() == thread and _is_sum(index)

    def make_in_range(simplified: Any) -> Any:
        @functools.wraps(simplified)
        def in_range(index: "sympy.Expr", var: "sympy.Symbol", *size: int) -> "sympy.Expr":
            return index if is_short(index) else simplified(index, var, *size)

        return in_range

    def make_stride(stride_at: Any) -> Any:
        @functools.wraps(stride_at)
        def stride(index: "sympy.Expr", var: "sympy.Symbol") -> "sympy.Expr":
            if not is_short(index):
                return stride_at(index, var)
            return (index.xreplace({var: var + 1}) - index).expand()

        return stride

    with (
        _replaced("torch._inductor.sizevars.simplify_index_in_vec_range", make_in_range),
        _replaced("torch._inductor.sizevars.stride_at", make_stride),
    ):
        yield


def _is_sum(index: "sympy.Expr") -> bool:
    """Whether the index is a sum of products of integers and distinct symbols."""
    import sympy

    def is_factor(part: "sympy.Expr") -> bool:
        return bool(part.is_Symbol or isinstance(part, sympy.Integer))

    def is_product(part: "sympy.Expr") -> bool:
        return all(map(is_factor, part.args)) if part.is_Mul else is_factor(part)

    return all(map(is_product, index.args)) if index.is_Add else is_product(index)


_SPEEDUPS = (
    _skip_empty_tails,
    _cache_dtype_rules,
    _skip_sum_simplification,
)
