"""Tensors that a compiled function stores in attributes, containers and variables, at each call."""

import collections
import concurrent.futures
import dataclasses
import functools
import gc
import weakref

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import torchlayers as tl
from tests.support.calls import assert_same
from torchlayers.core.torch_private import functorch, is_wrapped

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


class Cell:
    """The state of the programs below."""

    def __init__(self):
        self.mean = torch.zeros(3)
        self.history = []
        self.by_name = {}
        self.lists = {"all": []}
        self.recent = collections.deque(maxlen=2)
        self.hidden = None
        self.pair = torch.zeros(3), torch.ones(3)
        self.steps = 0


@dataclasses.dataclass
class Found:
    value: torch.Tensor
    steps: int = 0


def averages(cell, x):
    cell.mean = 0.9 * cell.mean + 0.1 * x.detach()
    return x * cell.mean


def averages_with_history(cell, x):
    cell.mean = cell.mean * 0.5 + x * x
    return (cell.mean * x).sin()


def appends(cell, x):
    y = x * 2
    cell.history.append(y)
    return y.sum()


def appends_to_a_list_in_a_dict(cell, x):
    cell.lists["all"].append(x.sin())
    return x + 1


def stores_by_name(cell, x):
    cell.by_name["input"] = x
    cell.by_name["output"] = y = x.cos()
    return y


def caches(cell, x):
    if "table" not in cell.by_name:
        cell.by_name["table"] = torch.arange(3.0).sin() * 2
    return x * cell.by_name["table"]


def keeps_the_last_two(cell, x):
    cell.recent.append(x * 2)
    return torch.stack(list(cell.recent)).sum(0)


def drops_the_oldest(cell, x):
    cell.history.append(x * 2)
    if len(cell.history) > 2:
        cell.history.pop(0)
    return sum(cell.history)


def recurs(cell, x):
    hidden = torch.zeros(3) if cell.hidden is None else cell.hidden
    cell.hidden = torch.tanh(hidden + x)
    return cell.hidden * 2


def recurs_with_a_pair(cell, x):
    h, c = cell.pair
    c = c * 0.5 + x
    cell.pair = h + c.tanh(), c
    return cell.pair[0]


def grows(cell, x):
    row = x[None].detach()
    cell.hidden = row if cell.hidden is None else torch.cat([cell.hidden, row])
    return cell.hidden.sum(0) * x


def makes_an_object(cell, x):
    cell.steps += 1
    cell.found = Found(x * 2, cell.steps)
    return x + 1


def reads_its_object(cell, x):
    before = getattr(cell, "found", None) or Found(torch.zeros(3))
    cell.found = Found(before.value + x.detach(), before.steps + 1)
    return cell.found.value * x


def shares(cell, x):
    y = x * 2
    cell.found = [y, (y, y.view(-1))]
    cell.by_name["y"] = y
    return y


def moves_on(cell, x):
    cell.before, cell.hidden = cell.hidden, x * 2
    return x.cos()


def branches_on_its_steps(cell, x):
    cell.steps += 1
    if cell.steps % 2:
        cell.mean = cell.mean * 0.5 + x.detach()
    return cell.mean * x / cell.steps


def replaces_a_global(cell, x):
    global last
    last = x.detach() if last is None else last + x.detach()
    cell.found = last
    return x * last


PROGRAMS = {
    averages: 1,
    averages_with_history: 1,
    appends: 1,
    appends_to_a_list_in_a_dict: 1,
    stores_by_name: 1,
    caches: 2,
    keeps_the_last_two: 3,
    drops_the_oldest: 3,
    recurs: 2,
    recurs_with_a_pair: 1,
    grows: 5,
    makes_an_object: 1,
    reads_its_object: 2,
    shares: 1,
    moves_on: 2,
    branches_on_its_steps: 2,
    replaces_a_global: 2,
}
LAYERS = {
    "": lambda f: f,
    "grad": lambda f: tl.grad(lambda x: f(x).sum()),
    "jvp": lambda f: lambda x: tl.jvp(f, (x,), (x,)),
    "hessian": lambda f: tl.hessian(lambda x: f(x).sum()),
    "vjp": lambda f: lambda x: tl.vjp(f, x)[0],
}


