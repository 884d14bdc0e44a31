"""Functions that run later see modules, variables and attributes as they were at the call."""

import functools
import types

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint as torch_checkpoint

import torchlayers as tl
from torchlayers.remat.deferred import deferred

SETTINGS = types.SimpleNamespace(scale=1.0)


class Scaled(nn.Module):
    """Calls body(self, x); has a buffer `k`."""

    def __init__(self, body):
        super().__init__()
        self.register_buffer("k", torch.tensor(0.2, dtype=torch.float64))
        self.body = body

    def forward(self, x):
        return self.body(self, x)


def test_variables_keep_their_values():
    x = 1
    f = deferred(lambda: x)
    x = 2
    assert f() == 1


def test_a_variable_that_the_function_assigns_is_shared():
    count = 0

    def f():
        nonlocal count
        count += 1

    deferred(f)()
    assert count == 1


def test_attributes_of_modules_and_objects():
    layer, box = nn.Sequential(nn.Linear(1, 1)), types.SimpleNamespace(a=1.0)
    weight = layer[0].weight

    def f():
        return box.a, layer[0].weight, layer.training, SETTINGS.scale

    as_now = deferred(f)
    other = nn.Parameter(torch.zeros(1, 1))
    layer[0].weight, box.a = other, 2.0
    layer.eval()
    try:
        SETTINGS.scale = 3.0
        assert as_now() == (1.0, weight, True, 1.0)
        assert f() == (2.0, other, False, 3.0)
    finally:
        SETTINGS.scale = 1.0


def test_items_of_containers():
    """A loop that replaces its state, as in ``state["h"] = step(state)``."""
    first, second = torch.zeros(1), torch.ones(1)
    names, values = {"h": first, "scale": 1.0}, [first, "text"]

    def f():
        values.append(second)
        return names["h"], names["scale"], values[0], len(values)

    as_now = deferred(f)
    names.update(h=second, scale=2.0)
    values[:] = [second]
    assert as_now() == (first, 1.0, first, 3)
    assert names == {"h": second, "scale": 2.0}
    assert values == [second]


class _Slots:
    __slots__ = ("weights",)


@pytest.mark.parametrize("box", [types.SimpleNamespace(), nn.Module(), _Slots()])
@pytest.mark.parametrize("make", [lambda x: {"w": x}, lambda x: [x], lambda x: {"w": [{"w": x}]}])
def test_a_container_that_is_replaced(make, box):
    """Or changed inside: ``self.weights = {"w": …}`` and ``self.weights["w"] = …``."""
    first, second = torch.zeros(1), torch.ones(1)
    replaced, changed = make(first), make(first)
    box.weights = replaced
    as_now = deferred(lambda: (box.weights, str(changed)))
    before = str(changed)
    box.weights = make(second)
    changed.clear()
    changed.update(make(second)) if isinstance(changed, dict) else changed.extend(make(second))
    weights, items = as_now()
    assert weights is replaced
    assert items == before
    assert str(box.weights) == str(changed) == str(make(second))


def test_what_was_not_there_yet():
    """As in ``if not hasattr(self, "scale")``, or a dict of values that are computed once."""
    box, values = types.SimpleNamespace(), {}
    as_now = deferred(lambda: (hasattr(box, "scale"), [*values]))
    box.scale, values["w"] = 2.0, 3.0
    assert as_now() == (False, [])
    assert (box.scale, values) == (2.0, {"w": 3.0})


@pytest.mark.parametrize("value", [True, "mean", None])
def test_a_setting_that_was_not_there_yet(value):
    class Model:
        mode = "sum"

    model = Model()
    as_now = deferred(lambda: model.mode)
    model.mode = value
    assert as_now() == "sum"
    assert model.mode is value


def test_a_count_that_begins_in_the_call():
    class Model:
        calls = 0

        def __call__(self):
            self.calls += 1
            return self.calls

    model = Model()
    as_now = deferred(model.__call__)
    assert model() == 1
    assert as_now() == 2
    assert model.calls == 2


