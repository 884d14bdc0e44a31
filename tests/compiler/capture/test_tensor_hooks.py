"""Hooks on arguments and captured tensors of a compiled function: called once, as in eager."""

import functools

import pytest
import torch
from torch.autograd.graph import register_multi_grad_hook

import torchlayers as tl

replayed = functools.partial(tl.compile, backend="replay")
# Inductor only for few tests, since each compiles.
compilers = pytest.mark.parametrize("backend", ["replay", "inductor"])


def leaf():
    return torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)


def doubled(g):
    return g * 2


class Calls(list):
    """Records the gradients that a hook is called with."""

    def hook(self, *gradients):
        self += [g.detach().clone() for g in gradients]


# Each registers hooks on w and returns their handles.
HOOKS = {
    "that changes": lambda w, calls: [w.register_hook(doubled)],
    "that looks": lambda w, calls: [w.register_hook(calls.hook)],
    "two": lambda w, calls: [w.register_hook(doubled), w.register_hook(lambda g: g + 1)],
    "once accumulated": lambda w, calls: [
        w.register_post_accumulate_grad_hook(lambda p: calls.hook(p.grad))
    ],
    "of several tensors": lambda w, calls: [
        register_multi_grad_hook((w,), lambda grads: calls.hook(*grads))
    ],
    "of any tensor": lambda w, calls: [register_multi_grad_hook((w,), calls.hook, mode="any")],
    "of its node": lambda w, calls: [
        w.view_as(w).grad_fn.next_functions[0][0].register_prehook(lambda g: (g[0] * 3,))
    ],
}


def captured(w, x):
    return lambda: ((w**2 * x).sin() * w).sum()


@pytest.mark.sweep
@pytest.mark.parametrize("when", ["before", "after", "removed"])
@pytest.mark.parametrize("is_parameter", [False, True])
@pytest.mark.parametrize("name", HOOKS)
def test_hooks_of_a_captured_leaf(name, is_parameter, when):
    found = []
    for compiled in (lambda f: f, replayed):
        w, calls = leaf(), Calls()
        if is_parameter:
            w = torch.nn.Parameter(w.detach())
        f = compiled(captured(w, torch.ones(2, dtype=torch.float64)))
        handles = HOOKS[name](w, calls) if when != "after" else []
        f()
        if when == "after":
            HOOKS[name](w, calls)
        if when == "removed":
            for handle in handles:
                handle.remove()
        for _ in range(2):
            f().backward()
        found.append((w.grad, calls))
    torch.testing.assert_close(*found)


@pytest.mark.sweep
@compilers
def test_hooks_of_captured_tensors_and_arguments(backend):
    found = []
    for compiled in (lambda f: f, functools.partial(tl.compile, backend=backend)):
        w, v, calls = leaf(), leaf(), Calls()
        for tensor in (w, v):
            tensor.register_hook(doubled)
            tensor.register_hook(calls.hook)
        f = compiled(lambda v: (w * v).sin().sum())  # noqa: B023
        for _ in range(2):
            f(v).backward()
        found.append((w.grad, v.grad, sorted(calls, key=torch.Tensor.tolist)))
    torch.testing.assert_close(*found)
    assert len(found[1][2]) == 4


def test_hooks_of_a_captured_result_and_its_kept_gradient():
    found = []
    for compiled in (lambda f: f, replayed):
        w, calls = leaf(), Calls()
        z = w * 3
        z.register_hook(doubled)
        z.register_hook(calls.hook)
        z.retain_grad()
        z.grad_fn.register_hook(lambda inputs, outputs: (inputs[0] + 1, *inputs[1:]))
        f = compiled(lambda x: (z * x).sum())  # noqa: B023
        f(torch.ones(2)).backward(retain_graph=True)
        found.append((w.grad, z.grad, calls))
    torch.testing.assert_close(*found)


