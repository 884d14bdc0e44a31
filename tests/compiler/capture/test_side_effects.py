"""Side effects of compiled functions on tensors besides writes: .data, .grad, requires_grad."""

import copy

import pytest
import torch
from torch import nn

import torchlayers as tl
from tests.support.calls import assert_same

BACKENDS = [
    {"backend": "replay"},
    {"backend": "replay", "dynamic": True},
    {"backend": "inductor", "check": False},
]
backends = pytest.mark.parametrize(
    "options", BACKENDS, ids=lambda o: "-".join(map(str, o.values()))
)


def numbers(size=3):
    return torch.arange(1.0, size + 1, dtype=torch.float64)


def told(tensor):
    """Returns the tensor's values, its requires_grad, and its gradient."""
    gradient = tensor.grad if tensor.is_leaf else None
    return tensor.detach().clone(), tensor.requires_grad, None if gradient is None else gradient * 1


def new_data(x, y):
    x.data = y * 2
    x.add_(1)
    return x * 3


def new_data_of_another_shape(x, y):
    x.data = torch.cat([y, y])
    return x.sum()


def data_of_another(x, y):
    x.data = y
    x.mul_(2)
    return y + 1


def data_of_its_own(x, y):
    own = torch.empty_like(x)
    own.data = y
    own.add_(1)
    return own * 2


def data_in_place(x, y):
    x.data.add_(y)
    x.data *= 2
    return x + 1


def requires_grad(x, y):
    x.requires_grad_()
    return x * y


def requires_grad_no_more(x, y):
    y.requires_grad = True
    y.requires_grad_(False)
    return x * y


def detached(x, y):
    z = (x * y).requires_grad_()
    (gradient,) = torch.autograd.grad((z**2).sum(), z)
    return gradient.detach_()


def gradient_set(x, y):
    x.requires_grad_()
    x.grad = y * 2
    return x.detach() + x.grad


def gradient_gone(x, y):
    x.grad = y * 2
    x.grad = None
    return x + y


PROGRAMS = [
    new_data,
    new_data_of_another_shape,
    data_of_another,
    data_of_its_own,
    data_in_place,
    requires_grad,
    requires_grad_no_more,
    detached,
    gradient_set,
    gradient_gone,
]


@pytest.mark.sweep(one_in=16)
@backends
@pytest.mark.filterwarnings("ignore:.*it is differentiated by plain autograd")
@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)
def test_effects_on_arguments_happen_at_each_call(f, options):
    compiled = tl.compile(f, **options)
    for size in (3, 3, 4, 5):
        seen = []
        for function in (f, compiled):
            x, y = numbers(size), -numbers(size)
            result = function(x, y)
            wanted = x.is_leaf and x.requires_grad and result.requires_grad
            gradient = torch.autograd.grad(result.sum(), x)[0] if wanted else None
            seen.append((told(result), told(x), told(y), gradient))
        assert_same(*seen, rounded=True)


@pytest.mark.sweep
@backends
@pytest.mark.parametrize(
    "f", [f for f in PROGRAMS if "shape" not in f.__name__], ids=lambda f: f.__name__
)
def test_effects_on_captured_tensors_happen_at_each_call(f, options):
    seen = []
    for compiled in (False, True):
        held = numbers()
        function = tl.compile(lambda y: f(held, y), **options) if compiled else lambda y: f(held, y)  # noqa: B023
        results = [told(function(-numbers())) for _ in range(3)]
        seen.append((results, told(held)))
    assert_same(*seen, rounded=True)


def test_data_of_another_shape_is_refused_for_a_captured_tensor():
    held = numbers()

    def f(x):
        held.data = x

    with pytest.raises(
        tl.errors.TransformError, match=r"another shape.*test_side_effects.py.*held.data"
    ):
        tl.compile(f, backend="replay")(numbers(4))
    assert_same(held, numbers())


@backends
def test_an_argument_that_required_grad_is_detached(options):
    def f(x):
        x.detach_()
        return x * 2

    compiled = tl.compile(f, **options)
    for make in (lambda: numbers().requires_grad_(), lambda: numbers().requires_grad_() * 1):
        x = make()
        result = compiled(x)
        assert not x.requires_grad and x.is_leaf and not result.requires_grad


@backends
def test_a_result_requires_grad(options):
    result = tl.compile(lambda x: (x * 2).requires_grad_(), **options)(numbers())
    assert result.is_leaf and result.requires_grad
    assert_same(result.detach(), numbers() * 2)


@backends
def test_grad_is_read_at_each_call(options):
    """The gradient may be replaced, or set to None, between calls."""
    weight = nn.Parameter(numbers())

    def f(x):
        if weight.grad is None:
            return x
        return x * weight.grad

    compiled = tl.compile(f, **options)
    for gradient in (None, numbers(), numbers() * 5, None, -numbers()):
        weight.grad = gradient
        assert_same(compiled(numbers()), f(numbers()))
    assert len(compiled.report().signatures) == 2


def test_a_gradient_of_an_argument_is_read():
    compiled = tl.compile(
        lambda x: 0 * x if x.grad is None else x.detach() * x.grad, backend="replay"
    )
    for gradient in (None, numbers(), numbers() * 5):
        x = numbers().requires_grad_()
        x.grad = gradient
        assert_same(compiled(x).detach(), numbers() * (0 if gradient is None else gradient))


def step_by_hand(weight, loss):
    gradient = tl.grad(loss)(weight.detach())
    with torch.no_grad():
        weight.sub_(0.1 * gradient)


