"""Functions inside transforms, under modes, on threads, and in compiled code."""

import concurrent.futures
import functools
from typing import ClassVar

import pytest
import torch
import torch.func
from torch.fx.experimental.proxy_tensor import make_fx

import torchlayers as tl
from tests.autograd_function.corpus import CASES, Batchable, ExpInPlace, Mul, Square
from tests.autograd_function.test_corpus import ONCE, calling, old_style
from tests.support.calls import agree

X = torch.tensor([0.5, 1.0, 2.0])


class MatMul(Batchable):
    dtypes: ClassVar[list[torch.dtype]] = []

    @staticmethod
    def forward(x, y):
        MatMul.dtypes.append((x @ y).dtype)
        return x @ y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g @ y.T, x.T @ g


def test_autocast_reaches_the_forward():
    x = torch.randn(3, 3)
    MatMul.dtypes.clear()
    with torch.autocast("cpu"):
        outputs = [
            tl.vjp(MatMul.apply, x, x)[0],
            tl.vmap(MatMul.apply)(x.expand(2, 3, 3), x.expand(2, 3, 3)),
            tl.vjp(tl.vmap(MatMul.apply), x.expand(2, 3, 3), x.expand(2, 3, 3))[0],
        ]
    assert {output.dtype for output in outputs} == {torch.bfloat16}
    assert set(MatMul.dtypes) == {torch.bfloat16}


@pytest.mark.parametrize("function", [Square, old_style(Square)], ids=["new", "old"])
def test_no_grad_outside_has_no_effect(function):
    with torch.no_grad():
        gradient = tl.grad(lambda x: function.apply(x).sum())(X)
    torch.testing.assert_close(gradient, 2 * X)


@pytest.mark.parametrize("function", [Square, old_style(Square)], ids=["new", "old"])
def test_no_grad_inside_makes_a_constant_at_every_level(function):
    """As for an operator; torch.func still differentiates a Function at the outer levels."""

    def twice(square):
        def f(x):
            with torch.no_grad():
                constant = square(x)
            return (constant * x).sum()

        return tl.grad(lambda x: tl.grad(f)(x).sum())(X)

    torch.testing.assert_close(twice(function.apply), twice(torch.square))
    torch.testing.assert_close(twice(function.apply), torch.zeros(3))


def test_inference_mode_outside():
    def call(tf):
        with torch.inference_mode():
            return tf.grad(lambda x: Square.apply(x).sum())(X)

    agree(call)


def test_plain_autograd_below_the_layers():
    x = X.clone().requires_grad_()
    for function in (Square, old_style(Square)):
        (gradient,) = torch.autograd.grad(tl.vmap(tl.grad(function.apply))(x).sum(), x)
        torch.testing.assert_close(gradient, torch.full((3,), 2.0))


def test_threads_generate_and_apply_at_once():
    def work(i):
        function = old_style(Mul)
        return tl.vmap(tl.grad(lambda x: function.apply(x, x).sum()))(X.expand(2, 3) + i)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for i, result in enumerate(pool.map(work, range(32))):
            torch.testing.assert_close(result, 2 * (X.expand(2, 3) + i))


def test_functionalized_graphs_have_no_mutations():
    def f(x):
        return ExpInPlace.apply(x.clone()) * Square.apply(x)

    traced = make_fx(tl.functionalize(f))(X)
    for node in traced.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload):
            assert not node.target._schema.is_mutable
    torch.testing.assert_close(traced(X + 1), (X + 1).exp() * (X + 1) ** 2)


# Functions that Dynamo can't trace, or traces wrongly; so it is with torch.func's transforms, to
# which ours are mapped under torch.compile.
NOT_COMPILED = {
    "ExpInPlace": "mark_dirty",
    "DefaultArgument": "setup_context that looks at the number of inputs",
    "Containers": "arguments that are containers, old-style",
    "Linear": "an old-style forward with three inputs",
    "Concatenate": "a forward that takes any number of inputs",
    "WithoutGradientForOne": "Dynamo differentiates forward, and not by backward",
    "NonDifferentiableFloat": "Dynamo differentiates forward, and not by backward",
    "ScaleInPlaceOnDetached": "Dynamo differentiates forward, and not by backward",
    "CallsAFunction": "a Function in a Function with a jvp",
    "NumpyCube": "NumPy",
    "NumpyMul": "NumPy",
    "NumpySort": "NumPy",
    "NumpyTake": "NumPy",
}


@pytest.mark.sweep(one_in=16)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_compiled(case):
    """No graph break alone, under grad, and under vmap, in the new and the old style."""
    differing = [
        (style, name)
        for style, function in (("new", case.function), ("old", old_style(case.function)))
        for name in ("alone", "grad", "vmap")
        if not compiles(name, case, function)
    ]
    assert bool(differing) == (case.name in NOT_COMPILED), differing


def compiles(name, case, function):
    transform = ONCE.get(name, lambda tf, f, xs: f(*xs))
    compute = functools.partial(transform, tl, calling(case, function))
    torch._dynamo.reset()
    try:
        result = torch.compile(compute, backend="eager", fullgraph=True)(case.inputs)
    except Exception:  # Dynamo raises many kinds of errors
        return False
    expected = transform(torch.func, case.plain, case.inputs)
    try:
        torch.testing.assert_close(result, expected)
    except AssertionError:
        return False
    return True
