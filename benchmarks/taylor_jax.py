"""Compares torchlayers.jet with jax.experimental.jet, to order 6 in double precision.

``python -m benchmarks.taylor_jax`` needs jax, and prints the largest relative difference of each
function.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy
import torch

import torchlayers as tl

ORDER = 6
POINTS = numpy.array([[0.3, 0.8, 1.7], [0.2, 0.5, 1.1]])
Function = Callable[[Any, ModuleType], Any]

# Functions of an array and the library, torch or jax.numpy.
FUNCTIONS: dict[str, Function] = {
    "exp(sin(x))": lambda x, np: np.exp(np.sin(x)),
    "log(1 + x^2)": lambda x, np: np.log(1 + x * x),
    "sqrt(x) / (1 + x)": lambda x, np: np.sqrt(x) / (1 + x),
    "x^2.5": lambda x, np: x**2.5,
    "tanh(x x^T)": lambda x, np: np.tanh(x @ x.T),
    "a network": lambda x, np: np.sin(np.tanh(x @ x.T) @ x).sum(),
    "cosh(x) sinh(x)": lambda x, np: np.cosh(x) * np.sinh(x),
    "prod of exp": lambda x, np: np.exp(x)[0] * np.exp(x)[1],
}


def curve() -> list[numpy.ndarray]:
    """The derivatives of a curve at 0."""
    generator = numpy.random.default_rng(0)
    return [generator.normal(size=POINTS.shape) for _ in range(ORDER)]


def ours(f: Function) -> list[numpy.ndarray]:
    terms = [torch.tensor(term) for term in curve()]
    value, series = tl.jet(lambda x: f(x, torch), (torch.tensor(POINTS),), (terms,))
    return [each.numpy() for each in (value, *series)]


def jaxs(f: Function) -> list[numpy.ndarray]:
    import jax
    from jax.experimental.jet import jet

    jax.config.update("jax_enable_x64", True)
    value, series = jet(lambda x: f(x, jax.numpy), (POINTS,), (curve(),))
    return [numpy.asarray(each) for each in (value, *series)]


def difference(f: Function) -> float:
    """The largest difference, relative to the largest number of its order."""
    pairs = zip(ours(f), jaxs(f), strict=True)
    return max(float(abs(a - b).max() / abs(b).max()) for a, b in pairs)


if __name__ == "__main__":
    for name, function in FUNCTIONS.items():
        print(f"{name}: {difference(function):.1e}")
