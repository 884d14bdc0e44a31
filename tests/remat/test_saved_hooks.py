"""torch.autograd.graph.saved_tensors_hooks inside transforms and around them."""

import gc
import threading
import weakref

import pytest
import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

import torchlayers as tl
from tests.remat.functions import functions, layers
from tests.remat.nests import BATCH, V, W, X, assert_same, compare, nests
from tests.support.calls import level_of


def copied():
    return saved_tensors_hooks(lambda t: t.clone(), lambda t: t.clone())


def detached():
    """A pack hook as in torch's documentation, which detaches the tensor."""
    return saved_tensors_hooks(lambda t: t.detach(), lambda t: t)


class Listed(saved_tensors_hooks):
    """Hooks that record their calls."""

    def __init__(self):
        self.packed, self.unpacked = [], []
        super().__init__(self.pack, self.unpack)

    def pack(self, tensor):
        self.packed.append((level_of(tensor), tuple(tensor.shape)))
        return tensor.detach()

    def unpack(self, tensor):
        self.unpacked.append(len(tl.current_stack()))
        return tensor


def inside(hooks, f):
    def hooked(x):
        with hooks():
            return f(x)

    return hooked


@pytest.mark.sweep
@pytest.mark.parametrize("hooks", [copied, detached, save_on_cpu])
@functions
@nests
def test_hooks_inside_change_nothing(nest, function, hooks):
    compare(nest, inside(hooks, function), function)


@functions
@nests
def test_hooks_around_change_nothing(nest, function):
    wanted = nest(function)
    with copied():
        found = nest(function)
    assert_same(found, wanted)


def test_gradient_uses_the_result_of_unpack():
    def f(x):
        with saved_tensors_hooks(lambda t: t, lambda t: 2 * t):
            return (x * x).sum()

    torch.testing.assert_close(tl.grad(f)(X), 4 * X)


@pytest.mark.parametrize("size", [3, 256, 257])
def test_every_level_packs_what_it_saves(size):
    x = torch.linspace(-1, 1, size, dtype=torch.float64)
    hooks = Listed()

    def f(x):
        with hooks:
            return x.sin().sum()

    tl.grad(f)(x)
    assert hooks.packed == [(1, (size,))]
    hooks.packed.clear()
    tl.grad(lambda x: tl.grad(f)(x).sum())(x)
    assert hooks.packed == [(2, (size,)), (1, (size,))]


def test_under_vmap_the_whole_batch_is_packed_once():
    def f(x):
        return x.sin().exp().sum()

    inner, outer = Listed(), Listed()
    tl.vmap(tl.grad(inside(lambda: inner, f)))(BATCH)
    tl.grad(lambda batch: tl.vmap(inside(lambda: outer, f))(batch).sum())(BATCH)
    assert inner.packed == [(2, (3,)), (2, (3,))]
    assert outer.packed == [(1, (3, 3)), (1, (3, 3))]


def test_unpack_runs_on_the_stack_of_the_hooks():
    hooks = Listed()
    _, vjp_fn = tl.vjp(inside(lambda: hooks, lambda x: W @ x.sin().exp()), X)
    tl.vmap(vjp_fn)(BATCH)
    assert hooks.unpacked
    assert set(hooks.unpacked) == {1}  # the level of the vjp, which has ended, not vmap's


def test_overwritten_tensor_may_be_read_if_hooks_copied_it():
    def f(x):
        with copied():
            y = x.exp()
        y.mul_(2)
        return y.sum()

    torch.testing.assert_close(tl.grad(f)(X), 2 * X.exp())


def test_an_unpack_hook_that_returns_no_tensor_is_an_error():
    def f(x):
        with saved_tensors_hooks(lambda t: None, lambda nothing: nothing):
            return (x * x).sum()

    with pytest.raises(TypeError, match=r"unpack hook .* must return a tensor, got NoneType"):
        tl.grad(f)(X)
    assert tl.current_stack() == ()


def test_error_in_a_hook_restores_the_stack():
    def refuse(tensor):
        raise ZeroDivisionError

    for pack, unpack in [(refuse, lambda t: t), (lambda t: t.detach(), refuse)]:

        def f(x, pack=pack, unpack=unpack):
            with saved_tensors_hooks(pack, unpack):
                return (x * x).sum()

        with pytest.raises(ZeroDivisionError):
            tl.grad(lambda x: tl.grad(f)(x).sum())(X)
        assert tl.current_stack() == ()
        torch.testing.assert_close(tl.grad(lambda x: (x * x).sum())(X), 2 * X)


def test_hooks_are_per_thread():
    hooks = Listed()

    def work():
        tl.grad(layers)(X)

    with hooks:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert hooks.packed == []


def test_packed_values_are_freed_after_the_pass():
    kept = []

    class Box:
        def __init__(self, tensor):
            self.tensor = tensor.detach()
            kept.append(weakref.ref(self))

    def f(x):
        with saved_tensors_hooks(Box, lambda box: box.tensor):
            return layers(x)

    tl.grad(f)(X)
    gc.collect()
    assert kept
    assert all(box() is None for box in kept)


def test_hooks_do_not_see_tensors_saved_earlier():
    _, vjp_fn = tl.vjp(torch.sin, X)
    hooks = Listed()
    with hooks:
        vjp_fn(V)
    assert hooks.packed == hooks.unpacked == []


def test_a_vjp_with_hooks_may_be_called_again():
    _, vjp_fn = tl.vjp(inside(copied, lambda x: W @ x.sin().exp()), X)
    assert_same(vjp_fn(V), vjp_fn(V))


def test_a_hook_that_writes_to_its_argument_is_refused():
    def f(x):
        with saved_tensors_hooks(lambda t: t.mul_(2), lambda t: t):
            return (x * 1).sin().sum()

    with pytest.raises(RuntimeError, match=r"pack hook .* written in place"):
        tl.grad(f)(X)
