"""tanh as a quotient of polynomials, in single precision on the CPU.

Inductor calls a function of a library for it, which takes as long as some 40 multiplications;
PyTorch's own kernel is six times as fast, but can't be fused. To inductor it stays one operator,
which it handles some ten times over until its code is written; the quotient would be twenty.
"""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch

from torchlayers.device import HOST

# tanh(x) / x is P(x * x) / Q(x * x) within 2e-8 up to x = 9: least squares, weighted until the
# largest relative error was as small as it gets. At LARGEST it is more than 1, and cut off.
P = (0.9999999794689591, 0.13381023960983976, 0.0034955861621070636, 2.0609051437470025e-05,
     1.33546216177627e-08)  # fmt: skip
Q = (1.0, 0.4671433955674721, 0.02587697464118322, 0.0003285631665486697, 7.776541561339786e-07)
LARGEST = 9.2

# Who takes the place of what inductor writes.
_replacing = threading.RLock()


@contextlib.contextmanager
def tanh_as_a_quotient() -> Iterator[None]:
    """What inductor compiles in here, on this thread, computes it within 7 units in the last place.

    Of nan it is nan.
    """
    from torch._inductor import lowering
    from torch._inductor.codegen import cpp

    thread = threading.get_ident()
    with _replacing, contextlib.ExitStack() as stack:
        for overrides, least, most in (
            (cpp.CppVecOverrides, "at::vec::minimum", "at::vec::maximum"),
            (cpp.CppOverrides, "min_propagate_nan", "max_propagate_nan"),
        ):
            stack.enter_context(_written(overrides, least, most, thread))
        stack.enter_context(_kept(lowering.lowerings, thread))
        yield


@contextlib.contextmanager
def _written(overrides: Any, least: str, most: str, thread: int) -> Iterator[None]:
    before = overrides.tanh

    def tanh(x: Any) -> str:
        if threading.get_ident() != thread or x.dtype != torch.float32:
            return before(x)  # type: ignore[no-any-return]
        return _quotient(x, least, most)

    overrides.tanh = staticmethod(tanh)
    try:
        yield
    finally:
        overrides.tanh = staticmethod(before)


@contextlib.contextmanager
def _kept(lowerings: Any, thread: int) -> Iterator[None]:
    """Whoever reads it reads it from memory: a product would compute it for each column."""
    op = torch.ops.aten.tanh.default
    before = lowerings[op]

    def tanh(x: Any) -> Any:
        result = before(x)
        is_single = result.get_dtype() == torch.float32 and result.get_device() == HOST
        if threading.get_ident() == thread and is_single:
            result.realize()
        return result

    lowerings[op] = tanh
    try:
        yield
    finally:
        lowerings[op] = before


def _quotient(x: Any, least: str, most: str) -> str:
    """In C++, of a variable that is a number or a vector of them."""
    return (
        f"[](decltype({x}) given) {{ using T = decltype({x}); "
        f"const T x = {least}({most}(given, T({-LARGEST})), T({LARGEST})); "
        "const T square = x * x; "
        f"const T above = x * ({_polynomial(P)}); "
        f"const T below = {_polynomial(Q)}; "
        f"return {least}({most}(T(above / below), T(-1)), T(1)); }}({x})"
    )


def _polynomial(coefficients: tuple[float, ...]) -> str:
    *rest, last = coefficients
    result = f"T({last!r})"
    for coefficient in reversed(rest):
        result = f"({result} * square + T({coefficient!r}))"
    return result
