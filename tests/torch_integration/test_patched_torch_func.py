"""Replaced (monkeypatched) functions of torch.func, as tensordict and pypose do."""

import contextlib
import functools
import subprocess
import sys

import pytest
import torch
import torch.func
from torch._functorch import eager_transforms
from torch._functorch import vmap as vmap_module

import torchlayers as tl
from tests.support.calls import ambient, assert_same, run
from torchlayers import _C
from torchlayers.errors import TransformError
from torchlayers.transforms import patched_torch_func

X = torch.tensor([[0.5, 1.0, 2.0], [1.5, -1.0, 0.3]])
Y = X.flip(0) + 1


def product(x, y=Y):
    return (x.sin() * y).sum()


def with_aux(x, y=Y):
    return product(x, y), {"aux": x.exp()}


def pair(x, y):
    return {"a": x.sin() * y, "b": (x + y, y.cos())}


CALLS = {
    "vmap": lambda lib: lib.vmap(torch.sin)(X),
    "vmap, in_dims": lambda lib: lib.vmap(pair, (0, None))(X, Y[0]),
    "vmap, out_dims": lambda lib: lib.vmap(torch.mul, -1, out_dims=(1,))(X, Y),
    "vmap, a tree": lambda lib: lib.vmap(lambda d: {"c": d["a"] * d["b"]})({"a": X, "b": Y}),
    "vmap, keyword arguments": lambda lib: lib.vmap(product)(X, y=Y[0]),
    "vmap in vmap": lambda lib: lib.vmap(lib.vmap(torch.mul))(X, Y),
    "vmap in chunks": lambda lib: lib.vmap(torch.sin, chunk_size=1)(X),
    "grad": lambda lib: lib.grad(product)(X),
    "grad by two": lambda lib: lib.grad(product, (0, 1))(X, Y),
    "grad, has_aux": lambda lib: lib.grad(with_aux, has_aux=True)(X),
    "grad, keyword arguments": lambda lib: lib.grad(product)(X, y=Y),
    "grad_and_value": lambda lib: lib.grad_and_value(product)(X),
    "grad of a constant": lambda lib: lib.grad(lambda x, y: y.sum())(X, Y),
    "grad in grad": lambda lib: lib.grad(lambda x: lib.grad(product)(x).cos().sum())(X),
    "vjp": lambda lib: (lambda out, back: (out, back(out)))(*lib.vjp(pair, X, Y)),
    "vjp, has_aux": lambda lib: (lambda out, back, aux: (out, back(out), aux))(
        *lib.vjp(with_aux, X, has_aux=True)
    ),
    "jvp": lambda lib: lib.jvp(pair, (X, Y), (Y, X)),
    "jvp, has_aux": lambda lib: lib.jvp(with_aux, (X,), (Y,), has_aux=True),
    "jvp of a constant": lambda lib: lib.jvp(lambda x: Y.sin(), (X,), (Y,)),
    "jvp in jvp": lambda lib: lib.jvp(lambda x: lib.jvp(torch.sin, (x,), (Y,)), (X,), (Y,)),
    "jacrev": lambda lib: lib.jacrev(torch.sin)(X),
    "jacfwd": lambda lib: lib.jacfwd(pair, (1,))(X, Y),
    "hessian": lambda lib: lib.hessian(product)(X),
    "samples' gradients": lambda lib: lib.vmap(lib.grad(product))(X, Y),
}

FOLLOWED = [
    function for table in patched_torch_func._STEPS.values() for step in table for function in step
]
REFUSED = {
    "vmap": (patched_torch_func.VMAP, CALLS["vmap"]),
    "chunks": (patched_torch_func.CHUNKS, CALLS["vmap in chunks"]),
    "grad": (patched_torch_func.GRAD, CALLS["grad"]),
    "vjp": (patched_torch_func.GRAD, CALLS["vjp"]),
    "jvp": (patched_torch_func.JVP, CALLS["jvp"]),
    "functionalize": (
        patched_torch_func.FUNCTIONALIZE,
        lambda lib: lib.functionalize(torch.sin)(X),
    ),
}


def replace(monkeypatch, function):
    """Replaces a function of torch.func by an equivalent one; returns the list of its calls."""
    names, name = patched_torch_func._place(function)
    theirs, calls = names[name], []

    @functools.wraps(theirs)  # makes it look like torch's own
    def replacement(*args, **kwargs):
        calls.append(name)
        return theirs(*args, **kwargs)

    monkeypatch.setitem(names, name, replacement)
    return calls


