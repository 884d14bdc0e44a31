"""torch.autograd.functional inside transforms: right, or refused in words."""

import pytest
import torch

import torchlayers as tl
from torchlayers.errors import TransformError

X = torch.randn(3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
XS = torch.stack([X, 2 * X])
ONES = torch.ones(3, dtype=torch.float64)
REFUSED = r"torchlayers: torch\.autograd\.functional, inside a transform that differentiates, takes"

FUNCTIONALS = {
    "jacobian": (
        lambda x: torch.autograd.functional.jacobian(torch.sin, x),
        torch.func.jacrev(torch.sin),
    ),
    "hessian": (
        lambda x: torch.autograd.functional.hessian(lambda x: x.sin().sum(), x),
        lambda x: torch.diag_embed(-x.sin()),
    ),
    "vjp": (lambda x: torch.autograd.functional.vjp(torch.sin, x, ONES)[1], torch.cos),
    "jvp": (lambda x: torch.autograd.functional.jvp(torch.sin, x, ONES)[1], torch.cos),
    "hvp": (
        lambda x: torch.autograd.functional.hvp(lambda x: x.sin().sum(), x, ONES)[1],
        lambda x: -x.sin(),
    ),
    "vhp": (
        lambda x: torch.autograd.functional.vhp(lambda x: x.sin().sum(), x, ONES)[1],
        lambda x: -x.sin(),
    ),
}


@pytest.mark.parametrize("kind", FUNCTIONALS)
def test_torchs_functionals_under_vmap(kind):
    functional, expected = FUNCTIONALS[kind]
    torch.testing.assert_close(tl.vmap(functional)(XS), torch.stack([expected(x) for x in XS]))


def test_torchs_functional_is_differentiated_where_it_makes_a_graph():
    def f(x):
        return torch.autograd.functional.jacobian(torch.sin, x, create_graph=True).sum()

    torch.testing.assert_close(tl.grad(f)(X), -X.sin())
    torch.testing.assert_close(tl.vmap(tl.grad(f))(XS), -XS.sin())


def with_graph(x):
    return torch.autograd.functional.jvp(torch.sin, x, x, create_graph=True)[1]


def with_recorded_inputs(x):
    return with_graph((x * 1).requires_grad_())


def by_v(x):
    return torch.autograd.functional.jvp(torch.sin, ONES, x, create_graph=True)[1]


DIFFERENTIATED = {
    "jvp": lambda f: lambda x: tl.jvp(f, (x,), (ONES,))[1],
    "jacfwd": tl.jacfwd,
    "sparse jacfwd": lambda f: lambda x: tl.jacfwd(f, sparse=True)(x).to_dense(),
    "jet": lambda f: lambda x: tl.jet(f, (x,), ((ONES,),))[1][0],
    "jet in functionalize": lambda f: tl.functionalize(DIFFERENTIATED["jet"](f)),
    "laplacian": tl.laplacian,
}


@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
@pytest.mark.parametrize("nest", DIFFERENTIATED)
@pytest.mark.parametrize("f", [with_graph, by_v, with_recorded_inputs])
def test_torchs_functional_never_loses_a_derivative(f, nest, captured):
    run = DIFFERENTIATED[nest](f)
    run = tl.compile(run, backend="replay") if captured else run
    if f is with_recorded_inputs and nest in ("jvp", "jacfwd"):
        expected = DIFFERENTIATED[nest](lambda x: x * x.cos())(X)
        torch.testing.assert_close(run(X), expected)
    else:
        with pytest.raises(TransformError, match=REFUSED):
            run(X)


@pytest.mark.parametrize("functional", FUNCTIONALS)
def test_torchs_functional_in_a_captured_gradient_is_refused(functional):
    f = FUNCTIONALS[functional][0]
    with pytest.raises(TransformError, match=REFUSED):
        tl.compile(tl.grad(lambda x: f(x).sum()), backend="replay")(X)


def test_torchs_functional_is_refused_under_other_layers():
    with pytest.raises(TransformError, match=REFUSED):
        tl.jvp(tl.vmap(FUNCTIONALS["jacobian"][0]), (XS,), (XS,))
    assert tl.current_stack() == ()


def cubes(x):
    return x**3


def jacobian(strategy, **options):
    def f(x):
        return torch.autograd.functional.jacobian(
            cubes, x, vectorize=True, strategy=strategy, **options
        ).sum()

    return f


def grads_of_a_batch(x):
    cotangents = torch.eye(3, dtype=x.dtype)
    return torch.autograd.grad(cubes(x), x, cotangents, is_grads_batched=True)[0].sum()


def grads_of_an_unused_input(x):
    both = [x, torch.zeros_like(x).requires_grad_()]
    return torch.autograd.functional.jacobian(
        lambda x, _: cubes(x), tuple(both), vectorize=True, create_graph=True
    )[0].sum()


VECTORIZED = {
    "reverse": jacobian("reverse-mode", create_graph=True),
    "forward": jacobian("forward-mode"),
    "is_grads_batched": grads_of_a_batch,
    "unused": grads_of_an_unused_input,
}


@pytest.mark.parametrize("name", VECTORIZED)
def test_vectorized_derivatives_are_differentiated(name):
    f = VECTORIZED[name]
    torch.testing.assert_close(tl.grad(f)(X), 6 * X)
    torch.testing.assert_close(tl.vmap(tl.grad(f))(XS), 6 * XS)
    torch.testing.assert_close(tl.compile(tl.grad(f), backend="replay")(X), 6 * X)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # in torch's vmap
@pytest.mark.parametrize("name", ["reverse", "forward"])
def test_vectorized_derivatives_below_another_layer_are_refused(name):
    f = VECTORIZED[name]
    for nest in (lambda x: tl.vmap(f)(x[None])[0], tl.functionalize(f)):
        with pytest.raises(TransformError, match=r"vectorize=True .*\. Leave them out"):
            tl.grad(nest)(X)
    torch.testing.assert_close(tl.vmap(f)(XS), torch.stack([f(x) for x in XS]))
    assert tl.current_stack() == ()
