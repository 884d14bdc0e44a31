"""functional_call of unusual kinds of modules, and of calls inside calls."""

import asyncio
import copy
import gc
import pickle
import threading
import weakref
from contextlib import contextmanager
from functools import partial

import pytest
import torch
import torch.func
from torch import nn
from torch.nn.utils import stateless

import torchlayers as tl

X = torch.linspace(-1, 1, 12).reshape(3, 4)
CALLS = {"torchlayers": tl.functional_call, "torch.func": torch.func.functional_call}


def given(module, factor=1.5):
    return {name: p.detach() * factor for name, p in module.named_parameters()}


@contextmanager
def unchanged(module):
    """Asserts that the module holds the same tensors afterwards."""

    def held():
        named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers()]
        return {name: id(t) for name, t in named}

    before = held()
    yield
    assert held() == before


def agree_with_torch(module, tensors):
    """Compares the output, and the gradients with respect to the tensors, with torch.func's."""

    def loss(call):
        return lambda tensors: call(module, tensors, (X,)).square().sum()

    with unchanged(module):
        ours = tl.grad_and_value(loss(tl.functional_call))(tensors)
    theirs = torch.func.grad_and_value(loss(torch.func.functional_call))(tensors)
    torch.testing.assert_close(ours, theirs)


# Kinds


class Collecting(nn.Module):
    def __init__(self):
        super().__init__()
        self.listed = nn.ParameterList([torch.rand(4) for _ in range(2)])
        self.named = nn.ParameterDict({"a": torch.rand(4), "b": torch.rand(4)})
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])
        self.by_name = nn.ModuleDict({"first": nn.Linear(4, 4), "last": nn.Tanh()})

    def forward(self, x):
        for scale in self.listed:
            x = x * scale
        for key, shift in self.named.items():
            x = x + shift * self.named[key]
        for layer in (*self.layers, *self.by_name.values()):
            x = layer(x)
        return x * self.listed[-1] + self.named.a


class Called(nn.Linear):
    def __call__(self, x):
        return 2 * super().__call__(x)


class Uncalled(nn.Linear):
    """Its call bypasses its hooks."""

    def __call__(self, x):
        return self.forward(x)


class Slotted(nn.Linear):
    __slots__ = ("factor", "unset")

    def __init__(self):
        super().__init__(4, 4)
        object.__setattr__(self, "factor", torch.full((4,), 3.0))

    def forward(self, x):
        return super().forward(x) * self.factor


def with_own_forward():
    layer = nn.Linear(4, 4)
    layer.forward = lambda x: x @ layer.weight + layer.bias.sin()
    return layer


def compiled_in_place():
    torch._dynamo.reset()
    layer = nn.Linear(4, 4)
    layer.compile(backend="eager")
    return layer


def quantised():
    inner = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(4, 4)), {nn.Linear})
    return nn.Sequential(nn.Linear(4, 4), inner)


KINDS = {
    "lists and dicts of parameters and modules": Collecting,
    "__call__ overridden": lambda: Called(4, 4),
    "__call__ that calls forward": lambda: Uncalled(4, 4),
    "slots": Slotted,
    "a forward of its own": with_own_forward,
    "compiled in place": compiled_in_place,
    "old-style weight_norm": lambda: nn.utils.weight_norm(nn.Linear(4, 3)),
    "old-style spectral_norm": lambda: nn.utils.spectral_norm(nn.Linear(4, 3)).eval(),
}


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_modules(kind):
    torch.manual_seed(0)
    module = KINDS[kind]()
    agree_with_torch(module, given(module))
    agree_with_torch(nn.Sequential(module), given(nn.Sequential(module)))


@pytest.mark.parametrize("kind", [nn.RNNCell, nn.GRUCell, nn.LSTMCell])
def test_gradients_a_sample_of_recurrent_cells(kind):
    """Their initial state is a fresh tensor of zeros, which they add to."""
    cell = kind(4, 3)

    def loss(tensors, x):
        state = tl.functional_call(cell, tensors, (x,))
        return (state[0] if isinstance(state, tuple) else state).square().sum()

    gradients = tl.vmap(tl.grad(loss), (None, 0))(given(cell), X)
    for i, x in enumerate(X):
        one = tl.grad(loss)(given(cell), x)
        torch.testing.assert_close({name: g[i] for name, g in gradients.items()}, one)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_quantised_parts_stay_as_they_are():
    net = quantised()
    tensors = given(net)
    expected = net[1](X @ tensors["0.weight"].T + tensors["0.bias"])
    torch.testing.assert_close(tl.functional_call(net, tensors, (X,), strict=True), expected)


def test_collections_that_grow_are_planned_anew():
    net = Collecting()
    agree_with_torch(net, given(net))
    net.listed.append(torch.rand(4))
    net.named["c"] = torch.rand(4)
    agree_with_torch(net, given(net))
    del net.named["b"]
    agree_with_torch(net, given(net))


