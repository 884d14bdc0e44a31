"""Children that a module calls itself, inside functional_call: as nn.Module.__call__ and
__getattr__ would have it, which C++ shortens. NOTE [Shorter calls of modules]."""

import sys
from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

import torchlayers as tl


class Child(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(2.0))
        self.register_buffer("shift", torch.tensor(1.0))
        self.inner = nn.Sequential(nn.Tanh(), nn.Identity())

    def forward(self, x, factor=1.0):
        return self.inner(x * self.weight) * factor + self.shift


class Parent(nn.Module):
    def __init__(self, child):
        super().__init__()
        self.child = child

    def forward(self, x):
        return self.child(x) + self.child(x, 2.0) + self.child(x, factor=3.0)


class ReplacedCall(Child):
    def __call__(self, *args, **kwargs):
        return 10 * super().__call__(*args, **kwargs)


class ReplacedImplementation(Child):
    def _call_impl(self, *args, **kwargs):
        return 10 * super()._call_impl(*args, **kwargs)


class ReplacedLookup(Child):
    def __getattr__(self, name):
        found = super().__getattr__(name)
        return 2 * found if name == "weight" else found


def with_own_forward():
    child = Child()
    child.forward = lambda x, factor=1.0: x - factor
    return child


def with_hook():
    child = Child()
    child.register_forward_hook(lambda module, args, output: 5 * output)
    return child


def with_hook_before():
    child = Child()
    child.inner.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    return child


def with_ordered_dict():
    child = Child()
    child._parameters = OrderedDict(child._parameters)
    return child


def compiled_by_hand():
    child = Child()
    child._compiled_call_impl = lambda *args, **kwargs: torch.tensor(4.0)
    return child


CHILDREN = [
    Child,
    ReplacedCall,
    ReplacedImplementation,
    ReplacedLookup,
    with_own_forward,
    with_hook,
    with_hook_before,
    with_ordered_dict,
    compiled_by_hand,
]
X = torch.tensor(0.5)


@pytest.mark.parametrize("make", CHILDREN, ids=lambda make: make.__name__)
def test_child_is_called_as_by_torch(make):
    module = Parent(make())
    given = {"child.weight": torch.tensor(3.0), "child.shift": torch.tensor(-1.0)}
    expected = torch.func.functional_call(module, given, (X,))
    assert torch.equal(tl.functional_call(module, given, (X,)), expected)
    assert torch.equal(tl.functional_call(module, {}, (X,)), module(X))


def test_hook_for_all_modules_sees_children():
    seen = []
    handle = register_module_forward_hook(lambda module, args, output: seen.append(type(module)))
    try:
        tl.functional_call(Parent(Child()), {}, (X,))
    finally:
        handle.remove()
    assert seen.count(Child) == 3
    assert seen.count(nn.Tanh) == 3


def test_hook_registered_during_the_call_runs():
    class Registering(Parent):
        def forward(self, x):
            before = self.child(x)
            handle = self.child.register_forward_hook(lambda module, args, output: 2 * output)
            after = self.child(x)
            handle.remove()
            return after == 2 * before

    assert tl.functional_call(Registering(Child()), {}, (X,))


def test_parameter_written_during_the_call_is_found():
    class Writing(Parent):
        def forward(self, x):
            self.child._parameters["weight"] = torch.tensor(0.0)
            self.child.shift = torch.tensor(6.0)
            return self.child(x)

    assert tl.functional_call(Writing(Child()), {"child.weight": X, "child.shift": X}, (X,)) == 6


def test_missing_attribute_raises_torchs_error():
    class Misspelt(Parent):
        def forward(self, x):
            return self.child.wieght * x

    with pytest.raises(AttributeError, match="'Child' object has no attribute 'wieght'"):
        tl.functional_call(Misspelt(Child()), {}, (X,))


def test_error_of_a_childs_forward_passes_through_and_restores_its_tensors():
    class Failing(Child):
        def forward(self, x, factor=1.0):
            raise ZeroDivisionError

    module = Parent(Failing())
    own = module.child.weight
    with pytest.raises(ZeroDivisionError):
        tl.functional_call(module, {"child.weight": X}, (X,))
    assert module.child.weight is own


def test_profiler_sees_the_calls_of_children():
    seen = []
    sys.setprofile(lambda frame, event, arg: seen.append(frame.f_code))
    try:
        tl.functional_call(Parent(Child()), {}, (X,))
    finally:
        sys.setprofile(None)
    assert nn.Module._wrapped_call_impl.__code__ in seen
    assert nn.Module.__getattr__.__code__ in seen


def test_recursion_without_end_raises():
    class Endless(nn.Module):
        def forward(self, x):
            return self(x)

    with pytest.raises(RecursionError):
        tl.functional_call(Endless(), {}, (X,))


def test_torchs_functions_are_what_they_were():
    assert nn.Module.__call__ is nn.Module._wrapped_call_impl
    assert nn.Module.__getattr__.__code__.co_filename == nn.modules.module.__file__
    assert nn.Module.__getattr__(Child(), "weight") == 2
