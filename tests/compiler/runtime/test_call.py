"""Calls of compiled functions: those that C++ handles, and those that fall back to Python."""

import collections
import gc
import signal
import subprocess
import sys
import threading
import warnings
import weakref

import pytest
import torch
from torch.utils import _pytree as pytree

import torchlayers as tl
from tests.support.calls import STRUCTURES

X = torch.tensor([0.5, 1.0, 2.0])
Y = torch.tensor([1.0, -1.0, 0.3])
Point = collections.namedtuple("Point", "x y")

# Containers that only torch.utils._pytree can flatten.
IN_PYTHON = {"ordered dict", "dataclass"}


def compiled(f, **options):
    return tl.compile(f, backend="replay", **options)


def come_to_python(function, *calls):
    """Returns how many calls fall back to Python, after one warm-up run of the first call."""
    calls[0](function)
    come, otherwise = [], function._otherwise
    function._otherwise = lambda *args, **kwargs: come.append(1) or otherwise(*args, **kwargs)
    for call in calls:
        call(function)
    return len(come)


@pytest.mark.parametrize("name", STRUCTURES)
def test_arguments_and_results_are_flattened(name):
    pack = STRUCTURES[name]

    def f(tree):
        x, y = pytree.tree_leaves(tree)[:2]
        return pack(x + y, pack(x, y * 2))

    function = compiled(f)
    come = come_to_python(function, *[lambda g, i=i: g(pack(X + i, Y)) for i in range(3)])
    assert come == (3 if name in IN_PYTHON else 0)
    result, expected = function(pack(X, Y)), f(pack(X, Y))
    assert pytree.tree_structure(result) == pytree.tree_structure(expected)
    torch.testing.assert_close(pytree.tree_leaves(result), pytree.tree_leaves(expected))


def test_torch_return_types_are_flattened():
    function = compiled(lambda found: torch.sort(found.values * 2))
    given = X.max(0, keepdim=True)
    assert come_to_python(function, lambda g: g(given), lambda g: g(given)) == 0
    result = function(given)
    assert type(result) is torch.return_types.sort
    torch.testing.assert_close(result.values, given.values * 2)


def test_named_tuple_subclass_is_built_by_its_own_new():
    class Sorted(Point):
        def __new__(cls, x, y):
            made.append(cls)
            return super().__new__(cls, x, y)

    made = []
    function = compiled(lambda p: Sorted(p.x + 1, p.y), guards=False)  # __new__ appends to a list
    function(Sorted(X, Y))
    made.clear()
    assert type(function(Sorted(X, Y))) is Sorted
    assert made == [Sorted, Sorted]


def test_keywords_numbers_and_static_arguments_are_compared_in_cpp():
    function = compiled(lambda x, n, kind, *, scale: x * n * scale, static_argnums=2)
    call = lambda g: g(X, 2, (1, 2), scale=1.5)  # noqa: E731
    assert come_to_python(function, call, call) == 0
    torch.testing.assert_close(function(X, 2, (1, 2), scale=1.5), X * 3)
    torch.testing.assert_close(function(X, 2.0, (1, 2), scale=-1.5), X * -3)
    assert len(function.report().signatures) == 2


DIFFER = {
    "a shape": (X, X[:2]),
    "strides": (torch.ones(2, 2), torch.ones(2, 2).t()[:, :1].expand(2, 2)),
    "a dtype": (X, X.double()),
    "requires_grad": (X, X.clone().requires_grad_()),
    "a class": (X, 1),
    "True and 1": (True, 1),
    "0.0 and -0.0": (0.0, -0.0),
    "a key": ({"x": X}, {"y": X}),
    "the keys' order": ({"x": X, "y": Y}, {"y": Y, "x": X}),
    "a list and a tuple": ([X], (X,)),
    "a tuple and a named one": ((X, Y), Point(X, Y)),
    "a length": ([X], [X, X]),
}


@pytest.mark.parametrize("pair", DIFFER.values(), ids=DIFFER)
def test_different_arguments_are_different_signatures(pair):
    def f(tree):
        return [leaf * 2 for leaf in pytree.tree_leaves(tree)]

    function = compiled(f)
    for _ in range(3):
        for given in pair:
            torch.testing.assert_close(function(given), f(given))
    assert len(function.report().signatures) == 2


def test_inference_mode_is_a_separate_signature():
    function = compiled(lambda x: x.sin())
    with torch.inference_mode():
        assert come_to_python(function, lambda g: g(X), lambda g: g(X)) == 0
        assert function(X).is_inference()
    assert not function(X).is_inference()
    assert len(function.report().signatures) == 2


def test_nan_arguments_compare_equal():
    function = compiled(lambda x, n: x * n)
    call = lambda g: g(X, float("nan"))  # noqa: E731
    assert come_to_python(function, call, call) == 0