def test_a_slot_without_a_value_has_none_afterwards():
    net = Slotted()
    tl.functional_call(net, {"unset": X[0], "factor": X[1]}, (X,))
    assert not hasattr(net, "unset")
    assert net.factor.eq(3).all()


def test_buffers_that_are_not_saved():
    class Shifted(nn.Linear):
        def __init__(self):
            super().__init__(4, 4)
            self.register_buffer("shift", torch.ones(4), persistent=False)

        def forward(self, x):
            return super().forward(x) + self.shift

    net = Shifted()
    with unchanged(net):
        moved = tl.functional_call(net, {**given(net, 1), "shift": X[0]}, (X,), strict=True)
    torch.testing.assert_close(moved, net(X) - 1 + X[0])
    assert "shift" not in net.state_dict()
    assert tl.functional(net)[2].keys() == {"shift"}


# Copies


def pickled(net):
    return pickle.loads(pickle.dumps(net))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, pickled])
def test_copies_of_a_module_that_was_called(duplicate):
    net = Collecting()
    agree_with_torch(net, given(net))
    other = duplicate(net)
    torch.testing.assert_close(other(X), net(X))
    agree_with_torch(other, given(other, 2.0))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, pickled])
def test_copies_made_in_the_call_keep_the_given_tensors(duplicate):
    kept = []

    class Copying(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            kept.append(duplicate(self.layer))
            return self.layer(x)

    net = Copying()
    tensors = given(net)
    with unchanged(net):
        output = tl.functional_call(net, tensors, (X,))
    torch.testing.assert_close(kept[0](X), output)


def test_a_thousand_modules_go_when_they_are_let_go():
    layers = [nn.Linear(4, 4) for _ in range(1000)]
    for _ in range(2):
        for i, layer in enumerate(layers):
            tensors = {"weight": torch.eye(4) * i, "bias": X[0]}
            assert torch.equal(tl.functional_call(layer, tensors, (X,)), X * i + X[0])
    agree_with_torch(nn.Sequential(*layers[:100]), given(nn.Sequential(*layers[:100]), 1.0))
    kept = [weakref.ref(held) for layer in layers for held in (layer, layer.weight)]
    del layers, layer
    gc.collect()
    assert not any(reference() is not None for reference in kept)


# Calls inside calls


class Nesting(nn.Module):
    """Calls itself and a part of itself by the given function; one of the calls fails."""

    def __init__(self, call):
        super().__init__()
        self.one, self.other = (nn.Linear(4, 4, bias=False) for _ in range(2))
        self.call = call

    def forward(self, x, depth=1):
        if not depth:
            return self.one(x)
        doubled = {"one.weight": 2 * self.one.weight}
        with pytest.raises(RuntimeError):
            self.call(self, doubled, (x[..., :2], 0))
        by_other = self.call(self.one, {"weight": self.other.weight}, (x,))
        return self.call(self, doubled, (x, 0)) + by_other + self.one(x)


@pytest.mark.parametrize("inner", CALLS)
@pytest.mark.parametrize("outer", CALLS)
def test_ours_and_torch_funcs_inside_each_other(outer, inner):
    net, call = Nesting(CALLS[inner]), CALLS[outer]
    tensors = given(net)
    one, other = tensors["one.weight"], tensors["other.weight"]

    def loss(tensors, x):
        return call(net, tensors, (x,)).sum()

    with unchanged(net):
        torch.testing.assert_close(call(net, tensors, (X,)), X @ (3 * one + other).T)
        gradients = tl.vmap(tl.grad(loss), (None, 0))(tensors, X)
    by_sample = X.unsqueeze(1).expand(3, 4, 4)
    torch.testing.assert_close(gradients, {"one.weight": 3 * by_sample, "other.weight": by_sample})


def test_inside_torchs_reparametrization():
    net = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    with unchanged(net), stateless._reparametrize_module(net, {"0.weight": 2 * torch.eye(4)}):
        output = tl.functional_call(net, {"1.weight": 3 * torch.eye(4)}, (X,))
        torch.testing.assert_close(output, 6 * X)
        assert net[0].weight.trace() == 8


def test_a_modules_output_as_its_own_parameter():
    layer = nn.Linear(4, 4)
    tensors = given(layer)

    def twice(tensors):
        weight = tl.functional_call(layer, tensors, (torch.eye(4),))
        return tl.functional_call(layer, {**tensors, "weight": weight}, (X,)).sum()

    def by_hand(tensors):
        weight = tensors["weight"].T + tensors["bias"]
        return (X @ weight.T + tensors["bias"]).sum()

    torch.testing.assert_close(tl.grad(twice)(tensors), tl.grad(by_hand)(tensors))


def test_hooks_that_call_modules():
    """Hooks that call another module, and the one they are registered on."""
    layer, other, is_inside = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False), []

    def hook(module, args, output):
        if is_inside:
            return output
        is_inside.append(True)
        own = tl.functional_call(module, {"weight": 10 * module.weight}, args)
        is_inside.clear()
        return output + own + tl.functional_call(other, {"weight": 2 * module.weight}, args)

    layer.register_forward_hook(hook)
    tensors = given(layer)

    def loss(tensors, x):
        return tl.functional_call(layer, tensors, (x,)).sum()

    with unchanged(layer), unchanged(other):
        gradients = tl.vmap(tl.grad(loss), (None, 0))(tensors, X)
    torch.testing.assert_close(gradients["weight"], 13 * X.unsqueeze(1).expand(3, 4, 4))


