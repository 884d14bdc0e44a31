"""Computes tanh as a quotient of polynomials, in single precision.

Inductor calls a library function for it, which on CPUs takes as long as some 40 multiplications;
PyTorch's own kernel is six times as fast, but can't be fused. In the graph, tanh stays one
operator: decomposed there, it would be 25 operators for Inductor to process.
"""

from collections.abc import Callable
from typing import Any

import torch

# tanh(x) / x is P(x * x) / Q(x * x) within 2e-8 up to x = 9: a least-squares fit, reweighted until
# the largest relative error was minimal. At LARGEST the quotient exceeds 1 and is clamped.
P = (0.9999999794689591, 0.13381023960983976, 0.0034955861621070636, 2.0609051437470025e-05,
     1.33546216177627e-08)  # fmt: skip
Q = (1.0, 0.4671433955674721, 0.02587697464118322, 0.0003285631665486697, 7.776541561339786e-07)
LARGEST = 9.2


def _polynomial(coefficients: tuple[float, ...], step: Callable[[str, float], str]) -> str:
    *rest, last = coefficients
    result = f"T({last!r}f)"
    for coefficient in reversed(rest):
        result = step(result, coefficient)
    return result


def _quotient(clamp: str, step: Callable[[str, float], str]) -> str:
    """Returns the C++ source of the function, which maps nan to nan."""
    above, below = _polynomial(P, step), _polynomial(Q, step)
    return (
        "[](auto number) { using T = decltype(number); "
        f"auto clamp = [](T x, T low, T high) {{ return {clamp}; }}; "
        f"T x = clamp(number, T(-{LARGEST}f), T({LARGEST}f)), s = x * x; "
        f"return clamp(x * {above} / {below}, T(-1.0f), T(1.0f)); }}"
    )


SCALAR = _quotient("x < low ? low : x > high ? high : x", lambda p, c: f"({p} * s + T({c!r}f))")
VECTOR = _quotient(
    "at::vec::clamp(x, low, high)", lambda p, c: f"at::vec::fmadd({p}, s, T({c!r}f))"
)


def scalar(plain: Callable[[Any], str]) -> Callable[[Any], str]:
    """The function for Inductor's CppOverrides.tanh: the quotient is accurate to 7 ulps."""
    return _written(SCALAR, plain)


def vectorized(plain: Callable[[Any], str]) -> Callable[[Any], str]:
    """The function for Inductor's CppVecOverrides.tanh."""
    return _written(VECTOR, plain)


def _written(quotient: str, plain: Callable[[Any], str]) -> Callable[[Any], str]:
    def tanh(x: Any) -> str:
        is_single = getattr(x, "dtype", None) == torch.float32
        return f"{quotient}({x})" if is_single else plain(x)

    return tanh


# What is replaced in Inductor, and by what function of it.
REPLACED = {
    "torch._inductor.codegen.cpp.CppOverrides.tanh": scalar,
    "torch._inductor.codegen.cpp.CppVecOverrides.tanh": vectorized,
}
