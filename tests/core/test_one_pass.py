"""Derivatives of small plain tensors computed in one pass, without calling operators.

Tracing shows the operators that a derivative is made of, so operators are called under a trace. The
two ways have to agree on everything but the last digits.
"""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import forward_ad
from torch.profiler import profile
from torch.utils._python_dispatch import TorchDispatchMode

import torchlayers as tl
from torchlayers import _C

LARGE = 300  # elements; too many for one pass

FUNCTIONS = {
    "sin": torch.sin,
    "cos": torch.cos,
    "tan": torch.tan,
    "asin": lambda x: torch.asin(x / 4),
    "acosh": lambda x: torch.acosh(x + 2),
    "atanh": lambda x: torch.atanh(x / 4),
    "sinh": torch.sinh,
    "cosh": torch.cosh,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "log": torch.log,
    "log1p": torch.log1p,
    "log2": torch.log2,
    "log10": torch.log10,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal,
    "erf": torch.erf,
    "erfc": torch.erfc,
    "neg": torch.neg,
    "relu": lambda x: torch.relu(x - 1),
    "leaky_relu": lambda x: F.leaky_relu(x - 1, 0.2),
    "threshold": lambda x: F.threshold(x, 1.0, 0.3),
    "softplus": lambda x: F.softplus(x, beta=2.0, threshold=3.0),
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu, by tanh": lambda x: F.gelu(x, approximate="tanh"),
    "clamp": lambda x: x.clamp_min(0.5).clamp_max(1.5),
    "x + 1": lambda x: x + 1,
    "2 - x": lambda x: torch.rsub(x, 2, alpha=3),
    "x * 3": lambda x: x * 3,
    "3 / x": lambda x: 3 / x,
    "x ** 3": lambda x: x**3,
    "x ** 2.5": lambda x: x**2.5,
    "x ** 0": lambda x: x**0,
    "sum": torch.sum,
    "mean": torch.mean,
    "mean, by dimensions": lambda x: x.mean(tuple(range(x.dim()))),
    "var": lambda x: torch.var(x, correction=0),
    "std": lambda x: torch.std(x, correction=0),
    "max": torch.max,
    "vector_norm": torch.linalg.vector_norm,
    "logsumexp": lambda x: x.flatten().logsumexp(0),
    "layer_norm": lambda x: F.layer_norm(x.flatten(), (x.numel(),)) * x.flatten(),
    "mse_loss": lambda x: F.mse_loss(x.sin(), x),
}

PAIRS = {
    "a * b": torch.mul,
    "a / b": torch.div,
    "a + 2 b": lambda a, b: torch.add(a, b, alpha=2),
    "a - 3 b": lambda a, b: torch.sub(a, b, alpha=3),
    "atan2": torch.atan2,
    "hypot": torch.hypot,
    "lerp": lambda a, b: torch.lerp(a, b, 0.3),
    "lerp, a weight each": lambda a, b: torch.lerp(a, b, a / 3),
    "xlogy": torch.xlogy,
    "xlog1py": torch.special.xlog1py,
    "addcmul": lambda a, b: torch.addcmul(a, a, b, value=2),
    "addcdiv": lambda a, b: torch.addcdiv(a, a, b, value=2),
    "where": lambda a, b: torch.where(a < b, a, b),
    "where, one tangent": lambda a, b: torch.where(a < b, a, 1.0) * b,
}


