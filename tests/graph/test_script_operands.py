"""Traces differentiated at operands of other dtypes and at special values agree with tl.grad."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import torchlayers as tl
from tests.support.narrow_operands import NARROW, OPERATORS
from torchlayers.graph.torchscript import differentiate_script

pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]

inf = float("inf")


def doubles(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def check(f: Callable[..., Tensor], *args: Tensor) -> None:
    gradient = differentiate_script(torch.jit.trace(f, args, check_trace=False), args)
    result, captures = gradient.forward(*args)
    found = gradient.backward(captures, torch.ones_like(result))
    torch.testing.assert_close(result, f(*args), equal_nan=True)
    argnums = tuple(range(len(args)))
    expected = tl.grad(lambda *args: f(*args).sum(), argnums=argnums)(*args)
    assert list(gradient.output_vjps) == list(argnums)
    torch.testing.assert_close(tuple(found), expected, equal_nan=True)


# Tracing makes numbers of tensors without dimensions, and torch then can't run the trace of a bool.
# The others have no formula in TorchScript.
WITH_DIMENSIONS = {name: narrow for name, narrow in NARROW.items() if narrow.dim()}
DIFFERENTIABLE = [name for name in OPERATORS if name not in ("igamma", "igammac")]


@pytest.mark.parametrize("operator", DIFFERENTIABLE)
@pytest.mark.parametrize("narrow", WITH_DIMENSIONS.values(), ids=WITH_DIMENSIONS)
def test_a_narrow_operand(narrow: Tensor, operator: str) -> None:
    check(lambda x: OPERATORS[operator](x, narrow), doubles(0.31, 0.47))


@pytest.mark.parametrize("order", [0.0, 0.5, 1.0, 2.0, 3.0, inf, -inf, -1.0])
@pytest.mark.parametrize("x", [doubles(0.3, -0.7), doubles(0.3, 0.0), doubles(0.5, -0.5)])
def test_norms(x: Tensor, order: float) -> None:
    check(lambda x: torch.norm(x, order), x)
    check(lambda x: torch.linalg.vector_norm(x.expand(3, 2), order, dim=1), x)
    check(lambda x, y: torch.dist(x, y, order), x, x.cos())
    check(lambda x, y: torch.dist(x, y, order), x[0], x.cos())
    check(lambda x, y: torch.dist(x, y, order), x, x.clone())


LOWS, HIGHS = doubles(0.4, 0.6, 0.1, 0.2, 0.5), doubles(0.3, 0.7, 0.5, 0.2, 0.5)
CASES = {
    "clamp": (torch.clamp, doubles(0.3, 0.5, 0.7, 0.2, 0.5), LOWS, HIGHS),
    "clamp, one bound for all": (torch.clamp, doubles(0.3, 0.5, 0.7), LOWS[0], HIGHS[2]),
    "clamp, from below": (torch.clamp_min, doubles(0.3, 0.6, 0.7), LOWS[:3]),
    "clamp, from above": (torch.clamp_max, doubles(0.3, 0.6, 0.5), HIGHS[:3]),
    "hardtanh at its bounds": (F.hardtanh, doubles(-1.0, 0.0, 1.0, 2.0)),
    "where of nan": (
        lambda x: torch.where(x > 0, x.clamp_min(0).sqrt(), 0.0 * x),
        doubles(0.0, 2.0),
    ),
    "softmax where all is masked": (
        lambda x: torch.masked.softmax(x, 0, mask=torch.zeros(2, dtype=torch.bool)),
        doubles(0.1, 0.2),
    ),
    "atan2 at the origin": (torch.atan2, doubles(0.0, 1e-200), doubles(0.0, 1e-200)),
    "power of zero": (torch.pow, doubles(0.0, 0.0, 2.0), doubles(0.0, 2.0, 0.0)),
    "logcumsumexp of large numbers": (
        lambda x: torch.logcumsumexp(x, 0),
        doubles(1.0, 1000.0, 3.0, -1000.0),
    ),
    "logcumsumexp of infinities": (
        lambda x: torch.logcumsumexp(x, 0),
        doubles(-inf, 1.0, -inf, 3.0),
    ),
    "binary_cross_entropy": (
        F.binary_cross_entropy,
        doubles(0.1, 0.3, 0.6),
        doubles(0.2, 0.3, 1.0),
        doubles(2.0, 0.5, 1.0),
    ),
    "binary_cross_entropy at certainties": (
        lambda y: F.binary_cross_entropy(doubles(0.0, 1.0), y),
        doubles(0.2, 0.7),
    ),
    "cosine_similarity of other shapes": (
        lambda x, y: F.cosine_similarity(x, y, dim=-2),
        doubles(*range(1, 7)).sin().reshape(1, 2, 3),
        doubles(*range(1, 7)).cos().reshape(2, 1, 3),
    ),
    "prelu without dimensions": (F.prelu, doubles(-0.3)[0], doubles(0.2)),
    "matmul without elements": (torch.matmul, doubles().reshape(2, 3, 0), doubles().reshape(0, 4)),
    "batch_norm of an empty batch": (
        lambda x: F.batch_norm(x, doubles(0, 0), doubles(1, 1)),
        doubles().reshape(0, 2),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_special_values(name: str) -> None:
    check(*CASES[name])


def test_inputs_of_one_name() -> None:
    """Tracing names values by the variables that held them."""

    def distance(x1: Tensor, x2: Tensor) -> Tensor:
        return F.pairwise_distance(x1, x2)

    def f(*args: Tensor) -> Tensor:
        return distance(args[0], args[1]) - 2 * distance(args[0], args[2])

    args = [torch.arange(6.0, dtype=torch.float64).reshape(2, 3) ** (1 + i / 9) for i in range(3)]
    check(f, *args)