def test_attributes_of_classes():
    class Model:
        scale = 2.0
        weights = None

        @staticmethod
        def times(x):
            return x * Model.scale

    model = Model()
    by_class, by_object = deferred(lambda: Model.times(3.0)), deferred(lambda: model.scale)
    Model.scale, before = 5.0, vars(Model)["times"]
    assert (by_class(), by_object()) == (6.0, 2.0)
    assert Model.scale == 5.0
    assert vars(Model)["times"] is before


def test_a_solution_that_reads_a_class_in_a_checkpoint():
    class State:
        pass

    def solution(x):
        State.k = x * 0.3
        return tl.custom_fixed_point(lambda y: (y * State.k).cos() * x * 0.5, x.detach()).sum()

    x = torch.linspace(0.1, 0.9, 3, dtype=torch.float64)
    torch.testing.assert_close(tl.grad(tl.checkpoint(solution))(x), tl.grad(solution)(x))


_BOX = types.SimpleNamespace(scale=2.0)


def _made(box):
    return lambda: box.scale


_READ = _made(_BOX)  # a global function with a closure


def test_closures_of_global_functions():
    as_now = deferred(lambda: _READ())
    _BOX.scale = 5.0
    assert as_now() == 2.0
    _BOX.scale = 2.0


@pytest.mark.parametrize("solve", ["checkpoint", "fixed point"])
def test_a_state_that_a_loop_replaces(solve):
    def by_dict(x):
        state = {"h": x}
        for _ in range(3):
            if solve == "checkpoint":
                state["h"] = tl.checkpoint(lambda x: x * state["h"].sin())(x)
            else:
                step = lambda y: 0.25 * y + state["h"].sin() * x  # noqa: E731
                state["h"] = tl.custom_fixed_point(step, torch.zeros_like(x))
        return state["h"].sum()

    def plain(x):
        h = x
        for _ in range(3):
            h = x * h.sin() / (1 if solve == "checkpoint" else 0.75)
        return h.sum()

    x = torch.linspace(0.1, 0.9, 3, dtype=torch.float64)
    torch.testing.assert_close(tl.hessian(by_dict)(x), tl.hessian(plain)(x))


SCALE = 2.0
WEIGHTS = {"w": 2.0}
FACTOR = torch.tensor(2.0)
SHAPE = len
CALLS_OF_A_METHOD = 0


def scaled(x):
    return x * SCALE


class _Base:
    power = 2.0

    def helper(self, x):
        return scaled(x)


class _Reading(_Base, nn.Module):
    """Its methods read globals, and an attribute of a class that it inherits."""

    @property
    def factor(self):
        return FACTOR.item()

    @staticmethod
    def weight():
        return WEIGHTS["w"]

    def forward(self, x):
        global CALLS_OF_A_METHOD
        CALLS_OF_A_METHOD += 1
        return SHAPE([SCALE * x]), self.helper(x), self.factor, self.weight(), self.power


def _globals_read():
    return SHAPE([SCALE]), scaled(1.0), FACTOR.item(), WEIGHTS["w"], _Reading.power


@pytest.mark.parametrize(
    "make",
    [
        lambda: _globals_read,
        lambda: lambda: _globals_read(),
        lambda: functools.partial(_Reading(), 1.0),
        lambda: functools.partial(_Reading().forward, 1.0),
        lambda: functools.partial((lambda module: lambda x: module(x))(_Reading()), 1.0),
    ],
    ids=["a function", "one that it calls", "a module", "a method", "a module in a closure"],
)
def test_globals_that_are_bound_again(monkeypatch, make):
    before, namespace = CALLS_OF_A_METHOD, globals()
    f = make()
    as_now, calls = deferred(f), 1 if isinstance(f, functools.partial) else 0
    changes = {"SCALE": 5.0, "WEIGHTS": {"w": 5.0}, "FACTOR": torch.tensor(5.0), "SHAPE": sum}
    for name, value in changes.items():
        monkeypatch.setitem(namespace, name, value)
    monkeypatch.setattr(_Base, "power", 5.0)
    assert as_now() == (1, 2.0, 2.0, 2.0, 2.0)
    assert {name: namespace[name] for name in changes} == changes
    assert _Base.power == 5.0
    assert before + calls == CALLS_OF_A_METHOD
    assert f() == (5.0, 5.0, 5.0, 5.0, 5.0)


