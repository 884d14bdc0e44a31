"""Every Function of the corpus under every transform.

The results equal those of the equivalent plain operators, and bitwise those of torch.func if it
accepts the Function. The old-style variant, whose forward also sets up ctx, gives the same.
"""

import functools

import pytest
import torch
import torch.func
from torch.utils import _pytree as pytree

import torchlayers as tl
from tests.autograd_function.corpus import CASES, Case
from tests.support.calls import agree, ambient
from torchlayers.autograd_function import autograd_function_forward_rewritten


def floats(outputs):
    return [leaf for leaf in pytree.tree_leaves(outputs) if leaf.is_floating_point()]


def scalar(f):
    """Returns f with its outputs reduced to a number by a nonlinear sum."""
    return lambda *xs: sum((output * output.sin()).sum() for output in floats(f(*xs)))


def batch(xs, *sizes):
    for size in sizes:
        xs = tuple(torch.stack([x + 0.1 * i for i in range(size)]) for x in xs)
    return xs


def all_of(xs):
    return tuple(range(len(xs)))


def jvp(tf, f, xs):
    return tf.jvp(f, xs, tuple(x.cos() for x in xs))


ONCE = {
    "grad": lambda tf, f, xs: tf.grad(scalar(f), all_of(xs))(*xs),
    "vjp": lambda tf, f, xs: tf.vjp(f, *xs)[1](pytree.tree_map(torch.cos, f(*xs))),
    "vmap": lambda tf, f, xs: tf.vmap(f)(*batch(xs, 2)),
    "vmap of one": lambda tf, f, xs: tf.vmap(f, (0, *(None,) * (len(xs) - 1)))(
        *batch(xs[:1], 2), *xs[1:]
    ),
    "vmap in_dims": lambda tf, f, xs: tf.vmap(f, -1)(*(x.movedim(0, -1) for x in batch(xs, 2))),
    "vmap(vmap)": lambda tf, f, xs: tf.vmap(tf.vmap(f))(*batch(xs, 2, 3)),
    "vmap(grad)": lambda tf, f, xs: tf.vmap(tf.grad(scalar(f), all_of(xs)))(*batch(xs, 2)),
    "grad(vmap)": lambda tf, f, xs: tf.grad(scalar(tf.vmap(f)), all_of(xs))(*batch(xs, 2)),
    "grad(vmap of one)": lambda tf, f, xs: tf.grad(
        scalar(tf.vmap(f, (0, *(None,) * (len(xs) - 1)))), all_of(xs)
    )(*batch(xs[:1], 2), *xs[1:]),
    "vmap(vmap(grad))": lambda tf, f, xs: tf.vmap(tf.vmap(tf.grad(scalar(f))))(*batch(xs, 2, 3)),
    "grad(vmap(vmap))": lambda tf, f, xs: tf.grad(scalar(tf.vmap(tf.vmap(f))), all_of(xs))(
        *batch(xs, 2, 3)
    ),
    "grad(vmap(vmap of one))": lambda tf, f, xs: tf.grad(
        scalar(tf.vmap(tf.vmap(f, (0, *(None,) * (len(xs) - 1))))), all_of(xs)
    )(*batch(batch(xs[:1], 3) + xs[1:], 2)),
    "grad(vmap(vmap(vmap)))": lambda tf, f, xs: tf.grad(
        scalar(tf.vmap(tf.vmap(tf.vmap(f)))), all_of(xs)
    )(*batch(xs, 2, 3, 2)),
}
TWICE = {
    "jvp": jvp,
    "vmap(jvp)": lambda tf, f, xs: tf.vmap(lambda *xs: jvp(tf, f, xs))(*batch(xs, 2)),
    "jvp(vmap)": lambda tf, f, xs: jvp(tf, tf.vmap(f), batch(xs, 2)),
    "jvp(vmap(vmap))": lambda tf, f, xs: jvp(tf, tf.vmap(tf.vmap(f)), batch(xs, 2, 3)),
    "vmap(jvp(vmap))": lambda tf, f, xs: tf.vmap(lambda *xs: jvp(tf, tf.vmap(f), xs))(
        *batch(xs, 2, 3)
    ),
    "grad(grad(vmap(vmap)))": lambda tf, f, xs: tf.grad(
        scalar(tf.grad(scalar(tf.vmap(tf.vmap(f))), all_of(xs)))
    )(*batch(xs, 2, 3)),
    "jvp(grad)": lambda tf, f, xs: jvp(tf, tf.grad(scalar(f), all_of(xs)), xs),
    "jvp(jvp)": lambda tf, f, xs: jvp(tf, lambda *xs: jvp(tf, f, xs)[1], xs),
    "grad(grad)": lambda tf, f, xs: tf.grad(scalar(tf.grad(scalar(f), all_of(xs))))(*xs),
    "grad(jvp)": lambda tf, f, xs: tf.grad(scalar(lambda *xs: jvp(tf, f, xs)))(*xs),
    "hessian": lambda tf, f, xs: tf.hessian(scalar(f))(*xs),
    "vmap(hessian)": lambda tf, f, xs: tf.vmap(tf.hessian(scalar(f)))(*batch(xs, 2)),
}
FUNCTIONALIZE = {
    "functionalize": lambda tf, f, xs: tf.functionalize(f)(*xs),
    "functionalize(grad)": lambda tf, f, xs: tf.functionalize(tf.grad(scalar(f)))(*xs),
    "grad(functionalize)": lambda tf, f, xs: tf.grad(scalar(tf.functionalize(f)))(*xs),
    "functionalize(vmap)": lambda tf, f, xs: tf.functionalize(tf.vmap(f))(*batch(xs, 2)),
    "vmap(functionalize)": lambda tf, f, xs: tf.vmap(tf.functionalize(f))(*batch(xs, 2)),
    "vmap(vmap(functionalize))": lambda tf, f, xs: tf.vmap(tf.vmap(tf.functionalize(f)))(
        *batch(xs, 2, 3)
    ),
    "grad(vmap(functionalize))": lambda tf, f, xs: tf.grad(
        scalar(tf.vmap(tf.functionalize(f))), all_of(xs)
    )(*batch(xs, 2)),
}


