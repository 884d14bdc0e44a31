"""Nests of grad, jvp and vmap, one and two deep, with a loop over the samples as reference."""

import itertools
from collections.abc import Callable, Sequence
from types import ModuleType

import pytest
import torch
from torch import Tensor

import torchlayers as tl

Function = Callable[[Tensor], Tensor]
Nest = tuple[str, ...]


def _weights(x: Tensor) -> Tensor:
    """Weights of x's shape that are all different."""
    return torch.arange(1.0, x.numel() + 1, dtype=x.dtype).sin().reshape(x.shape)


def grad(f: Function, library: ModuleType) -> Function:
    def number(x: Tensor) -> Tensor:
        y = f(x)
        return (y * _weights(y)).sum()

    return lambda x: library.grad(number)(x)  # type: ignore[no-any-return]


def jvp(f: Function, library: ModuleType) -> Function:
    return lambda x: library.jvp(f, (x,), (x.cos() * _weights(x),))[1]  # type: ignore[no-any-return]


def vmap(f: Function, library: ModuleType) -> Function:
    return library.vmap(f)  # type: ignore[no-any-return]


def looped(f: Function, library: ModuleType) -> Function:
    """vmap as a loop over the samples."""
    return lambda xs: torch.stack([f(x) for x in xs.unbind()])


KINDS = {"grad": grad, "jvp": jvp, "vmap": vmap}
LOOPED = {**KINDS, "vmap": looped}
NESTS: list[Nest] = [*itertools.product(KINDS, repeat=1), *itertools.product(KINDS, repeat=2)]
# Parametrizes a test by `nest`.
nests = pytest.mark.parametrize("nest", NESTS, ids="-".join)


def batch(nest: Nest, *sizes: int) -> Tensor:
    """Samples of these sizes, in float64, batched as the nest requires."""
    generator = torch.Generator().manual_seed(1)
    batches = [size for kind, size in zip(nest, (5, 4), strict=False) if kind == "vmap"]
    return torch.randn(*batches, *sizes, dtype=torch.float64, generator=generator)


def transformed(
    f: Function,
    nest: Nest,
    kinds: dict[str, Callable[[Function, ModuleType], Function]] = KINDS,
    libraries: Sequence[ModuleType] = (tl, tl),
) -> Function:
    libraries = libraries[: len(nest)]
    for kind, library in zip(reversed(nest), reversed(libraries), strict=True):
        f = kinds[kind](f, library)
    return f


def as_alone(f: Function, plain: Function, nest: Nest, x: Tensor) -> None:
    """Asserts that each sample of x gives what the plain function gives for it alone."""
    alone = transformed(plain, nest, LOOPED)(x)
    ours = transformed(f, nest)(x)
    torch.testing.assert_close(ours, alone, rtol=1e-9, atol=1e-12, equal_nan=True)
    assert tl.current_stack() == ()
