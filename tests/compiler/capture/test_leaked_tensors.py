"""Tensors that a compiled function stores in attributes, lists and variables."""

import collections
import functools

import pytest
import torch
from torch import nn

import torchlayers as tl
from tests.support.calls import assert_same

last = None


def numbers():
    return torch.arange(1.0, 4.0)


class Remembers(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.last = torch.zeros(3)
        self.register_buffer("mean", torch.zeros(3))
        self.missing = None

    def forward(self, x):
        self.last = x * 2
        self.mean = x.mean().expand(3) * 1
        return self.linear(x)


@pytest.mark.sweep
@pytest.mark.parametrize("backend", ["replay", "inductor"])
def test_tensors_stored_on_a_module_are_updated_at_each_call(backend):
    module = Remembers()
    compiled = tl.compile(module, backend=backend)
    for scale in (1, 2, 3):
        x = numbers() * scale
        torch.testing.assert_close(compiled(x), module.linear(x))
        assert_same((module.last, module.mean), (x * 2, torch.full((3,), 2.0 * scale)))


def test_weight_norm_stores_its_computed_weight():
    with pytest.warns(FutureWarning):
        module = nn.utils.weight_norm(nn.Linear(3, 2))
    compiled = tl.compile(module, backend="replay")
    for _ in range(2):
        with torch.no_grad():
            module.weight_g.mul_(2)
            found = compiled(numbers()), module.weight
            assert_same(found, (module(numbers()), module.weight), rounded=True)


def leave_in_a_list(x, kept):
    kept["list"].append(x * 2)


def leave_in_a_dict(x, kept):
    kept["new"] = {"inside": (x * 2,)}


def leave_in_an_attribute(x, kept):
    kept["module"].missing = x * 2


def leave_in_a_buffer_that_is_read(x, kept):
    kept["module"].mean = kept["module"].mean + x


def leave_in_a_parameter(x, kept):
    kept["module"].linear.bias = nn.Parameter(x * 2)


def leave_on_a_tensor(x, kept):
    kept["module"].last.note = x * 2


def leave_in_a_global(x, kept):
    global last
    last = x * 2


def leave_in_a_new_buffer(x, kept):
    kept["module"].register_buffer("new", x * 2)


LEAVES = {
    leave_in_a_list: r"kept\['list'\]\[...\]",
    leave_in_a_dict: r"kept\[...\]",
    leave_in_an_attribute: r"kept\['module'\].missing",
    leave_in_a_buffer_that_is_read: r"kept\['module'\].mean",
    leave_in_a_parameter: r"kept\['module'\].linear.bias",
    leave_on_a_tensor: r"kept\['module'\].last.note",
    leave_in_a_global: "last",
    leave_in_a_new_buffer: r"kept\['module'\].new",
}


@pytest.mark.parametrize("leave", LEAVES, ids=lambda leave: leave.__name__)
def test_tensors_stored_elsewhere_are_rejected_and_removed(leave):
    module = Remembers()
    kept = {"list": [1, 2], "module": module}
    before = {name: value.clone() for name, value in module.state_dict().items()}
    bias = module.linear.bias

    def f(x):
        leave(x, kept)
        return x + 1

    with pytest.raises(tl.errors.TransformError, match=f"stores a tensor in {LEAVES[leave]},"):
        tl.compile(f, backend="replay")(numbers())
    assert (kept, last, module.missing) == ({"list": [1, 2], "module": module}, None, None)
    assert module.linear.bias is bias and vars(module.last) == {}
    assert_same(module.state_dict(), collections.OrderedDict(before))


def test_tensor_stored_in_a_list_that_no_name_refers_to_is_rejected():
    """Only changes of containers whose names the code loads are undone as Python state."""
    kept = [1, 2]

    def f(kept, x):
        kept.append(x * 2)
        return x + 1

    with pytest.raises(tl.errors.TransformError, match=r"stores a tensor in a list\[...\],"):
        tl.compile(functools.partial(f, kept), backend="replay")(numbers())
    assert kept == [1, 2]


LAYERS = {
    "grad": tl.grad,
    "vmap": tl.vmap,
    "vmap(grad)": lambda f: tl.vmap(tl.grad(f)),
    "hessian": tl.hessian,
}


@pytest.mark.parametrize("name", LAYERS)
def test_tensors_stored_inside_a_layer_are_rejected(name):
    kept = []

    def f(x):
        kept.append(x * 2)
        return x.sin().sum()

    with pytest.raises(tl.errors.TransformError, match=r"stores a tensor in kept\[...\],"):
        tl.compile(LAYERS[name](f), backend="replay")(numbers())
    assert kept == []


def test_tensor_stored_in_an_outer_variable_is_rejected():
    state = numbers()

    def f(x):
        nonlocal state
        state = state + x
        return state

    with pytest.raises(tl.errors.TransformError, match="stores a tensor in state"):
        tl.compile(f, backend="replay")(numbers())
    assert_same(state, numbers())


def test_tensors_that_the_function_removes_itself_are_allowed():
    module = nn.Linear(3, 1)
    weights = {"weight": torch.ones(1, 3), "bias": torch.zeros(1)}
    compiled = tl.compile(
        lambda x, weights: torch.func.functional_call(module, weights, x), backend="replay"
    )
    assert compiled(numbers(), weights) == 6


CHANGED = {
    "a new key": lambda d: d.update(y=d["x"] * 2),
    "another value": lambda d: d.update(x=d["x"] * 2),
    "a key less": lambda d: d.pop("x"),
}


@pytest.mark.parametrize("name", CHANGED)
def test_changing_a_container_argument_is_rejected(name):
    def f(d):
        CHANGED[name](d)
        return numbers()

    with pytest.raises(tl.errors.TransformError, match="changes a container that it was passed"):
        tl.compile(f, backend="replay")({"x": numbers()})


ACTIVATIONS = {}


class Stores:
    def __init__(self):
        self.outputs = []

    def __call__(self, module, inputs, output):
        self.outputs.append(output.detach())


def test_activation_stored_by_a_hook_is_rejected():
    def store(module, inputs, output):
        ACTIVATIONS["a"] = output.detach()

    stores = Stores()
    hooks = {"forward": store, "forward_pre": lambda *args: store(*args, args[1][0])}
    for name, hook in {**hooks, "object": stores}.items():
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
        register = "forward" if name == "object" else name
        getattr(net[0], f"register_{register}_hook")(hook)
        with pytest.raises(tl.errors.TransformError, match=r"stores a tensor in (ACT|a hook)"):
            tl.compile(net, backend="replay")(numbers())
        assert ACTIVATIONS == {} and stores.outputs == []


def test_activation_stored_by_a_hook_of_all_modules_is_rejected():
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, inputs, output: ACTIVATIONS.update(a=output)
    )
    net = nn.Linear(3, 4)
    try:
        with pytest.raises(tl.errors.TransformError, match="stores a tensor in ACTIVATIONS"):
            tl.compile(lambda x: net(x), backend="replay")(numbers())
    finally:
        handle.remove()
    assert ACTIVATIONS == {}