def values(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return 0.3 + 1.5 * torch.rand(shape, generator=generator, dtype=torch.float64).to(dtype)


OPERANDS = {
    "alike": lambda: (values(4, 3), values(4, 3) + 0.1),
    "one dimension less": lambda: (values(4, 3), values(3)),
    "two dimensions less": lambda: (values(2, 4, 3), values(3)),
    "in the middle": lambda: (values(2, 4, 3), values(4, 1)),
    "one element": lambda: (values(4, 3), values(1)),
    "no dimension": lambda: (values(4, 3), values()),
    "neither has dimensions": lambda: (values(), values() + 0.1),
    "transposed": lambda: (values(4, 3), values(3, 4).T),
    "expanded": lambda: (values(4, 3), values(1, 1).expand(4, 3)),
    "a slice": lambda: (values(4, 3), values(4, 6)[:, ::2]),
    "empty": lambda: (values(0, 3), values(0, 3)),
    "one element and none": lambda: (values(1), values(0)),
    "none and one element": lambda: (values(2, 0), values(1)),
    "large": lambda: (values(LARGE), values(LARGE) + 0.1),
    "of other dtypes": lambda: (values(4, 3, dtype=torch.float32), values(4, 3)),
    "a wider number": lambda: (values(4, 3, dtype=torch.float32), values()),
    "a narrower number": lambda: (values(4, 3), values(dtype=torch.float32)),
    "numbers of two dtypes": lambda: (values(dtype=torch.float32), values()),
    "single precision": lambda: (values(4, dtype=torch.float32), values(4, dtype=torch.float32)),
    "half precision": lambda: (values(4, dtype=torch.bfloat16), values(4, dtype=torch.bfloat16)),
}

UNARY_TRANSFORMS = {
    "jvp": lambda f: lambda x: tl.jvp(f, (x,), (x.cos(),)),
    "vjp": lambda f: lambda x: tl.vjp(f, x)[1](f(x).cos()),
    "jacfwd": tl.jacfwd,
    "jacrev": tl.jacrev,
    "hessian": lambda f: tl.hessian(lambda x: f(x).sum()),
    "vmap(jvp)": lambda f: tl.vmap(lambda x: tl.jvp(f, (x,), (x.cos(),))),
    "vmap(grad), batch last": lambda f: tl.vmap(tl.grad(lambda x: f(x).sum()), in_dims=1),
    "vmap(vmap(grad))": lambda f: tl.vmap(tl.vmap(tl.grad(lambda x: f(x).sum()))),
    "grad(grad)": lambda f: tl.grad(lambda x: tl.grad(lambda x: f(x).sum())(x).square().sum()),
}

BINARY_TRANSFORMS = {
    "jvp": lambda f: lambda a, b: tl.jvp(f, (a, b), (a.cos(), b.cos())),
    "jvp by the first": lambda f: lambda a, b: tl.jvp(lambda a: f(a, b), (a,), (a.cos(),)),
    "jvp by the second": lambda f: lambda a, b: tl.jvp(lambda b: f(a, b), (b,), (b.cos(),)),
    "vjp": lambda f: lambda a, b: tl.vjp(f, a, b)[1](f(a, b).cos()),
    "jacfwd": lambda f: tl.jacfwd(f, argnums=(0, 1)),
    "hessian": lambda f: tl.hessian(lambda a, b: f(a, b).sum(), argnums=(0, 1)),
    "vmap(jvp) over the first": lambda f: tl.vmap(
        lambda a, b: tl.jvp(f, (a, b), (a.cos(), b.cos())), in_dims=(0, None)
    ),
}


def assert_same_both_ways(function, *args) -> None:
    in_one_pass = function(*args)
    with tl.trace():
        by_operators = function(*args)
    compare(in_one_pass, by_operators)


def compare(actual: Any, expected: Any) -> None:
    for ours, theirs in zip(leaves(actual), leaves(expected), strict=True):
        assert (ours.dtype, ours.shape, ours.stride()) == (
            theirs.dtype,
            theirs.shape,
            theirs.stride(),
        )
        torch.testing.assert_close(ours, theirs, equal_nan=True)


def leaves(tree: Any) -> list[Tensor]:
    return torch.utils._pytree.tree_leaves(tree)


def operators_of(call) -> set[str]:
    with profile() as recorded:
        call()
    return {event.key for event in recorded.key_averages()}


def test_terms_of_numbers_lists_scalar_terms():
    """For each argument. A line that can't be called with numbers must not be dropped silently; one
    that is t itself, or is declared for tensors, is not computed."""
    found = {(name.removeprefix("aten::"), place) for name, place in _C.terms_of_numbers()}
    assert {("sin", 0), ("lerp.Tensor", 2), ("where.self", 1), ("tanh_backward", 1)} <= found
    assert not {("add.Tensor", 0), ("add.Tensor", 1), ("special_erfcx", 0), ("lgamma", 0)} & found
    assert len(found) > 60


@pytest.mark.parametrize("transform", UNARY_TRANSFORMS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_agree_with_their_operators(name, transform):
    assert_same_both_ways(UNARY_TRANSFORMS[transform](FUNCTIONS[name]), values(4, 3))


def cases_of_pairs():
    for operands, make in OPERANDS.items():
        a = make()[0]
        for name in PAIRS:
            for transform in BINARY_TRANSFORMS:
                has_batch = a.dim() > 0 or "vmap" not in transform
                is_given = operands != "expanded" or transform == "vjp"  # the others reject it
                is_new = operands == "alike" or name in ("a * b", "a / b", "where, one tangent")
                if has_batch and is_given and is_new:
                    yield name, operands, transform


@pytest.mark.parametrize(("name", "operands", "transform"), list(cases_of_pairs()))
def test_pairs_agree_with_their_operators(name, operands, transform):
    assert_same_both_ways(BINARY_TRANSFORMS[transform](PAIRS[name]), *OPERANDS[operands]())


@pytest.mark.parametrize("mask", [torch.rand(4, 3) < 0.5, torch.rand(3) < 0.5, torch.tensor(True)])
def test_masks(mask):
    def f(x):
        return torch.where(mask, x, x * x)

    for transform in UNARY_TRANSFORMS:
        if transform != "vmap(grad), batch last" and not transform.startswith("vmap"):
            assert_same_both_ways(UNARY_TRANSFORMS[transform](f), values(4, 3))
    assert_same_both_ways(
        tl.vmap(lambda m, x: tl.jvp(lambda x: torch.where(m, x, x * x), (x,), (x,))),
        mask.expand(4, 3),
        values(4, 3),
    )


@pytest.mark.parametrize("number", [2**60, True, 1e300, float("inf")])
def test_numbers(number):
    assert_same_both_ways(UNARY_TRANSFORMS["jvp"](lambda x: x * number), values(4))


def test_special_values():
    x = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), -1.0, 1.0])
    for function in FUNCTIONS.values():
        for transform in ("jvp", "vjp"):
            assert_same_both_ways(UNARY_TRANSFORMS[transform](function), x.double())


