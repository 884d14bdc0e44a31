"""When the replacements in torch are put in and taken out."""

import contextlib
import copy
import os
import sys
import threading
import types
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

import torchlayers as tl
from tests.patches.snapshot import slots_of
from torchlayers.patches.code import replace_code

X = torch.ones(3)
TORCHS = {"code": torch.Tensor.__deepcopy__.__code__, "slots": slots_of(Tensor)}


def are_in() -> bool:
    code, slots = torch.Tensor.__deepcopy__.__code__, slots_of(Tensor)
    is_code = code is not TORCHS["code"]
    assert is_code == (slots != TORCHS["slots"])
    return is_code


def seen_in(transform: Callable[..., object]) -> list[bool]:
    seen: list[bool] = []

    def func(x: Tensor) -> Tensor:
        seen.append(are_in())
        return x.sum()

    transform(func)
    return seen


def test_they_are_in_inside_a_layer_and_out_after_it():
    assert not are_in()
    assert seen_in(lambda f: tl.grad(f)(X)) == [True]
    assert not are_in()


def test_they_are_out_after_the_outer_layer_of_two():
    def outer(x: Tensor) -> Tensor:
        tl.grad(torch.sin)(x[0])
        assert are_in()
        return x.sum()

    tl.grad(outer)(X)
    assert not are_in()


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, SystemExit])
def test_they_are_out_after_an_exception(error):
    def fails(x: Tensor) -> Tensor:
        raise error

    with pytest.raises(error):
        tl.vmap(tl.grad(fails))(X)
    assert not are_in()


def test_they_are_in_during_a_functional_call():
    class Module(nn.Module):
        def forward(self, x: Tensor) -> bool:
            return are_in()

    assert tl.functional_call(Module(), {}, (X,))
    assert not are_in()


def test_they_are_in_while_a_hook_runs_inside_the_layers_it_was_registered_in():
    seen = []
    x = torch.ones(3, requires_grad=True)

    def func(x: Tensor) -> Tensor:
        y = x * 2
        y.register_hook(lambda g: seen.append(are_in()))
        return y.sin()

    y = tl.vmap(func)(x).sum()
    assert not are_in()
    y.backward()
    assert seen == [True]
    assert not are_in()


@contextlib.contextmanager
def another_thread_in_a_layer() -> Iterator[None]:
    entered, may_leave = threading.Event(), threading.Event()

    def wait(x: Tensor) -> Tensor:
        entered.set()
        assert may_leave.wait(60)
        return x.sum()

    thread = threading.Thread(target=lambda: tl.grad(wait)(X))
    thread.start()
    assert entered.wait(60)
    try:
        yield
    finally:
        may_leave.set()
        thread.join()


def test_they_are_out_after_the_last_thread_has_left():
    with another_thread_in_a_layer():
        assert are_in()
        tl.grad(torch.sin)(X[0])
        assert are_in()
    assert not are_in()


def test_a_thread_without_a_layer_sees_torchs_behaviour():
    leaf = torch.ones(3, requires_grad=True)
    results: list[object] = []

    def outside() -> None:
        try:
            copy.deepcopy(leaf * 2)
        except RuntimeError as error:
            results.append(str(error).partition(" ")[0])
        results.append((leaf * 2)[torch.tensor(1)].item())
        results.append(torch.zeros(2).requires_grad_().requires_grad)

    def func(x: Tensor) -> Tensor:
        thread = threading.Thread(target=outside)
        thread.start()
        thread.join()
        return x.sum()

    tl.grad(func)(X)
    assert results == ["Only", 2.0, True]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_has_only_the_layers_of_its_thread():
    with another_thread_in_a_layer():
        child = os.fork()
        if child == 0:
            os._exit(are_in())
        status = os.waitpid(child, 0)[1]
    assert os.waitstatus_to_exitcode(status) == 0


def test_classes_created_and_freed_meanwhile_have_torchs_slots_afterwards():
    before = type("Before", (nn.Parameter,), {})
    created = []

    def func(x: Tensor) -> Tensor:
        created.append(type("Inside", (Tensor,), {}))
        created.append(type("Below", (created[0],), {}))
        return x.sum()

    tl.grad(func)(X)
    mapping = [slots_of(each)[-3:] for each in (Tensor, before, *created)]
    assert len({*mapping}) == 1
    created.clear()
    del before
    assert seen_in(lambda f: tl.grad(f)(X)) == [True]
    assert not are_in()


def test_another_librarys_replacement_stays():
    function = torch.Tensor.register_hook
    torchs, theirs = function.__code__, (lambda self, hook: "theirs").__code__
    function.__code__ = theirs
    try:
        assert tl.grad(lambda x: x.sum() * len(x.register_hook(print)))(X).tolist() == [6.0] * 3
        assert function.__code__ is theirs
    finally:
        function.__code__ = torchs


def double(x, *, by=2):
    return x * by


def test_code_is_replaced_by_name_for_everybody_who_has_the_function(monkeypatch):
    module = types.ModuleType("torch.for_a_test")
    module.double = types.FunctionType(double.__code__, globals(), "double")
    module.double.__kwdefaults__ = {"by": 2}
    monkeypatch.setitem(sys.modules, module.__name__, module)
    bound_before = module.double
    replace_code("torch.for_a_test.double", lambda torchs: lambda x, **by: -torchs(x, **by))
    assert bound_before(3) == 6
    seen = []
    tl.grad(lambda x: seen.append((bound_before(3), bound_before(3, by=5))) or x.sum())(X)
    assert seen == [(-6, -15)]
    assert bound_before(3) == 6


def test_a_function_that_torch_lacks_is_left_alone():
    replace_code("torch.no_such_function", pytest.fail)
