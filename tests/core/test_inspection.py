"""Looking at a tensor inside transforms, and at a transformed function."""

import functools
import inspect
import pickle

import pytest
import torch
import torch.func

import torchlayers as tl
from torchlayers.errors import CallError

X = torch.arange(6.0).reshape(3, 2)


def inside(transform, look, *args):
    """What `look` returns for the argument of a function that transform transforms."""
    seen = []

    def func(x):
        seen.append(look(x))
        return x.sum()

    transform(func)(*args)
    return seen[0]


def square(x):
    return (x * x).sum()


@pytest.mark.parametrize("t", [tl, torch.func])
class TestTensors:
    def test_level_is_that_of_the_innermost_layer(self, t):
        assert tl.level(X) == 0
        assert inside(t.vmap, tl.level, X) == 1
        assert inside(lambda f: t.vmap(t.grad(f)), tl.level, X) == 2
        assert inside(t.grad, lambda _: tl.level(X), X) == 0

    def test_batched_below_another_layer_is_batched(self, t):
        assert not tl.is_batched(X)
        assert not inside(t.grad, tl.is_batched, X)
        assert inside(lambda f: t.vmap(t.grad(f)), tl.is_batched, X)
        assert not inside(t.vmap, lambda _: tl.is_batched(X), X)

    def test_escaped_tensors_are_not_alive(self, t):
        for transform in (t.vmap, t.grad, lambda f: t.vmap(t.grad(f))):
            kept = inside(transform, lambda x: x, X)
            assert not tl.is_alive(kept)
            assert inside(transform, tl.is_alive, X)
        assert tl.is_alive(X)

    def test_unwrap_removes_one_layer(self, t):
        def look(x):
            once = tl.unwrap(x)
            twice = tl.unwrap(once)
            return [tl.level(once), once.shape, tl.level(twice), twice.shape, tl.unwrap(twice)]

        *found, plain = inside(lambda f: t.vmap(t.grad(f), in_dims=1), look, X)
        assert found == [1, (3,), 0, (3, 2)]
        assert torch.equal(plain, X)


def printed(capsys, transform, *args):
    inside(transform, tl.inspect, *args)
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("t", [tl, torch.func])
def test_the_nest_is_printed_outermost_wrapper_first(t, capsys):
    assert printed(capsys, lambda f: t.vmap(t.grad(f), in_dims=1), X) == [
        "grad (level 2)  float32[3], requires grad",
        "vmap (level 1)  float32[3], batch dimension 1 of",
        "plain tensor    float32[3, 2]",
    ]


def test_jvp_functionalize_and_python_layers_are_told_apart(capsys):
    def jvp(f):
        return lambda x: tl.jvp(f, (x,), (x,))

    class Interval(tl.Layer):
        """A layer of no rules."""

    assert printed(capsys, jvp, X)[0] == "jvp (level 1)  float32[3, 2]"
    assert printed(capsys, tl.functionalize, X)[0] == "functionalize (level 1)  float32[3, 2]"
    with Interval() as layer:
        tl.inspect(layer.tensor(X))
    assert capsys.readouterr().out.splitlines()[0] == "interval (level 1)  float32[3, 2]"


def test_a_tensor_written_to_inside_a_vmap_is_shown_as_the_batched_tensor(capsys):
    def writes(x):
        y = torch.zeros(2)
        y.copy_(x)
        tl.inspect(y)
        assert tl.is_batched(y) and tl.level(y) == 1
        return y

    tl.vmap(writes)(X)
    assert capsys.readouterr().out.splitlines() == [
        "vmap (level 1)  float32[2], batch dimension 0 of",
        "plain tensor    float32[3, 2]",
    ]


def test_an_escaped_tensor_says_so(capsys):
    tl.inspect(inside(tl.vmap, lambda x: x, X))
    tl.inspect(inside(tl.grad, lambda x: x, X))
    first, _, second, _ = capsys.readouterr().out.splitlines()
    assert first.startswith("vmap (level 1), escaped")
    assert second.startswith("grad or jvp, escaped")


def test_a_plain_tensor_and_a_subclass(capsys):
    tl.inspect(X)
    tl.inspect(torch.nn.Parameter(X))
    assert capsys.readouterr().out.splitlines() == [
        "plain tensor  float32[3, 2]",
        "Parameter  float32[3, 2], requires grad",
    ]


def test_anything_else_is_refused():
    with pytest.raises(CallError, match="takes a tensor or a function, got int"):
        tl.inspect(3)


class Doubled(tl.Layer):
    """A layer of no rules."""


@pytest.mark.parametrize(
    ("func", "text"),
    [
        (square, "square"),
        (tl.grad(square), "grad(square, argnums=0)"),
        (tl.vmap(tl.grad(square)), "vmap(grad(square, argnums=0), in_dims=0)"),
        (
            tl.grad_and_value(square, (0, 1), has_aux=True),
            "grad_and_value(square, argnums=(0, 1), has_aux=True)",
        ),
        (
            tl.vmap(square, (None, 0), 1, "same", chunk_size=2),
            "vmap(square, in_dims=(None, 0), out_dims=1, randomness='same', chunk_size=2)",
        ),
        (tl.jacrev(square), "jacrev(square)"),
        (tl.hessian(square), "hessian(square, argnums=0)"),
        (tl.intermediates(square, "a"), "intermediates(square, names='a')"),
        (Doubled()(square), "doubled(square)"),
        (tl.compile(tl.grad(square)), "compile(grad(square, argnums=0))"),
        (torch.func.grad(square), "grad(square, argnums=0)"),
        (functools.partial(square, X), "functools.partial(square, ...)"),
    ],
)
def test_a_function_says_which_transforms_it_is_made_of(func, text, capsys):
    tl.inspect(func)
    assert capsys.readouterr().out == text + "\n"


squared = tl.vmap(square)


@tl.vmap
def decorated(x):
    """A function that its decorator transforms."""
    return x * 2


def test_a_transformed_function_is_still_a_plain_function_with_the_original_name():
    assert inspect.isfunction(squared)
    assert (squared.__name__, squared.__qualname__) == ("square", "square")
    assert [*inspect.signature(squared).parameters] == ["x"]
    assert pickle.loads(pickle.dumps(decorated)) is decorated