def test_a_global_that_is_bound_again_before_the_backward(monkeypatch):
    x = torch.tensor(0.7, dtype=torch.float64)

    def loss(x):
        y = tl.checkpoint(lambda x: scaled(x).sin())(x)
        monkeypatch.setitem(globals(), "SCALE", 5.0)
        return y

    right = 2 * (2 * x).cos()
    torch.testing.assert_close(tl.grad(loss)(x), right)
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    y = x.clone().requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(loss(y), y)[0], right)


def test_attributes_are_restored_after_an_error():
    box = types.SimpleNamespace(a="first")

    def f():
        raise ZeroDivisionError

    as_now = deferred(f, box)
    box.a = "second"
    with pytest.raises(ZeroDivisionError):
        as_now()
    assert box.a == "second"


def test_integers_count():
    box = types.SimpleNamespace(calls=0)

    def f():
        box.calls += 1

    as_now = deferred(f)
    for _ in range(3):
        as_now()
    assert box.calls == 3


def test_an_integer_that_is_replaced():
    box = types.SimpleNamespace(calls=0, power=2)

    def f():
        box.calls += 1
        return box.calls, box.power

    as_now = deferred(f)
    f()
    box.power = 5
    assert as_now() == (1, 2)
    assert (box.calls, box.power) == (2, 5)


def test_bound_methods_and_partials():
    class Model:
        def __init__(self, a):
            self.a = a

        def times(self, x):
            return self.a * x

    model = Model(2.0)
    by_method, by_partial = deferred(model.times), deferred(functools.partial(Model.times, model))
    model.a = 5.0
    assert by_method(1.0) == by_partial(1.0) == 2.0


def test_what_reaches_no_state_is_not_wrapped():
    assert deferred(torch.sin) is torch.sin


def steps(module, x):
    return tl.fori_loop(0, 20, lambda i, c: (module.k * c).sin() + x, x)


CHECKPOINTS = {
    "checkpoint": lambda m, x: tl.checkpoint(lambda x: steps(m, x))(x),
    "torch's": lambda m, x: torch_checkpoint(lambda x: steps(m, x), x, use_reentrant=False),
    "of a scan": lambda m, x: tl.scan(
        lambda c, _: ((m.k * c).sin() + x, None), x, length=20, checkpoint=True
    )[0],
    "snapshots": lambda m, x: tl.scan(
        lambda c, _: ((m.k * c).sin() + x, None), x, length=20, snapshots=4
    )[0],
}


def by_attribute(body, k, x):
    box = types.SimpleNamespace(k=k)
    y = body(box, x)
    box.k = torch.zeros_like(k)
    return y


CALLS = {
    "tl": lambda body, k, x: tl.functional_call(Scaled(body), {"k": k}, (x,)),
    "torch": lambda body, k, x: torch.func.functional_call(Scaled(body), {"k": k}, (x,)),
    "an attribute": by_attribute,
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_checkpoints(checkpoint, call):
    k, x = torch.tensor(0.8, dtype=torch.float64), torch.linspace(0.1, 0.9, 3, dtype=torch.float64)

    def f(k, x):
        return CALLS[call](CHECKPOINTS[checkpoint], k, x).sum()

    right = tl.grad(lambda k, x: steps(types.SimpleNamespace(k=k), x).sum(), (0, 1))(k, x)
    torch.testing.assert_close(tl.grad(f, (0, 1))(k, x), right)
    if checkpoint == "torch's" and call != "tl":
        return  # nothing of ours runs then, and torch recomputes with what there is later
    k, x = k.clone().requires_grad_(), x.clone().requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(f(k, x), (k, x)), right)