def test_one_pass_runs_no_operator():
    x = values(4)
    seen = operators_of(lambda: tl.jvp(torch.sin, (x,), (x,)))
    assert "aten::sin" in seen
    assert not {"aten::cos", "aten::mul"} & seen


def test_operators_run_on_large_tensors():
    x = values(LARGE)
    assert {"aten::cos", "aten::mul"} <= operators_of(lambda: tl.jvp(torch.sin, (x,), (x,)))


def test_below_one_vmap_only():
    def f(x):
        return tl.jvp(torch.sin, (x,), (x,))[1]

    x = values(2, 2, 4)
    assert "aten::cos" not in operators_of(lambda: tl.vmap(f)(x))
    assert "aten::cos" in operators_of(lambda: tl.vmap(tl.vmap(f))(x))


def test_a_mode_sees_the_operators():
    class Seen(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.operators = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.operators.append(str(func))
            return func(*args, **(kwargs or {}))

    x = values(4)
    with Seen() as seen:
        tl.jvp(torch.sin, (x,), (x,))
    assert {"aten.cos.default", "aten.mul.Tensor"} <= set(seen.operators)


def test_fake_tensors_stay_fake():
    with FakeTensorMode() as mode:
        x = mode.from_tensor(values(4))
        tangent = tl.jvp(torch.sin, (x,), (x,))[1]
    assert isinstance(tangent, FakeTensor)


def test_autograd_below_records_the_operators():
    x = values(4).requires_grad_()
    (gradient,) = torch.autograd.grad(tl.grad(lambda x: x.sin().sum())(x).sum(), x)
    torch.testing.assert_close(gradient, -x.detach().sin())
    with torch.no_grad():
        assert not tl.grad(lambda x: x.sin().sum())(x).requires_grad


def test_autograd_below_a_vmap_records_the_operators():
    x = values(3, 4).requires_grad_()
    (gradient,) = torch.autograd.grad(tl.vmap(tl.grad(lambda x: x.sin().sum()))(x).sum(), x)
    torch.testing.assert_close(gradient, -x.detach().sin())


def test_forward_ad_below_goes_through():
    x, t = values(4), values(4).cos()
    with forward_ad.dual_level():
        gradient = tl.grad(lambda x: x.sin().sum())(forward_ad.make_dual(x, t))
        tangent = forward_ad.unpack_dual(gradient).tangent
    torch.testing.assert_close(tangent, -x.sin() * t)


def test_conjugate_and_complex_tensors():
    z = torch.complex(values(4), values(4).cos())
    for operand in (z, z.conj(), torch.view_as_real(z).conj()):
        assert_same_both_ways(UNARY_TRANSFORMS["jvp"](torch.sin), operand)


def test_a_negated_view():
    negated = torch.complex(values(4), values(4)).conj().imag
    assert negated.is_neg()
    assert_same_both_ways(UNARY_TRANSFORMS["jvp"](torch.sin), negated)


def test_an_inference_tensor():
    with torch.inference_mode():
        x = values(4)
    assert_same_both_ways(UNARY_TRANSFORMS["jvp"](torch.sin), x)


def test_a_captured_factor_batched_by_another_vmap():
    scales, x = values(3), values(2, 4)

    def f(scale):
        return tl.vmap(tl.grad(lambda x: (x.sin() * scale).sum()))(x)

    assert_same_both_ways(tl.vmap(f), scales)


def test_the_results_are_not_the_tangents_given():
    x, t = values(4), values(4).cos()
    _, tangent = tl.jvp(lambda x: x * 1, (x,), (t,))
    assert tangent.data_ptr() != t.data_ptr()


INSIDE = {
    "grad": lambda x: tl.grad(lambda x: (x * x.sin()).sum())(x),
    "vjp": lambda x: tl.vjp(torch.sin, x)[1](x)[0],
    "jvp": lambda x: tl.jvp(torch.sin, (x,), (x,))[1],
    "jacrev": lambda x: tl.jacrev(torch.sin)(x),
    "vmap(grad)": lambda x: tl.vmap(tl.grad(torch.sin))(x),
}


@pytest.mark.parametrize("derivative", INSIDE.values(), ids=INSIDE)
def test_derivatives_belong_to_torch_funcs_level(derivative):
    """It wraps all that is computed in it, so that it may be written to."""
    constant = torch.tensor([0.5, 2.0, -1.0])

    def writes(x):
        found = derivative(constant)
        found.sin_()
        return (found * x).sum()

    gradient = torch.func.grad(writes)(torch.ones(3))
    expected = torch.func.grad(lambda x: (derivative(constant).sin() * x).sum())(torch.ones(3))
    torch.testing.assert_close(gradient, expected)
