"""Streams: a pass runs where its forward ran and waits only where it has to."""

import contextlib

import pytest
import torch

import torchlayers as tl
from tests.device import second_device
from tests.support import devices
from tests.support.traced_steps import traced_steps

pytestmark = pytest.mark.accelerator


@pytest.fixture
def side():
    return torch.Stream()


@contextlib.contextmanager
def on(stream, *tensors):
    """Runs the block on the stream after the current stream's work; the current stream then waits
    for it.

    The tensors belong to the current stream, and are read on the other.
    """
    outside = torch.accelerator.current_stream()
    stream.wait_stream(outside)
    for tensor in tensors:
        tensor.record_stream(stream)
    with stream:
        yield
    outside.wait_stream(stream)


def handed_out(tensor):
    """Makes a tensor of a side stream available to the current one."""
    tensor.record_stream(torch.accelerator.current_stream())
    return tensor


def who_pulled(function, *args):
    with traced_steps() as events:
        result = function(*args)
    return result, [event.op for event in events if event.step == "pull_back"]


def in_the_middle(side):
    def f(x):
        y = x.sin()
        with on(side, y):
            z = y * y.exp()
        return (handed_out(z) * y).sum()

    return f


def torchs_own_node(side):
    def f(x):
        y = x * 2
        with on(side, y):
            z = (y * 1).square_()  # in place: it has no rule
        return handed_out(z).sum()

    return f


def used_on_both(side):
    """A function whose gradients are added up from two streams."""

    def f(x):
        with on(side, x):
            y = x.cos()
        return (handed_out(y) + x.sin() * x).sum()

    return f


def from_the_start(side):
    def f(x):
        with on(side, x):
            y = (x.sin() * x).sum()
        return handed_out(y)

    return f


def conjugated(side):
    """The gradient is passed on as a lazily conjugated view."""

    def f(x):
        y = torch.complex(x, x.sin())
        with on(side, y):
            z = y.conj().exp().resolve_conj()
            w = (z * y).conj().resolve_conj()
        return (handed_out(w) * y).abs().sum()

    return f


def with_hooks(side):
    """Hooks on tensors of both streams and on the argument; each changes the gradient."""

    def f(x):
        x.register_hook(lambda g: g * 3)
        y = x.sin()
        y.register_hook(lambda g: g.exp())
        with on(side, y):
            z = y * y.exp()
            z.register_hook(lambda g: g * g)
            z.grad_fn.register_hook(lambda inputs, outputs: tuple(g * 2 for g in inputs))
        return (handed_out(z) * y).sum()

    return f


PROGRAMS = [
    in_the_middle,
    torchs_own_node,
    used_on_both,
    from_the_start,
    conjugated,
    with_hooks,
]
programs = pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)


@programs
def test_streams_in_the_forward(program, side):
    x = torch.randn(3, 4, dtype=torch.float64)
    expected = tl.grad(program(torch.accelerator.current_stream()))(x)
    with devices.no_hazards():
        gradient, who = who_pulled(tl.grad(program(side)), x)
        torch.testing.assert_close(gradient, expected)
    assert who == ["torchlayers"]


@programs
def test_a_pass_on_another_stream(program, side):
    """vjp's function is called on another stream than the forward's."""
    x = torch.randn(3, 4, dtype=torch.float64)
    expected = tl.grad(program(torch.accelerator.current_stream()))(x)
    other = torch.Stream()
    with devices.no_hazards():
        y, pull = tl.vjp(program(side), x)
        with on(other):
            (gradient,) = pull(torch.ones_like(y))
        torch.testing.assert_close(handed_out(gradient), expected)


def test_a_transform_on_a_side_stream(side):
    """Forward and pass both on a non-default stream: no synchronization is needed."""
    x = torch.randn(3, 4, dtype=torch.float64)
    with devices.no_hazards():
        with on(side, x):
            gradient, who = who_pulled(tl.grad(lambda x: (x.sin() * x).sum()), x)
        expected = x.cos() * x + x.sin()
        torch.testing.assert_close(handed_out(gradient), expected)
    assert who == ["torchlayers"]