def test_captured_tensors_computed_from_each_other():
    """Each gets only the gradient of its own uses, and autograd sums them outside."""
    found = []
    for compiled in (lambda f: f, replayed):
        w = leaf()
        w.register_hook(doubled)
        z = w * 3
        y = z.exp()
        f = compiled(lambda x: (w * z * y * x).sum())  # noqa: B023
        (first,) = torch.autograd.grad(f(torch.ones(2)), w, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), w, retain_graph=True)
        partial = torch.autograd.grad(f(torch.ones(2)), [z, y])
        found.append((first, second, partial))
    torch.testing.assert_close(*found)


@pytest.mark.full
@compilers
@pytest.mark.parametrize("is_captured", [False, True])
def test_hooks_in_second_and_third_derivatives(is_captured, backend):
    found = []
    for compiled in (lambda f: f, functools.partial(tl.compile, backend=backend)):
        w, calls = leaf(), Calls()
        w.register_hook(doubled)
        w.register_hook(calls.hook)
        if is_captured:
            f = functools.partial(compiled(lambda x: (w**4 * x).sum()), torch.ones(2))  # noqa: B023
        else:
            f = functools.partial(compiled(lambda w: (w**4).exp().sum()), w)
        results = [f()]
        for _ in range(3):
            results += torch.autograd.grad(results[-1].sum(), w, create_graph=True)
        found.append((results, calls))
    torch.testing.assert_close(*found)
    assert len(calls) == 3


def test_an_argument_given_twice_in_a_second_derivative():
    w = leaf()
    w.register_hook(doubled)
    functions = [lambda a, b: (a**2 * b).sum(), replayed(lambda a, b: (a**2 * b).sum())]
    found = []
    for f in functions:
        (first,) = torch.autograd.grad(f(w, w), w, create_graph=True)
        found.append((first, *torch.autograd.grad(first.sum(), w)))
    torch.testing.assert_close(*found)


# torch.autograd.grad inside the function calls the hooks registered at the time.


def test_hooks_called_inside_are_the_current_ones():
    w, x = leaf(), torch.ones(2, dtype=torch.float64)

    def slope(x):
        return torch.autograd.grad((w**2 * x).sum(), w)[0]

    compiled = replayed(slope)
    torch.testing.assert_close(compiled(x), slope(x))
    handle = w.register_hook(doubled)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), slope(x))
    w.register_hook(lambda g: g + 1)
    torch.testing.assert_close(compiled(x), slope(x))
    assert compiled.report().signatures[-1].why == "a captured tensor has other hooks"
    handle.remove()
    for _ in range(2):
        torch.testing.assert_close(compiled(x), slope(x))


def test_added_and_removed_hooks_are_captured_once_each():
    w, x = leaf(), torch.ones(2, dtype=torch.float64)
    compiled = replayed(lambda x: torch.autograd.grad((w**2 * x).sum(), w)[0])
    for _ in range(3):
        torch.testing.assert_close(compiled(x), 2 * w.detach())
        handle = w.register_hook(doubled)
        torch.testing.assert_close(compiled(x), 4 * w.detach())
        handle.remove()
    assert len(compiled.report().signatures) == 2


def test_new_hook_needs_no_capture_if_not_called_inside():
    w, x = leaf(), torch.ones(2, dtype=torch.float64)
    compiled = replayed(lambda x: (w * x).sum())
    compiled(x)
    w.register_hook(doubled)
    compiled(x)
    assert len(compiled.report().signatures) == 1


def test_hooks_inside_and_outside():
    found = []
    for compiled in (lambda f: f, replayed):
        w, x = leaf(), torch.ones(2, dtype=torch.float64)
        w.register_hook(doubled)

        def f(x):
            (slope,) = torch.autograd.grad((w**3 * x).sum(), w, create_graph=True)  # noqa: B023
            return (slope * w).sum()  # noqa: B023

        (first,) = torch.autograd.grad(compiled(f)(x), w, create_graph=True)
        found.append((first, *torch.autograd.grad(first.sum(), w)))
    torch.testing.assert_close(*found)


def test_retain_grad_inside_is_rejected():
    w = leaf()
    z = w * 2
    z.retain_grad()
    with pytest.raises(tl.errors.TransformError, match=r"a captured tensor with retain_grad\(\)"):
        replayed(lambda x: torch.autograd.grad((z * x).sum(), z)[0])(torch.ones(2))
    assert z.grad is None