def sgd(weight, loss):
    optimizer = torch.optim.SGD([weight], lr=0.1)
    optimizer.zero_grad()
    weight.grad = tl.grad(loss)(weight.detach())
    torch.nn.utils.clip_grad_norm_([weight], 0.5)
    optimizer.step()


@pytest.mark.sweep
@backends
@pytest.mark.parametrize("step", [step_by_hand, sgd], ids=["by hand", "SGD"])
def test_an_optimizer_steps_inside(step, options):
    seen = []
    for compiled in (False, True):
        weight = nn.Parameter(numbers())

        def f(x):
            step(weight, lambda w: (w * x).sum().square())  # noqa: B023
            return (weight.detach() * x).sum()  # noqa: B023

        function = tl.compile(f, **options) if compiled else f
        results = [function(numbers() / 10) for _ in range(4)]
        seen.append((results, told(weight)))
    assert_same(*seen, rounded=True)


@pytest.mark.sweep
@backends
def test_existing_momentum_buffer_is_written(options):
    seen = []
    for compiled in (False, True):
        weight = nn.Parameter(numbers())
        optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
        weight.grad = numbers()
        optimizer.step()

        def f(x):
            weight.grad = tl.grad(lambda w: (w * x).sum().square())(weight.detach())  # noqa: B023
            optimizer.step()  # noqa: B023

        function = tl.compile(f, **options) if compiled else f
        for _ in range(3):
            function(numbers() / 10)
        seen.append((told(weight), optimizer.state[weight]["momentum_buffer"]))
    assert_same(*seen, rounded=True)


@pytest.mark.sweep
@backends
def test_counters_and_conversions(options):
    def f(x, step, low, flags):
        step += 1
        low.copy_(x * step)
        flags |= x > 2
        flags[0] = True
        return x * step, low.float(), ~flags

    def arguments():
        return numbers(), torch.tensor(3), torch.zeros(3).half(), torch.zeros(3, dtype=torch.bool)

    compiled = tl.compile(f, **options)
    for _ in range(2):
        given, expected = arguments(), arguments()
        assert_same(compiled(*given), f(*expected))
        assert_same(given, expected)


held = nn.Parameter(numbers())
REFUSED = {
    "a hook": (lambda x: x.register_hook(print), "register the hook outside"),
    "a hook of a captured one": (lambda x: held.register_hook(print), "register the hook outside"),
    "a hook after": (
        lambda x: held.register_post_accumulate_grad_hook(print),
        "register the hook outside",
    ),
    "a gradient to keep": (lambda x: (x * 2).retain_grad(), r"call retain_grad\(\) on the result"),
    "turned": (lambda x: x.t_(), "use the out-of-place method"),
    "one dimension more": (lambda x: held.detach().unsqueeze_(0) + x.unsqueeze_(0), "out-of-place"),
    "set": (lambda x: x.set_(x * 2), "Write x.data = y"),
    "memory": (lambda x: x.untyped_storage().resize_(0), "resizes the memory"),
    "memory of a captured one": (lambda x: held.untyped_storage().resize_(0), "resizes the memory"),
    "memory written": (lambda x: x.untyped_storage().fill_(0), "Write to the tensor"),
    "an address": (lambda x: x + x.data_ptr(), "reads the address"),
    "memory for others": (lambda x: x.share_memory_(), "do that outside"),
    "copied": (lambda x: copy.copy(x), r"write x.detach\(\) .* In test_side_effects.py:"),
    "swapped": (lambda x: torch.utils.swap_tensors(x, x.clone()), "Swap them outside"),
    "an attribute": (lambda x: setattr(x, "note", 3), "sets the attribute 'note' of argument x"),
    "backward": (
        lambda x: torch.autograd.backward(x.requires_grad_().sum()),
        r"calls backward\(\)",
    ),
    "a write with a history": (lambda x: x.mul_(held), "write its detach"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_effects_are_rejected(name):
    f, said = REFUSED[name]
    x = numbers()
    with pytest.raises(tl.errors.TransformError, match=f"(?s)torchlayers: compile: .*{said}"):
        tl.compile(f, backend="replay")(x)
    assert_same(told(x), told(numbers()))
    assert_same(held.detach(), numbers())
    assert (held.grad, held._backward_hooks, held.is_leaf) == (None, None, True)


@pytest.mark.filterwarnings("ignore:.*runs uncompiled when autograd is enabled")
def test_write_to_a_saved_tensor_raises_as_in_eager():
    def f(x, c):
        y = (x * c).sum()
        c.mul_(2)
        return y

    result = tl.compile(f, backend="replay")(numbers().requires_grad_(), numbers())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()


def test_second_derivative_does_not_repeat_effects():
    def f(x, y):
        y.data = (x * 2).detach()
        return x.sin() * y

    x, y = numbers().requires_grad_(), numbers()
    result = tl.compile(f, backend="replay")(x, y)
    assert_same(y, numbers() * 2)
    y.zero_()
    (slope,) = torch.autograd.grad(result.sum(), x, create_graph=True)
    torch.autograd.grad(slope.sum(), x)
    assert_same(y, numbers() * 0)


def test_saving_a_function_with_effects_is_rejected(tmp_path):
    lowered = tl.compile(new_data).lower(numbers(), numbers())
    with pytest.raises(tl.errors.TransformError, match=r"sets \.data, \.grad"):
        lowered.save(tmp_path / "new_data.pt2")