def test_a_hook_that_removes_itself():
    layer = nn.Linear(4, 4)

    def hook(module, args, output):
        handle.remove()
        return 2 * output

    handle = layer.register_forward_hook(hook)
    first, second = (tl.functional_call(layer, given(layer), (X,)) for _ in range(2))
    torch.testing.assert_close(first, 2 * second)


# Modules that are rebuilt while they run


class Exchanging(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        self.one, self.other = self.other, self.one
        return self.one(x)


class Replacing(Exchanging):
    def forward(self, x):
        before, self.one = self.one, nn.Linear(4, 4)
        return before(x)


class Deleting(Exchanging):
    def forward(self, x):
        before = self.other(x)
        del self.other
        return before


class WithOtherDicts(Exchanging):
    def forward(self, x):
        self.one._parameters = dict(self.one._parameters)
        return self.one(x)


@pytest.mark.parametrize("kind", [Exchanging, Replacing, Deleting, WithOtherDicts])
def test_a_module_that_is_rebuilt_in_the_call(kind):
    net = kind()
    dicts = [net.one._parameters, net.other._parameters]
    before = [dict(each) for each in dicts]
    tensors = given(net)
    is_other = kind in (Exchanging, Deleting)
    name = "other" if is_other else "one"
    expected = X @ tensors[f"{name}.weight"].T + tensors[f"{name}.bias"]
    torch.testing.assert_close(tl.functional_call(net, tensors, (X,)), expected)
    for each, own in zip(dicts, before, strict=True):
        assert [*each] == [*own]
        assert all(each[key] is own[key] for key in own)


# Concurrency


def test_tasks_of_an_event_loop():
    layer = nn.Linear(4, 4, bias=False)

    async def work(i):
        await asyncio.sleep(0)
        return tl.functional_call(layer, {"weight": torch.eye(4) * i}, (X,))

    async def all_of_them():
        return await asyncio.gather(*map(work, range(5)))

    for i, output in enumerate(asyncio.run(all_of_them())):
        assert torch.equal(output, X * i)


def test_a_generator_goes_on_in_another_thread():
    class Yielding(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.tensor(2.0))

        def forward(self, x):
            while True:
                x = yield x * self.w

    net, seen = Yielding(), []
    with unchanged(net):
        steps = tl.functional_call(net, {"w": torch.tensor(5.0)}, (1,))
        assert next(steps) == 5
        thread = threading.Thread(target=lambda: seen.append(steps.send(3)))
        thread.start()
        thread.join()
        assert seen == [15]
        steps.close()


def test_each_thread_has_a_module_of_its_own():
    wrong = []

    def work(i):
        for _ in range(50):
            net = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh())
            tensors = {"0.weight": torch.eye(4) * i}
            by_sample = tl.vmap(partial(tl.functional_call, net, tensors))(X)
            if not torch.allclose(by_sample, (X * i).tanh()):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# x.data = y


TRANSFORMS = {
    "grad": lambda f: tl.grad(f),
    "jvp": lambda f: lambda x: tl.jvp(f, (x,), (x,)),
    "vmap": lambda f: lambda x: tl.vmap(f, randomness="same")(torch.stack([x, x])),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_memory_of_a_transforms_tensor_is_refused(transform):
    """torch.func's grad and jvp crash the process."""
    parameter, before = nn.Parameter(X[0]), X[0].clone()

    def give(x):
        parameter.data = 2 * x
        return parameter.sum()

    def take(x):
        x.data = torch.ones(4)
        return x.sum()

    for func in (give, take):
        with pytest.raises(RuntimeError, match=r"x\.data = y.*Call a module with other tensors"):
            TRANSFORMS[transform](func)(X[1])
        assert torch.equal(parameter, before)


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_memory_of_plain_tensors_may_be_exchanged(transform):
    parameter, other = nn.Parameter(torch.zeros(4)), torch.ones(4)

    def func(x):
        parameter.data = other
        return (parameter * x).sum()

    TRANSFORMS[transform](func)(X[1])
    assert torch.equal(parameter, other)


@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.parametrize("transform", ["grad", "jvp"])
def test_what_makes_parameters_comes_before_a_transform(transform):
    lazy, layer = nn.LazyLinear(2), nn.Linear(4, 4)

    def converted(x):
        return layer.double()(x.double()).sum()

    for func in (lambda x: tl.functional_call(lazy, {}, (x,)).sum(), converted):
        with pytest.raises(RuntimeError, match="before the transform"):
            TRANSFORMS[transform](func)(X[0])
    assert layer.weight.dtype == torch.float32
    lazy(X)
    TRANSFORMS[transform](lambda x: tl.functional_call(lazy, {}, (x,)).sum())(X[0])