def plain(value):
    """The tensors, numbers and containers in a state, without the wrappers of layers."""
    while isinstance(value, torch.Tensor) and is_wrapped(value):
        value = functorch.get_unwrapped(value)
    if isinstance(value, torch.Tensor):
        assert type(value) is torch.Tensor
        return value
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple, collections.deque)):
        return [plain(each) for each in value]
    return plain(vars(value)) if isinstance(value, (Cell, Found)) else value


def five_calls(program, layer, compiles, requires_grad):
    global last
    last = None
    cell = Cell()
    f = LAYERS[layer](lambda x: program(cell, x))
    if compiles:
        f = tl.compile(f, backend="replay")
    seen = []
    for step in range(5):
        x = (numbers() + step).requires_grad_(requires_grad)
        results = f(x)
        seen.append((plain(results), pytree.tree_map_only(torch.Tensor, torch.clone, plain(cell))))
        if requires_grad and not layer:
            seen.append(torch.autograd.grad(results.sum(), x, retain_graph=True))
    return seen, f


@pytest.mark.sweep
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_state_after_each_call_is_as_uncompiled(program, layer, requires_grad):
    theirs, _ = five_calls(program, layer, False, requires_grad)
    ours, compiled = five_calls(program, layer, True, requires_grad)
    torch.testing.assert_close(ours, theirs)
    if not layer:
        ours, theirs = (pytree.tree_leaves(seen) for seen in (ours, theirs))
        flags = [[getattr(each, "requires_grad", None) for each in seen] for seen in (ours, theirs)]
        assert flags[0] == flags[1]
    if not (layer or requires_grad):
        assert len(compiled.report().signatures) == PROGRAMS[program]
    assert compiled.report().as_it_is == ""


def test_stored_tensors_have_the_history_that_eager_code_gives():
    history = []

    def f(x):
        y = x**3
        history.append(y.sum())
        return y

    compiled, x = tl.compile(f, backend="replay"), numbers().requires_grad_()
    compiled(x), compiled(x)
    torch.testing.assert_close(torch.autograd.grad(sum(history), x)[0], 6 * numbers() ** 2)


def test_stored_tensors_are_the_objects_that_are_returned_and_passed():
    seen = {}

    def f(x):
        y = x * 2
        seen.update(x=x, y=y, view=y[:2])
        return y

    compiled = tl.compile(f, backend="replay")
    for x in (numbers(), numbers()):
        y = compiled(x)
        assert seen["x"] is x and seen["y"] is y
        y.zero_()
        assert seen["view"].tolist() == [0, 0]


def test_second_derivative_finds_the_state_of_its_call():
    cell = Cell()

    def f(x):
        cell.steps += 1
        cell.mean = cell.mean + x.detach()
        return (x**3 * cell.mean).sum() * cell.steps

    compiled = tl.compile(f, backend="replay")
    inputs = [(numbers() * scale).requires_grad_() for scale in (1, 2)]
    results = [compiled(x) for x in inputs]
    means = [numbers(), 3 * numbers()]
    for step, (x, result, mean) in enumerate(zip(inputs, results, means, strict=True), 1):
        (slope,) = torch.autograd.grad(result, x, create_graph=True)
        torch.testing.assert_close(torch.autograd.grad(slope.sum(), x)[0], 6 * x * mean * step)
    assert cell.steps == 2


def test_report_names_what_is_written():
    cell = Cell()
    compiled = tl.compile(lambda x: makes_an_object(cell, x), backend="replay")
    compiled(numbers())
    assert {*compiled.report().signatures[0].writes} == {"cell.found", "cell.steps"}
    assert "     writes: cell." in repr(compiled.report())


def test_tensor_that_is_replaced_outside_is_read():
    cell = Cell()
    compiled = tl.compile(lambda x: averages(cell, x), backend="replay")
    compiled(numbers())
    cell.mean = numbers()
    assert_same(compiled(numbers()), numbers() * (0.9 * numbers() + 0.1 * numbers()))
    cell.mean = numbers().double()
    assert compiled(numbers()).dtype == torch.float64


