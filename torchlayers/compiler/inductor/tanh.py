"""Computes tanh as a quotient of polynomials, in single precision.

Inductor calls a library function for it, which on CPUs takes as long as some 40 multiplications;
PyTorch's own kernel is six times as fast, but can't be fused. In the graph, tanh stays one
operator: decomposed there, it would be 25 operators for Inductor to process.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from torchlayers.core.private_names import lookup
from torchlayers.core.tracing_state import patched

# tanh(x) / x is P(x * x) / Q(x * x) within 2e-8 up to x = 9: a least-squares fit, reweighted until
# the largest relative error was minimal. At LARGEST the quotient exceeds 1 and is clamped.
P = (0.9999999794689591, 0.13381023960983976, 0.0034955861621070636, 2.0609051437470025e-05,
     1.33546216177627e-08)  # fmt: skip
Q = (1.0, 0.4671433955674721, 0.02587697464118322, 0.0003285631665486697, 7.776541561339786e-07)
LARGEST = 9.2

# Held while Inductor's methods that generate tanh are patched.
_writing = threading.RLock()


@contextlib.contextmanager
def rational_tanh() -> Iterator[None]:
    """Inside, on this thread, Inductor generates the quotient (accurate to 7 ulps) for tanh."""
    import torch.compiler.config as compiler

    thread = threading.get_ident()

    def written_by(cls: Any, quotient: str) -> tuple[Any, Callable[[Any], str], Any]:
        plain = cls.tanh

        def tanh(x: Any) -> str:
            if threading.get_ident() != thread or getattr(x, "dtype", None) != torch.float32:
                return plain(x)  # type: ignore[no-any-return]
            return f"{quotient}({x})"

        return cls, tanh, cls.__dict__["tanh"]

    # A separate tag in Inductor's disk cache, so that torch.compile does not pick up this tanh.
    settings: Any = compiler
    tag = f"{settings.cache_key_tag} torchlayers' tanh"
    with _writing, patched(settings, {"cache_key_tag": tag}):
        methods = [
            written_by(lookup("torch._inductor.codegen.cpp.CppOverrides"), SCALAR),
            written_by(lookup("torch._inductor.codegen.cpp.CppVecOverrides"), VECTOR),
        ]
        for cls, tanh, _ in methods:
            cls.tanh = staticmethod(tanh)
        try:
            yield
        finally:
            for cls, _, plain in methods:
                cls.tanh = plain


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
        "[](auto given) { using T = decltype(given); "
        f"auto clamp = [](T x, T low, T high) {{ return {clamp}; }}; "
        f"T x = clamp(given, T(-{LARGEST}f), T({LARGEST}f)), s = x * x; "
        f"return clamp(x * {above} / {below}, T(-1.0f), T(1.0f)); }}"
    )


SCALAR = _quotient("x < low ? low : x > high ? high : x", lambda p, c: f"({p} * s + T({c!r}f))")
VECTOR = _quotient(
    "at::vec::clamp(x, low, high)", lambda p, c: f"at::vec::fmadd({p}, s, T({c!r}f))"
)
