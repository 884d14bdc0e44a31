"""A Function's backward or jvp that differentiates a detached copy of what it reads."""

import pytest
import torch

import torchlayers as tl
from tests.support.calls import ambient
from torchlayers.errors import FunctionError

X = torch.tensor([0.3, 0.7], dtype=torch.float64)
XS = torch.stack([X, X + 1])


class Cube(torch.autograd.Function):
    """(x**3).sum(), whose derivative is computed by torch.autograd.grad."""

    generate_vmap_rule = True
    leaf = staticmethod(lambda x: x.detach().requires_grad_())

    @staticmethod
    def forward(x):
        return (x**3).sum()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @classmethod
    def slope(cls, x):
        with torch.enable_grad():
            y = cls.leaf(x)
            return torch.autograd.grad((y**3).sum(), y)[0]

    @staticmethod
    def backward(ctx, g):
        return g * Cube.slope(ctx.saved_tensors[0])

    @staticmethod
    def jvp(ctx, t):
        return (t * Cube.slope(ctx.saved_tensors[0])).sum()


class Viewed(Cube):
    """As the error's advice says."""

    leaf = staticmethod(lambda x: x.view_as(x).requires_grad_())

    @staticmethod
    def backward(ctx, g):
        return g * Viewed.slope(ctx.saved_tensors[0])

    @staticmethod
    def jvp(ctx, t):
        return (t * Viewed.slope(ctx.saved_tensors[0])).sum()


class OnAnAttribute(Cube):
    """Old-style, and what backward detaches is an attribute of ctx."""

    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        return (x**3).sum()

    @staticmethod
    def backward(ctx, g):
        return g * Cube.slope(ctx.x)

    setup_context = torch.autograd.Function.setup_context


class OfAConstant(Cube):
    """x @ slope(a): what is detached is a, which may be no argument of the derivative."""

    @staticmethod
    def forward(x, a):
        return x @ (3 * a**2)

    @staticmethod
    def backward(ctx, g):
        x, a = ctx.saved_tensors
        return g * Cube.slope(a) * x / X, None

    @staticmethod
    def jvp(ctx, t, _):
        x, a = ctx.saved_tensors
        return t @ (Cube.slope(a) * x / X)


FIRST = {
    "grad": (tl.grad, X),
    "vjp": (lambda f: lambda x: tl.vjp(f, x)[1](torch.ones_like(x.sum()))[0], X),
    "vmap of grad": (lambda f: tl.vmap(tl.grad(f)), XS),
    "grad of vmap": (lambda f: tl.grad(lambda x: tl.vmap(f)(x).sum()), XS),
    "jvp": (lambda f: lambda x: tl.jvp(f, (x,), (torch.ones_like(x),))[1], X),
    "a gradient that is not differentiated": (
        lambda f: tl.grad(lambda x: (x * tl.grad(f)(x.detach())).sum()),
        X,
    ),
}
SECOND = {
    "jacrev of grad": (lambda f: tl.jacrev(tl.grad(f)), X, "backward"),
    "jacfwd of grad": (lambda f: tl.jacfwd(tl.grad(f)), X, "backward"),
    "vmap of jacrev of grad": (lambda f: tl.vmap(tl.jacrev(tl.grad(f))), XS, "backward"),
    "jacfwd of vmap of grad": (lambda f: tl.jacfwd(tl.vmap(tl.grad(f))), XS, "backward"),
    "grad of jvp": (lambda f: tl.grad(FIRST["jvp"][0](f)), X, "jvp"),
    "jvp of jvp": (
        lambda f: lambda x: tl.jvp(FIRST["jvp"][0](f), (x,), (torch.ones_like(x),))[1],
        X,
        "jvp",
    ),
    "plain autograd around grad": (
        lambda f: lambda x: torch.autograd.functional.jacobian(tl.grad(f), x),
        X,
        "backward",
    ),
    "a gradient with its graph inside grad": (
        lambda f: tl.jacrev(lambda x: torch.autograd.grad(f(x), x, create_graph=True)[0]),
        X,
        "backward",
    ),
}


@pytest.mark.parametrize("name", FIRST)
@pytest.mark.parametrize("function", [Cube, Viewed])
def test_first_derivatives_are_right(name, function):
    transform, x = FIRST[name]
    torch.testing.assert_close(transform(function.apply)(x), transform(lambda x: (x**3).sum())(x))


@pytest.mark.parametrize("name", SECOND)
def test_a_second_derivative_is_refused(name):
    transform, x, method = SECOND[name]
    before = ambient()
    with pytest.raises(FunctionError) as caught:
        transform(Cube.apply)(x)
    assert str(caught.value) == (
        f"torchlayers: Cube.{method} calls torch.autograd.grad with respect to a detached copy of "
        "a tensor that it reads, so its result can't be differentiated with respect to that "
        "tensor. Write x.view_as(x).requires_grad_() instead of x.detach().requires_grad_(), or "
        "use torchlayers.grad or vjp there, which need no leaf."
    )
    assert ambient() == before