def test_tensors_of_earlier_calls_are_freed():
    cell = Cell()
    compiled = tl.compile(lambda x: averages_with_history(cell, x), backend="replay")
    first = weakref.ref(cell.mean)
    compiled(numbers().requires_grad_())
    second = weakref.ref(cell.mean)
    compiled(numbers().requires_grad_())
    cell.mean = numbers()
    gc.collect()
    assert first() is None and second() is None


@pytest.mark.parametrize("transform", [tl.vmap, lambda f: tl.vmap(tl.grad(f))])
def test_batched_tensor_is_stored_by_the_uncompiled_function(transform):
    history = []

    def f(x):
        history.append(x * 2)
        return x.sin().sum()

    compiled = tl.compile(transform(f), backend="replay")
    with pytest.warns(UserWarning, match=r"stores a tensor in history.*it runs uncompiled"):
        found = compiled(numbers())
    assert_same(found, transform(f)(numbers()))
    assert len(history) == 2


def test_parameter_is_made_by_the_uncompiled_function():
    module = nn.Linear(3, 3)

    def f(x):
        module.bias = nn.Parameter(x * 2)
        return module(x)

    with pytest.warns(UserWarning, match=r"stores a tensor in module\.bias"):
        tl.compile(f, backend="replay")(numbers())
    assert isinstance(module.bias, nn.Parameter)
    assert_same(module.bias.detach(), numbers() * 2)


def test_tensors_stored_elsewhere():
    module, kept = Remembers(), []

    def f(kept, x, again=[]):  # noqa: B006
        kept.append(x * 2)
        again.append(x * 3)
        module.last.note = x * 4
        module.register_buffer("new", x * 5)
        module.linear.scale = x * 6
        return x + 1

    compiled = tl.compile(functools.partial(f, kept), backend="replay")
    for count in (1, 2):
        x = numbers() * count
        compiled(x)
        found = [kept[-1], f.__defaults__[0][-1], module.last.note, module.new, module.linear.scale]
        assert_same(found, [x * scale for scale in (2, 3, 4, 5, 6)])
        assert len(kept) == len(f.__defaults__[0]) == count


def test_lower_stores_nothing():
    cell = Cell()
    lowered = tl.compile(lambda x: appends(cell, x)).lower(numbers())
    assert cell.history == []
    with pytest.raises(tl.errors.TransformError, match="stores a tensor"):
        lowered.save("never.pt2")


def test_threads_store_each_its_own():
    history = []

    def f(x):
        history.append(x * 2)
        return x.sum()

    compiled = tl.compile(f, backend="replay")
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        [*pool.map(compiled, [torch.full((3,), float(i)) for i in range(40)])]
    assert sorted(each[0].item() for each in history) == [2.0 * i for i in range(40)]


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


def test_hooks_store_activations():
    def store(module, inputs, output):
        ACTIVATIONS["a"] = output.detach()

    stores = Stores()
    hooks = {"forward": store, "forward_pre": lambda *args: store(*args, args[1][0])}
    for name, hook in {**hooks, "object": stores}.items():
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
        register = "forward" if name == "object" else name
        getattr(net[0], f"register_{register}_hook")(hook)
        compiled = tl.compile(net, backend="replay")
        for scale in (1, 2):
            x = numbers() * scale
            compiled(x)
            found = stores.outputs[-1] if name == "object" else ACTIVATIONS.pop("a")
            assert_same(found, x if name == "forward_pre" else net[0](x).detach(), rounded=True)


def test_hook_of_all_modules_stores_activations():
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, inputs, output: ACTIVATIONS.update(a=output)
    )
    net = nn.Linear(3, 4)
    try:
        compiled = tl.compile(lambda x: net(x), backend="replay")
        for scale in (1, 2):
            found = compiled(numbers() * scale)
            assert ACTIVATIONS.pop("a") is found
    finally:
        handle.remove()