@pytest.mark.parametrize("function", dict.fromkeys(FOLLOWED))
def test_a_replaced_step_is_called_where_torch_func_calls_it(function, monkeypatch):
    if patched_torch_func._place(function)[1] not in patched_torch_func._place(function)[0]:
        pytest.skip(f"this torch has no {function}")
    wanted = {name: run(call, tl) for name, call in CALLS.items()}
    calls = replace(monkeypatch, function)
    before = ambient()
    followed = set()
    for name, call in CALLS.items():
        calls.clear()
        run(call, torch.func)
        theirs = bool(calls)
        calls.clear()
        assert_same(run(call, tl), wanted[name], rounded=True)
        assert bool(calls) == theirs, name
        followed |= {name} if theirs else set()
    assert followed
    assert ambient() == before


@pytest.mark.parametrize(
    ("transform", "function"),
    [
        (name, function)
        for name, (transform, _) in REFUSED.items()
        for function in patched_torch_func._REFUSED[transform]
    ],
)
def test_replaced_step_without_equivalent_is_rejected(transform, function, monkeypatch):
    if patched_torch_func._place(function)[1] not in patched_torch_func._place(function)[0]:
        pytest.skip(f"this torch has no {function}")
    call = REFUSED[transform][1]
    with monkeypatch.context() as patch:
        replace(patch, function)
        with pytest.raises(TransformError, match=f"torch.*{function}.* was replaced by"):
            call(tl)
        assert tl.current_stack() == ()
    call(tl)


def test_result_of_the_replacement_is_used(monkeypatch):
    theirs = vmap_module._add_batch_dim
    monkeypatch.setattr(vmap_module, "_add_batch_dim", lambda x, dim, level: theirs(-x, dim, level))
    assert_same(tl.vmap(lambda x: x + 1)(X), 1 - X)
    assert_same(tl.vmap(tl.vmap(lambda x: x + 1))(X), 1 + X)


def test_a_replacement_counts_as_long_as_it_is_there(monkeypatch):
    one_step = lambda: not _C.any_step_replaced(patched_torch_func.VMAP)  # noqa: E731
    assert one_step()
    with monkeypatch.context() as patch:
        calls = replace(patch, "vmap._unwrap_batched")
        assert not one_step()
        tl.vmap(torch.sin)(X)
        assert len(calls) == 1
        tl.grad(product)(X)  # which does not use it
        assert not _C.any_step_replaced(patched_torch_func.GRAD)
    assert one_step()
    tl.vmap(torch.sin)(X)
    assert len(calls) == 1


def test_context_manager_of_torch_counts_as_unreplaced(monkeypatch):
    """Although its function was defined in contextlib; another module's belongs to that module."""

    @contextlib.contextmanager
    def elsewhere(enabled):
        yield

    assert not _C.any_step_replaced(patched_torch_func.GRAD)
    monkeypatch.setattr(eager_transforms, "enable_inplace_requires_grad", elsewhere)
    assert _C.any_step_replaced(patched_torch_func.GRAD)


def test_an_object_that_can_be_called_is_followed(monkeypatch):
    class Negated:
        def __call__(self, x, dim, level):
            return theirs(-x, dim, level)

    theirs = vmap_module._add_batch_dim
    monkeypatch.setattr(vmap_module, "_add_batch_dim", Negated())
    assert_same(tl.vmap(lambda x: x + 1)(X), 1 - X)


@pytest.mark.full
def test_a_function_replaced_before_the_import_is_followed_too():
    program = """
import torch
from torch._functorch import vmap as module
theirs = module._add_batch_dim
module._add_batch_dim = lambda x, dim, level: theirs(-x, dim, level)
import torchlayers
print(torchlayers.vmap(lambda x: x + 1)(torch.ones(2)).tolist())
module._add_batch_dim = theirs
print(torchlayers.vmap(lambda x: x + 1)(torch.ones(2)).tolist())
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.stdout.split("\n") == ["[0.0, 0.0]", "[2.0, 2.0]", ""], ran.stderr


def test_an_exception_of_the_replacement_leaves_the_stack_clean(monkeypatch):
    def fails(*args, **kwargs):
        raise ZeroDivisionError

    before = ambient()
    for function in dict.fromkeys(FOLLOWED):
        names, name = patched_torch_func._place(function)
        with monkeypatch.context() as patch:
            patch.setitem(names, name, fails)
            for call in CALLS.values():
                with contextlib.suppress(ZeroDivisionError):
                    run(call, tl)
                assert ambient() == before