@pytest.mark.parametrize("name", SECOND)
def test_a_view_in_place_of_the_copy_is_differentiated(name):
    transform, x, _ = SECOND[name]
    torch.testing.assert_close(transform(Viewed.apply)(x), transform(lambda x: (x**3).sum())(x))


def test_a_copy_of_an_attribute_of_ctx_is_refused():
    torch.testing.assert_close(tl.grad(OnAnAttribute.apply)(X), 3 * X**2)
    with pytest.raises(FunctionError, match=r"OnAnAttribute\.backward calls torch\.autograd\.grad"):
        tl.jacrev(tl.grad(OnAnAttribute.apply))(X)


@pytest.mark.parametrize("transform", [tl.jacrev, tl.jacfwd])
def test_a_copy_of_a_constant_is_a_constant(transform):
    hessian = transform(tl.grad(lambda x: OfAConstant.apply(x, X.clone())))(X)
    torch.testing.assert_close(hessian, torch.diag(3 * X))


@pytest.mark.parametrize("transform", [tl.jacrev, tl.jacfwd])
def test_only_the_tensor_that_was_detached_is_refused(transform):
    by_both = tl.grad(lambda x, a: OfAConstant.apply(x, a))
    torch.testing.assert_close(transform(by_both)(X, X.clone()), torch.diag(3 * X))
    with pytest.raises(FunctionError, match=r"OfAConstant\.backward"):
        transform(by_both, 1)(X, X.clone())


def copied_under_no_grad(x):
    copy = torch.zeros_like(x)
    with torch.no_grad():
        copy.copy_(x)
    return copy.requires_grad_()


COPIES = {
    "detach().clone()": lambda x: x.detach().clone().requires_grad_(),
    "clone().detach()": lambda x: x.clone().detach().requires_grad_(),
    "detach().float()": lambda x: x.detach().float().requires_grad_(),
    "data": lambda x: x.data.requires_grad_(),
    "data.clone()": lambda x: x.data.clone().requires_grad_(),
    "torch.tensor": lambda x: torch.tensor(x, requires_grad=True),
    "new_tensor": lambda x: x.new_tensor(x).requires_grad_(),
    "under no_grad": copied_under_no_grad,
}


@pytest.mark.filterwarnings("ignore:To copy construct")
@pytest.mark.parametrize("copy", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize("name", ["jacrev of grad", "vmap of jacrev of grad", "grad of jvp"])
def test_a_copy_with_memory_of_its_own_is_refused(monkeypatch, copy, name):
    monkeypatch.setattr(Cube, "leaf", staticmethod(copy))
    first, x = FIRST["jvp" if name == "grad of jvp" else "grad"]
    assert first(Cube.apply)(x).dtype == x.dtype
    transform, x, method = SECOND[name]
    with pytest.raises(FunctionError, match=rf"Cube\.{method} calls torch\.autograd\.grad"):
        transform(Cube.apply)(x)


def test_a_copy_under_no_grad_has_the_tangent(monkeypatch):
    monkeypatch.setattr(Cube, "leaf", staticmethod(copied_under_no_grad))
    torch.testing.assert_close(tl.jacfwd(tl.grad(Cube.apply))(X), torch.diag(6 * X))


class Paired(torch.autograd.Function):
    """x @ (3 * a**2), whose backward differentiates copies of both or leaves of its own."""

    leaf = staticmethod(lambda x, a: a.detach().clone().requires_grad_())

    @staticmethod
    def forward(x, a):
        return x @ (3 * a**2)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        x, a = ctx.saved_tensors
        with torch.enable_grad():
            leaf = Paired.leaf(x, a)
            slope = torch.autograd.grad((leaf * 3 * a**2).sum(), leaf)[0]
        return g * slope, g * 6 * x * a


def test_a_copy_of_a_constant_of_equal_values_is_not_refused():
    hessian = tl.jacrev(tl.grad(lambda x: Paired.apply(x, X.clone())))(X)
    torch.testing.assert_close(hessian, torch.zeros(2, 2, dtype=X.dtype))


@pytest.mark.parametrize("make", [torch.zeros_like, torch.ones_like])
def test_a_leaf_that_is_no_copy_is_not_refused(monkeypatch, make):
    """As that of a backward that is pulled back twice."""
    monkeypatch.setattr(Paired, "leaf", staticmethod(lambda x, a: make(x, requires_grad=True)))
    second = tl.jacrev(tl.grad(lambda x: Paired.apply(x, x)))
    for x in (X, torch.zeros_like(X)):
        torch.testing.assert_close(second(x), torch.diag(18 * x))
