"""Calls of transforms: one path in, through and out, for any arguments, modes and errors."""

import contextlib
import functools
import threading
import weakref
from collections import OrderedDict
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

import torchlayers as tl
from tests.support.calls import ambient, assert_same
from torchlayers import _C
from torchlayers.core import pytree
from torchlayers.core.torch_versions import DYNAMO_ATTRIBUTES


class Watching(TorchFunctionMode):
    """A mode that does nothing."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Subclass(Tensor):
    pass


def nest(x, y):
    return {"b": [x, (y, {})], 0: (x,)}


X = torch.arange(6.0).view(2, 3) + 1
Y = X.flip(0)
PARAMETER = torch.nn.Parameter(X.clone())


def square(x):
    return (x * x).sum(-1)


class Primals(NamedTuple):
    x: Tensor
    y: Tensor


def product(x, y):
    return (x * y).sum()


def yields(x):
    yield x


CALLS = {
    "vmap": lambda: tl.vmap(square)(X),
    "vmap, in_dims": lambda: tl.vmap(product, (0, 1))(X, X.t()),
    "vmap, in_dims from the end": lambda: tl.vmap(square, -1)(X),
    "vmap, one argument not batched": lambda: tl.vmap(product, (0, None))(X, Y),
    "vmap, out_dims": lambda: tl.vmap(torch.sin, out_dims=-1)(X),
    "vmap, a tuple": lambda: tl.vmap(lambda x: (x, x.sum()), out_dims=(1, 0))(X),
    "vmap, a dict": lambda: tl.vmap(lambda x: {"a": x})(X),
    "vmap of a list": lambda: tl.vmap(lambda xs: xs[0] * xs[1])([X, Y]),
    "vmap, nests": lambda: tl.vmap(lambda p: nest(p["b"][0], p[0][0].sin()))(nest(X, Y)),
    "vmap, nests of two dims": lambda: tl.vmap(
        lambda p, q: p["b"][0] * q[0], in_dims=(0, None), out_dims=1
    )(nest(X, Y), [Y[0], None, 2]),
    "vmap of an OrderedDict": lambda: tl.vmap(lambda p: p["x"])(OrderedDict(x=X)),
    "vmap, nothing": lambda: tl.vmap(lambda x: [])(X),
    "vmap, keyword arguments": lambda: tl.vmap(lambda x, y: x + y)(X, y=Y),
    "vmap, what is not batched": lambda: tl.vmap(lambda x: Y)(X),
    "vmap of a parameter": lambda: tl.vmap(square)(PARAMETER),
    "vmap of a subclass": lambda: tl.vmap(square)(X.as_subclass(Subclass)),
    "vmap of vmap": lambda: tl.vmap(tl.vmap(torch.sin, out_dims=-1), out_dims=-1)(X),
    "vmap, an int of a subclass": lambda: tl.vmap(square, in_dims=True)(X),
    "vmap of grad": lambda: tl.vmap(tl.grad(square))(X),
    "grad": lambda: tl.grad(product)(X, Y),
    "grad, argnums": lambda: tl.grad(product, (1, -2))(X, Y),
    "grad, nests": lambda: tl.grad(lambda p, c: (p[0][0] * p["b"][1][0]).sum() * c["c"])(
        nest(X, Y), {"c": 2.0, "d": None}
    ),
    "grad, two nests": lambda: tl.grad(lambda p, q: (p[0] * q["q"]).sum(), (1, 0))([X], {"q": Y}),
    "grad, a nest that is changed": lambda: tl.grad(lambda p: p.popitem()[1].sum())(
        {"a": X, "b": Y}
    ),
    "grad, keyword arguments": lambda: tl.grad(product)(X, y=Y),
    "grad, an argument that is no tensor": lambda: tl.grad(product)(X, 2.0),
    "grad of a parameter": lambda: tl.grad(torch.sum)(PARAMETER),
    "grad of a subclass": lambda: tl.grad(torch.sum)(X.as_subclass(Subclass)),
    "grad, unused": lambda: tl.grad(lambda x, y: y.sum(), (0, 1))(X, Y),
    "grad, a constant": lambda: tl.grad(lambda x: torch.ones(()))(X),
    "grad, has_aux": lambda: tl.grad(lambda x: (x.sum(), x), has_aux=True)(X),
    "grad_and_value": lambda: tl.grad_and_value(torch.sum)(X),
    "grad of grad": lambda: tl.grad(lambda x: tl.grad(torch.sum)(x).sum())(X),
    "jvp": lambda: tl.jvp(product, (X, Y), (Y, X)),
    "jvp, a constant": lambda: tl.jvp(lambda x: Y, (X,), (Y,)),
    "jvp, a tuple": lambda: tl.jvp(lambda x: (x, Y), (X,), (Y,)),
    "jvp, of a parameter": lambda: tl.jvp(square, (PARAMETER,), (Y,)),
    "jvp, of a list": lambda: tl.jvp(lambda xs: xs[0] * xs[1], ([X, Y],), ([Y, X],)),
    "jvp, nests": lambda: tl.jvp(
        lambda p: nest(p["b"][0], p[0][0].sin()), (nest(X, Y),), (nest(Y, X),)
    ),
    "jvp, a named tuple of primals": lambda: tl.jvp(product, Primals(X, Y), (Y, X)),
    "jvp of jvp": lambda: tl.jvp(lambda x: tl.jvp(square, (x,), (x,)), (X,), (Y,)),
}

REFUSED = {
    "vmap, no arguments": lambda: tl.vmap(square)(),
    "vmap, in_dim out of range": lambda: tl.vmap(square, 2)(X),
    "vmap of a scalar": lambda: tl.vmap(square)(torch.ones(())),
    "vmap of a number": lambda: tl.vmap(square)(1.0),
    "vmap, in_dims of None": lambda: tl.vmap(square, (None,))(X),
    "vmap, too few in_dims": lambda: tl.vmap(product, (0,))(X, Y),
    "vmap, an in_dim that is no int": lambda: tl.vmap(square, (0.5,))(X),
    "vmap, two sizes": lambda: tl.vmap(product, (0, 1))(X, Y),
    "vmap, an out_dim out of range": lambda: tl.vmap(square, out_dims=1)(X),
    "vmap, no result": lambda: tl.vmap(lambda x: None)(X),
    "vmap, NotImplemented": lambda: tl.vmap(lambda x: NotImplemented)(X),
    "vmap, a number": lambda: tl.vmap(lambda x: 1.0)(X),
    "vmap, a generator": lambda: tl.vmap(yields)(X),
    "vmap, another argument": lambda: tl.vmap(square)(X, X),
    "grad, not a scalar": lambda: tl.grad(square)(X),
    "grad, a complex value": lambda: tl.grad(lambda x: (x * 1j).sum())(X),
    "grad, no tensor": lambda: tl.grad(lambda x: 1.0)(X),
    "grad, a generator": lambda: tl.grad(yields)(X),
    "grad, ints": lambda: tl.grad(torch.sum)(X.long()),
    "grad, argnums out of range": lambda: tl.grad(torch.sum, 1)(X),
    "grad, argnums twice": lambda: tl.grad(product, (0, -2))(X, Y),
    "vmap, a nest of two sizes": lambda: tl.vmap(square)([X, X.t()]),
    "vmap, a nest with a number": lambda: tl.vmap(square)([X, 1.0]),
    "vmap, a nest with a number, returned": lambda: tl.vmap(lambda x: [x, 1.0])(X),
    "grad, a nest with a number": lambda: tl.grad(lambda p: p[0].sum())([X, 1.0]),
    "grad, a nest of ints": lambda: tl.grad(lambda p: p[0].sum())([X.long()]),
    "jvp, nests of two shapes": lambda: tl.jvp(square, ([X],), ([X[0]],)),
    "jvp, other keys": lambda: tl.jvp(square, ({"x": X},), ({"y": X},)),
    "jvp, a dict of another order": lambda: tl.jvp(
        lambda p: p["a"] * p["b"], ({"a": X, "b": Y},), ({"b": X, "a": Y},)
    ),
    "jvp, nests of two dtypes": lambda: tl.jvp(
        lambda p: p["x"] @ p["x"].t(), ({"x": X},), ({"x": Y.double()},)
    ),
    "jvp, nothing": lambda: tl.jvp(lambda x: [], (X,), (Y,)),
    "jvp, a generator": lambda: tl.jvp(yields, (X,), (Y,)),
    "jvp, two shapes": lambda: tl.jvp(square, (X,), (Y[0],)),
    "jvp, a named tuple of tangents": lambda: tl.jvp(product, (X, Y), Primals(Y, X)),
    "jvp, a list of tangents": lambda: tl.jvp(product, (X, Y), [Y, X]),
    "jvp, None for a tangent": lambda: tl.jvp(product, (X, Y), (Y, None)),
    "jvp, a list of primals": lambda: tl.jvp(product, [X, Y], (Y, X)),
    "jvp, too few tangents": lambda: tl.jvp(product, (X, Y), (Y,)),
    "jvp, ints": lambda: tl.jvp(square, (X.long(),), (Y,)),
    "jvp, two dtypes": lambda: tl.jvp(lambda x: x @ x.t(), (X,), (Y.double(),)),
    "jacfwd, no tensor": lambda: tl.jacfwd(lambda x: 1.0)(X),
}


def refusal(call):
    with pytest.raises(Exception, match=r".") as caught:
        call()
    return caught.type, str(caught.value)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_mode_around_changes_nothing(call):
    before = ambient()
    ours = call()
    assert ambient() == before
    with Watching():
        assert_same(ours, call())


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED)
def test_error_messages_are_the_same_in_a_mode(call):
    before = ambient()
    ours = refusal(call)
    assert ambient() == before
    with Watching():
        assert refusal(call) == ours


@pytest.mark.parametrize("transform", [tl.vmap, tl.grad])
def test_infinite_nesting_is_rejected(transform):
    endless = [X]
    endless.append(endless)
    with pytest.raises(RecursionError):
        transform(lambda p: p[0].sum())(endless)


COMMON = {
    "vmap": lambda: tl.vmap(torch.mul)(X, PARAMETER),
    "vmap, in_dims and out_dims": lambda: tl.vmap(torch.mul, (0, None), -1)(X, Y[0]),
    "vmap, nests": lambda: tl.vmap(lambda p: nest(p[0][0], p["b"][0]))(nest(X, Y)),
    "vmap, what is no tensor": lambda: tl.vmap(lambda p, c: p * c(2), (0, None))(X, float),
    "vmap of a subclass": lambda: tl.vmap(square)(X.as_subclass(Subclass)),
    "grad": lambda: tl.grad(product, (0, -1))(X, Y),
    "grad, keyword arguments": lambda: tl.grad(product)(X, y=Y),
    "grad, what is no tensor": lambda: tl.grad(lambda p, c: p["x"].sum() * c[0])({"x": X}, [2.0]),
    "vjp": lambda: tl.vjp(lambda x, y: (x * y, [x]), X, Y)[1]((X, [Y])),
    "jvp": lambda: tl.jvp(lambda p: nest(p[0], p[0].sin()), ([X],), ([Y],)),
}


@pytest.mark.parametrize("call", COMMON.values(), ids=COMMON)
def test_builtin_containers_bypass_torch_pytree(call, monkeypatch):
    wanted = call()
    for name in ("flatten", "unflatten", "leaves", "positions"):
        monkeypatch.setattr(pytree, name, None)
    assert_same(call(), wanted)


@pytest.mark.parametrize("transform", [tl.vmap, tl.grad, lambda f: lambda x: tl.jvp(f, (x,), (x,))])
@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, SystemExit])
def test_exception_of_the_function_propagates_unchanged(transform, error):
    raised = error("mine")

    def fails(x):
        raise raised

    before = ambient()
    with pytest.raises(error) as caught:
        transform(fails)(X)
    assert ambient() == before
    assert caught.value is raised
    assert caught.value.__context__ is None
    assert caught.traceback[-1].name == "fails"


@pytest.mark.parametrize("transform", [tl.vmap, tl.grad])
def test_exit_error_has_the_functions_error_as_context(transform):
    def fails(x):
        _C.grad_entry().__enter__()
        raise ZeroDivisionError

    before = ambient()
    with pytest.raises(RuntimeError, match="were still on the stack") as caught:
        transform(fails)(X)
    assert ambient() == before
    assert isinstance(caught.value.__context__, ZeroDivisionError)


def test_handled_exception_outside_is_preserved():
    try:
        raise ZeroDivisionError
    except ZeroDivisionError as outside:
        with pytest.raises(KeyError) as caught:
            tl.vmap(lambda x: {}["key"])(X)
        assert caught.value.__context__ is outside


def test_threads_call_at_once():
    results = {}

    def work(i):
        for _ in range(50):
            results[i] = tl.vmap(tl.grad(square))(X + i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in range(4):
        assert torch.equal(results[i], 2 * (X + i))


def test_aux_is_freed_with_the_callers_reference():
    _, vjp_fn, aux = tl.vjp(lambda x: (x * x, {"aux": x.exp()}), X, has_aux=True)
    alive = weakref.ref(aux["aux"])
    del aux
    assert alive() is None
    assert_same(vjp_fn(X), (2 * X * X,))


@pytest.mark.parametrize("around", [contextlib.nullcontext, Watching, lambda: X.device])
def test_a_backward_may_use_a_subclass(around):
    """An outer mode must not see the backward, and must not disable overrides there."""

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x * 2

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, g):
            seen.append(type(torch.ones(2, 3).as_subclass(Subclass) * 2))
            return g * 2

    seen = []
    with around():
        tl.grad(lambda x: Scaled.apply(x).sum())(X)
    assert seen == [Tensor if around is Watching else Subclass]


@pytest.mark.parametrize("transform", [tl.vmap, tl.grad, lambda f: lambda x: tl.jvp(f, (x,), (x,))])
def test_arguments_are_freed_after_the_call(transform):
    x = torch.ones(3)
    alive = weakref.ref(x)
    transform(torch.sum)(x)
    del x
    assert alive() is None


def documented(x: Tensor, factor: float = 2.0) -> Tensor:
    """Multiplies."""
    return x * factor


class Scaled(torch.nn.Module):
    """Scales."""

    def forward(self, x):
        return 2 * x


def with_attributes():
    def func(x):
        return x

    func.note = "kept"
    func._torchdynamo_orig_callable = documented
    return func


@pytest.mark.parametrize(
    "func",
    [
        documented,
        torch.sin,
        lambda x: x,
        functools.partial(documented, factor=3.0),
        Scaled(),
        Scaled,
    ],
    ids=["function", "builtin", "lambda", "partial", "module", "class"],
)
def test_transformed_function_looks_like_the_function(func):
    def expected(*args, **kwargs): ...

    functools.update_wrapper(expected, func)
    found = tl.vmap(func)
    for name in functools.WRAPPER_ASSIGNMENTS:
        if hasattr(func, name):
            assert getattr(found, name) == getattr(expected, name)
    assert vars(found) == vars(expected)
    assert found.__wrapped__ is func


def test_transformed_function_has_the_functions_attributes_but_those_of_dynamo():
    found = tl.grad(with_attributes())
    assert found.note == "kept"
    assert not vars(found).keys() & set(DYNAMO_ATTRIBUTES)


def test_error_of_an_attribute_passes_through():
    class Named:
        @property
        def __name__(self):
            raise ZeroDivisionError

        def __call__(self, x):
            return x

    with pytest.raises(ZeroDivisionError):
        tl.vmap(Named())