def pairs(transforms):
    return [
        pytest.param(case, transform, id=f"{name}: {case.name}")
        for name, transform in transforms.items()
        for case in CASES
        if case.twice or transforms is not TWICE
    ]


def old_style(function):
    """Converts the Function to the old style: forward also does setup_context's work."""
    forward = autograd_function_forward_rewritten(function.forward, function.setup_context)
    static = {"forward": staticmethod(forward)}
    static["setup_context"] = staticmethod(torch.autograd.Function.setup_context)
    return type(function.__name__, (function,), static)


def calling(case: Case, function):
    return functools.partial(case.call, function.apply)


def check(case, transform):
    before = ambient()
    expected = transform(torch.func, case.plain, case.inputs)
    for function in (case.function, old_style(case.function)):
        ours = transform(tl, calling(case, function), case.inputs)
        torch.testing.assert_close(ours, expected, msg=lambda m, f=function: f"{f.forward}: {m}")
    assert ambient() == before


@pytest.mark.sweep
@pytest.mark.parametrize(("case", "transform"), pairs(ONCE))
def test_once_differentiated(case, transform):
    check(case, transform)


@pytest.mark.sweep
@pytest.mark.parametrize(("case", "transform"), pairs(TWICE))
def test_twice_differentiated(case, transform):
    check(case, transform)


@pytest.mark.sweep
@pytest.mark.parametrize(("case", "transform"), pairs(FUNCTIONALIZE))
def test_functionalized(case, transform):
    check(case, transform)


# Functions that torch.func rejects under the named transform, with the reason.
TORCH_FUNC_REFUSES = {
    ("TanhByVjp", "grad"): "it knows no vjp, only backward",
    ("TanhByVjp", "vjp"): "it knows no vjp, only backward",
    ("TanhByVjp", "hessian"): "it knows no vjp, only backward",
    ("ExpInPlace", "vmap"): "it marks batched tensors as dirty, not those inside",
    ("Containers", "jvp(vmap"): "it takes a container of numbers for one of tensors",
    ("NonDifferentiableFloat", "jvp(vmap"): "it marks batched tensors, not those inside",
    ("WithoutMaterializedGrads", "jvp(vmap"): "it marks batched tensors, not those inside",
}


@pytest.mark.sweep
@pytest.mark.parametrize("name", [*ONCE, *TWICE])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_results_equal_torch_funcs(case, name):
    """Bitwise equal if torch.func accepts it, except for jvp(jvp), where it loses tangents.

    Forward mode rounds as torch's forward-mode rules do.
    """
    if name in TWICE and not case.twice:
        name = "grad"
    transform = (ONCE | TWICE)[name]

    def call(tf):
        return transform(tf, calling(case, case.function), case.inputs)

    refuses = any(f == case.name and part in name for f, part in TORCH_FUNC_REFUSES)
    if refuses:
        with pytest.raises((RuntimeError, ValueError)):
            call(torch.func)
        call(tl)
    elif name == "jvp(jvp)":
        expected = transform(torch.func, case.plain, case.inputs)
        torch.testing.assert_close(call(tl), expected)
        if close(call(torch.func), expected):
            assert case.name in LINEAR or case.name in ("NumpySort", "NumpyTake")
    else:
        agree(call)


# Functions whose jvp reads only the tangent and calls no differentiable operator.
LINEAR = ("Identity", "Flatten", "Middle")


def close(ours, theirs):
    try:
        torch.testing.assert_close(ours, theirs)
    except AssertionError:
        return False
    return True


# Functions whose gradient intentionally differs from the derivative.
NOT_DERIVATIVES = ("StraightThrough", "WithoutGradientForOne", "NonDifferentiableFloat")


@pytest.mark.sweep
@pytest.mark.parametrize(
    "case", [case for case in CASES if case.name not in NOT_DERIVATIVES], ids=lambda c: c.name
)
@pytest.mark.parametrize("transform", ["vmap", "vmap(vmap)", "vjp"])
def test_by_finite_differences(case, transform):
    """First and second derivatives by plain autograd of the transformed function."""
    f = calling(case, case.function)
    transformed, sizes = {
        "vmap": (tl.vmap(f), (2,)),
        "vmap(vmap)": (tl.vmap(tl.vmap(f)), (2, 1)),
        "vjp": (lambda *xs: tl.vjp(f, *xs)[0], ()),
    }[transform]
    inputs = batch(case.inputs, *sizes)
    tracked = tuple(x.clone().requires_grad_() for x in inputs)

    def outputs(*xs):
        return tuple(output for output in floats(transformed(*xs)) if output.requires_grad)

    assert torch.autograd.gradcheck(outputs, tracked)
    if case.twice:
        assert torch.autograd.gradgradcheck(outputs, tracked)