def test_a_hook_runs_on_the_stream_of_its_tensor(side):
    seen = []

    def note(name):
        return lambda g: seen.append((name, torch.accelerator.current_stream()))

    def f(x):
        y = x.sin()
        y.register_hook(note("y"))
        with on(side, y):
            z = y * y.exp()
            z.register_hook(note("z"))
        return handed_out(z).sum()

    tl.grad(f)(torch.randn(3))
    assert seen == [("z", side), ("y", torch.accelerator.current_stream())]


def test_hooks_on_streams_as_plain_autograd_has_them(side):
    x = torch.randn(3, 4, dtype=torch.float64)
    gradient = tl.grad(with_hooks(side))(x)
    y = x.sin()
    by_z = y * y  # squared by the hook
    by_y = y * y.exp() + 2 * by_z * (y.exp() + y * y.exp())
    torch.testing.assert_close(gradient, 3 * by_y.exp() * x.cos())


def test_an_error_in_a_hook_leaves_the_stream_as_it_was(side):
    def f(x):
        y = x.sin()
        with on(side, y):
            z = y.exp()
            z.register_hook(lambda g: 1 / 0)
        return handed_out(z).sum()

    before = torch.accelerator.current_stream()
    with pytest.raises(ZeroDivisionError):
        tl.grad(f)(torch.randn(3))
    assert torch.accelerator.current_stream() == before


SECOND_DERIVATIVES = {"hessian": tl.hessian, "jacrev": lambda f: tl.jacrev(tl.grad(f))}


@pytest.mark.parametrize("transform", SECOND_DERIVATIVES.values(), ids=SECOND_DERIVATIVES.keys())
def test_second_derivatives(transform, side):
    f = in_the_middle(side)
    x = torch.randn(2, 2, dtype=torch.float64)
    expected = tl.hessian(in_the_middle(torch.accelerator.current_stream()))(x)
    with devices.no_hazards():
        torch.testing.assert_close(transform(f)(x), expected)


def test_the_stream_and_the_device_are_put_back(side):
    x = torch.randn(3, 4, dtype=torch.float64)
    before = torch.accelerator.current_stream(), torch.accelerator.current_device_index()
    tl.grad(in_the_middle(side))(x)
    assert before == (torch.accelerator.current_stream(), torch.accelerator.current_device_index())


def test_two_devices():
    """The gradients of both, each on its own device."""
    if torch.accelerator.device_count() < 2:
        pytest.skip("needs two devices")
    first, second = (torch.device(devices.used().type, i) for i in (0, 1))
    x = torch.randn(3, dtype=torch.float64, device=first)
    y = torch.randn(3, dtype=torch.float64, device=second)

    def f(x, y):
        return ((x.sin() * y.to(first)).to(second) * y.exp()).sum()

    with devices.no_hazards():
        found, who = who_pulled(tl.grad(f, argnums=(0, 1)), x, y)
    assert who == ["torchlayers"]
    assert [g.device for g in found] == [first, second]
    theirs = torch.autograd.grad(f(x.requires_grad_(), y.requires_grad_()), (x, y))
    torch.testing.assert_close([g.cpu() for g in found], [g.cpu() for g in theirs])


@pytest.mark.only_on("second")
def test_a_tangent_that_is_still_to_be_conjugated(side):
    """A lazily conjugated tangent is marked as in use without being read or written."""
    launched = []

    def f(x):
        y = x.conj()
        second_device.launches()
        y.record_stream(side)
        launched.append(second_device.launches())
        return y * 2

    x, t = torch.randn(2, 3, dtype=torch.complex128)
    f(x)
    _, tangent = tl.jvp(f, (x,), (t,))
    torch.testing.assert_close(tangent, t.conj() * 2)
    alone, with_tangent = launched
    assert with_tangent == alone