def test_exception_in_an_arguments_eq_is_raised():
    class Odd:
        def __hash__(self):
            return 1

        def __eq__(self, other):
            raise ZeroDivisionError

    function = compiled(lambda x, odd: x * 2)
    function(X, Odd())
    with pytest.raises(ZeroDivisionError):
        function(X, Odd())


def test_forward_ad_is_left_to_python():
    function = compiled(torch.sin)
    function(X)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(X, Y)
        tangent = torch.autograd.forward_ad.unpack_dual(function(dual)).tangent
    torch.testing.assert_close(tangent, X.cos() * Y)


def test_many_threads_call_at_once():
    function = compiled(lambda x, y: {"sum": x + y, "parts": (x, y * 2)})
    errors, start = [], threading.Barrier(16)

    def work(n):
        start.wait()
        try:
            for i in range(30):
                x = X + n + i
                result = function(x, Y)
                torch.testing.assert_close(result["sum"], x + Y)
                assert result["parts"][0] is x
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert [entry.calls for entry in function.report().signatures] == [16 * 30]


def test_jvp_on_one_thread_does_not_affect_others():
    runs = []
    # The dict is flattened in Python; guards=False, since the function appends to a list.
    function = compiled(lambda tree: runs.append(1) or tree["x"] * 2, guards=False)

    def call():
        for _ in range(3):
            function(collections.OrderedDict(x=X))

    def meanwhile(x):
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        return x * 2

    tl.jvp(meanwhile, (X,), (X,))
    assert len(runs) == 1 and [entry.calls for entry in function.report().signatures] == [3]


def test_a_compiled_function_is_collected():
    def make():
        held = torch.ones(3)

        def f(x):
            return x * held if callable(function) else x

        function = compiled(f)
        function(X)
        function(X)
        return weakref.ref(function)

    reference = make()
    gc.collect()
    assert reference() is None


@pytest.mark.sweep
def test_ctrl_c_interrupts_a_call():
    def f(x):
        for _ in range(3000):
            x = x @ x
        return x

    function, x = compiled(f), torch.zeros(512, 512)
    small = torch.zeros(2, 2)
    function(small)
    threading.Timer(0.5, signal.raise_signal, (signal.SIGINT,)).start()
    with pytest.raises(KeyboardInterrupt):
        function(x)
    torch.testing.assert_close(function(small), small)


INTERRUPTED = """
import signal, threading, torch, torchlayers as tl
compiled = tl.compile(tl.grad(lambda x: (x.sin() * 2).sum()))
begun = threading.Event()
import builtins
import_module, main = builtins.__import__, threading.main_thread()
def noticed(name, *rest):
    if name.startswith("sympy"):
        begun.set()
    return import_module(name, *rest)
builtins.__import__ = noticed
threading.Thread(target=lambda: begun.wait() and signal.raise_signal(signal.SIGINT)).start()
try:
    compiled(torch.ones(3))
except KeyboardInterrupt:
    print("interrupted")
builtins.__import__ = import_module
torch.testing.assert_close(compiled(torch.ones(3)), 2 * torch.ones(3).cos())
print(compiled.report().signatures[0].how)
"""


@pytest.mark.full
def test_ctrl_c_while_torch_modules_are_imported():
    run = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True)
    assert run.stdout.split() == ["interrupted", "inductor"], run.stderr


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("most,limit", [(8000, 16), (4, 2)])
def test_captures_that_no_second_call_can_use_come_to_an_end(reads, most, limit, monkeypatch):
    monkeypatch.setattr("torchlayers.compiler.compiled_function._UNUSED_OPERATORS", most)
    runs, state = [], {"mode": ""}

    def f(x):
        runs.append(None)
        return x.sin().cos() * len(state["mode"]) * (2 if reads and x.sum() > 0 else 1)

    compiled = tl.compile(f, backend="replay")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for i in range(limit + 3):
            state["mode"] = "a" * i
            torch.testing.assert_close(compiled(X), X.sin().cos() * i * (1 + reads))
    messages = [str(warning.message) for warning in caught]
    assert sum("no capture served a second" in message for message in messages) == 1
    assert len(compiled.report().signatures) == limit


@pytest.mark.filterwarnings("ignore:.*was captured 8 times")
def test_a_capture_that_serves_again_lets_others_follow():
    state = {"mode": ""}
    compiled = tl.compile(lambda x: x * len(state["mode"]), backend="replay")
    for i in range(20):
        state["mode"] = "a" * i
        for _ in range(2 if i % 5 == 0 else 1):
            assert compiled(torch.ones(())) == i
    assert all("uncompiled" not in line for line in str(compiled.report()).splitlines())
