"""What a compiled function writes to Python is written at each call, or it runs uncompiled."""

import itertools
import random
import signal
import sys
import threading
import types
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch._C import _len_torch_function_stack
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import torchlayers as tl

X = torch.ones(3)


def replayed(f):
    return tl.compile(f, backend="replay")


class Counter:
    def __init__(self):
        self.count = 0
        self.last = None
        self.log = []
        self.table = {}
        self.cache = None


def counts(counter):
    def f(x):
        counter.count += 1
        return x * counter.count

    return f


def appends(counter):
    def f(x):
        counter.log.append(len(counter.log))
        return x * len(counter.log)

    return f


def only_appends(counter):
    def f(x):
        counter.log.append("called")
        return x * 2

    return f


def sets_an_item(counter):
    def f(x):
        counter.table[len(counter.table)] = "called"
        return x * 2

    return f


def counts_in_a_function_inside(counter):
    return tl.vmap(lambda x: counts(counter)(x))


INNER = """
def f(x):
    def inner(y):
        counter.count += 1
        return y * counter.count

    return tl.vmap(inner)(x)
"""


def counts_in_a_function_of_a_file(counter):
    """Changes a global that only an inner function refers to."""
    names = {"tl": tl, "counter": counter}
    exec(INNER, names)
    return names["f"]


def counts_far_away(counter):
    f = counts(counter)
    for _ in range(20):
        f = calling(f)
    return f


def calling(f):
    return lambda x: f(x)


def counts_around(counter):
    count = 0

    def f(x):
        nonlocal count
        count += 1
        counter.seen = count
        return x * count

    return f


def draws_of_numpy(counter):
    return lambda x: x * float(np.random.rand())


def reads_an_iterator(counter):
    numbers = itertools.count(1)
    return lambda x: x * next(numbers)


def reads_a_list_in_pairs(counter):
    numbers = [*map(float, range(20))]
    pairs = enumerate(zip(numbers, itertools.repeat(2.0), strict=False))
    return lambda x: x * sum(next(pairs)[1])


def reads_a_generator(counter):
    squares = (i * i for i in itertools.count(1))
    return lambda x: x * next(squares)


def draws_of_numpys_generator(counter):
    rng = np.random.default_rng(0)
    return lambda x: x * float(rng.random())


def writes_to_an_array(counter):
    steps = np.zeros(2)

    def f(x):
        steps[0] += 1
        return x * float(steps[0])

    return f


NUMBERED = """
made = 0

class Node:
    def __init__(self):
        global made
        made += 1
        self.number = made

def f(x):
    return x * Node().number
"""


def numbers_what_it_makes(counter):
    names = {"__name__": "nodes"}
    exec(NUMBERED, names)
    return names["f"]


def uses_its_count(counter):
    def f(x):
        counter.count += 1
        table["total"] += counter.count * 0.5
        weight = 1 - 0.9**counter.count
        x = x**counter.count / weight + torch.add(x, counter.count, alpha=2) * table["total"]
        return x.lerp(x.sin(), weight) if x.is_floating_point() else x

    table = {"total": 0.5}
    counter.table = table
    return f


def counts_in_a_gradient(counter):
    def f(x):
        counter.count += 1
        return (x**3).sum() * counter.count

    return tl.vmap(tl.grad(f))


def compares_its_count(counter):
    def f(x):
        counter.count += 1
        counter.last = min(counter.last or 9, 5 - counter.count)
        return x * (2 if counter.count % 3 == 0 else 3) if counter.count else x

    return f


def swaps(counter):
    counter.first, counter.second = 1, 2

    def f(x):
        counter.first, counter.second = counter.second, counter.first + counter.second
        return x * counter.first

    return f


def numbers_its_objects(counter):
    def f(x):
        counter.count += 1
        counter.made = types.SimpleNamespace(number=counter.count, log=[counter.count, "x"])
        return x

    return f


def returns_its_count(counter):
    def f(x):
        counter.count += 1
        return {"result": x * counter.count, "count": counter.count, "half": counter.count / 2}

    return f


# With the number of captures.
COMPILED = {
    returns_its_count: 1,
    counts: 1,
    counts_in_a_function_inside: 1,
    counts_in_a_function_of_a_file: 1,
    counts_far_away: 1,
    counts_around: 1,
    only_appends: 1,
    uses_its_count: 1,
    counts_in_a_gradient: 1,
    compares_its_count: 3,
    swaps: 1,
    numbers_its_objects: 1,
    reads_an_iterator: 1,
    reads_a_generator: 1,
}


def makes_a_range(counter):
    def f(x):
        counter.count += 1
        return sum(x for _ in range(counter.count))

    return f


CHANGES = {
    makes_a_range: "count",
    appends: "log",
    sets_an_item: "table",
    draws_of_numpy: "NumPy's random numbers",
    reads_a_list_in_pairs: "pairs",
    draws_of_numpys_generator: "rng",
    writes_to_an_array: "steps",
}


def told(counter):
    return {name: value for name, value in vars(counter).items()}


@pytest.fixture
def random_state_restored():
    """Leaves the random numbers of Python and NumPy as they were."""
    states = random.getstate(), np.random.get_state()
    yield
    random.setstate(states[0]), np.random.set_state(states[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
@pytest.mark.parametrize("make", [*COMPILED, numbers_what_it_makes])
def test_numbers_are_computed_again_at_each_call(make, dtype):
    ours, theirs = Counter(), Counter()
    f, g = replayed(make(ours)), make(theirs)
    x = torch.arange(1, 4).to(dtype)
    if make is counts_in_a_gradient and dtype == torch.int64:
        pytest.skip("integers have no gradients")
    for _ in range(5):
        torch.testing.assert_close(f(x), g(x))
        assert repr(told(ours)) == repr(told(theirs))
    assert f.report().as_it_is == ""
    if make in COMPILED:
        assert len(f.report().signatures) == COMPILED[make]


def test_number_set_outside_is_read():
    counter = Counter()
    f = replayed(counts(counter))
    f(X)
    counter.count = 7
    assert f(X).tolist() == [8, 8, 8]
    counter.count = 0.5
    assert f(X).tolist() == [1.5, 1.5, 1.5]
    assert [entry.calls for entry in f.report().signatures] == [2, 1]


@pytest.mark.usefixtures("random_state_restored")
@pytest.mark.parametrize("make", CHANGES)
def test_function_that_changes_state_differently_at_each_call_runs_uncompiled(make):
    ours, theirs = Counter(), Counter()
    f, g = replayed(make(ours)), make(theirs)
    results = []
    for run in (f, g):
        random.seed(0), np.random.seed(0)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            results.append([run(X).tolist() for _ in range(10)])
        caught = [each for each in caught if "torchlayers" in str(each.message)]
        said = [str(each.message) for each in caught]
        assert [each.filename for each in caught] == ([__file__] if run is f else [])
        assert all(CHANGES[make] in each and "runs uncompiled" in each for each in said)
    assert results[0] == results[1]
    assert told(ours) == told(theirs)
    assert CHANGES[make] in f.report().as_it_is


def test_assignment_of_a_number_is_repeated_at_each_call():
    counter = Counter()

    def f(x):
        counter.last = 3
        return x * 2

    f = replayed(f)
    for _ in range(3):
        counter.last = None
        f(X)
        assert counter.last == 3
    assert [entry.calls for entry in f.report().signatures] == [3]


def test_function_with_a_cache_is_captured_twice():
    counter = Counter()

    def f(x):
        if counter.cache is None:
            counter.cache = [2.0]
        return x * counter.cache[0]

    f = replayed(f)
    for _ in range(4):
        assert torch.equal(f(X), X * 2)
    assert [entry.calls for entry in f.report().signatures] == [1, 3]
    counter.cache = None
    assert torch.equal(f(X), X * 2)
    assert counter.cache == [2.0]


def test_training_mode_set_inside_is_set_at_each_call():
    net = nn.Dropout(0.5)

    def f(x):
        return net.eval()(x)

    f = replayed(f)
    f(X), f(X)
    assert not net.training
    net.train()
    assert torch.equal(f(X), X)
    assert not net.training


def mixes_dtypes(x):
    return nn.functional.linear(x, torch.ones(3, 3))  # fake tensors accept x of another dtype


@pytest.mark.parametrize("backend", ["replay", "inductor"])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_error_of_a_kernel_comes_after_changes(backend, requires_grad):
    counter = Counter()
    weight = torch.ones(3)

    def f(x):
        counter.count += 1
        counter.last = "called"
        counter.log.append(counter.count)
        counter.cache = object()
        weight.requires_grad_()
        return mixes_dtypes(x) * weight

    x = X.double().requires_grad_(requires_grad)
    with pytest.raises(RuntimeError, match="same dtype"):
        tl.compile(f, backend=backend, wait=True)(x)
    assert (counter.count, counter.last, counter.log) == (1, "called", [1])
    assert weight.requires_grad
    assert tl.compile(f, backend=backend, wait=True)(X).tolist() == [3, 3, 3]
    assert (counter.count, counter.last, counter.log) == (2, "called", [1, 2])


def test_warning_that_is_an_error_undoes_changes():
    counter = Counter()
    f = replayed(makes_a_range(counter))
    for _ in range(7):
        f(X)
    with pytest.raises(UserWarning, match=r"changes counter\.count at each call"):
        f(X)
    assert counter.count == 7
    assert f(X).tolist() == [8, 8, 8]


def test_error_of_a_later_call_needs_no_other_capture():
    counter = Counter()

    def f(x, index):
        counter.last = "called"
        return x[index].sin()

    f = replayed(f)
    f(X, torch.tensor([0]))
    counter.last = None
    with pytest.raises(IndexError):
        f(X, torch.tensor([5]))
    assert counter.last == "called"
    f(X, torch.tensor([2]))
    assert len(f.report().signatures) == 1


def test_interrupt_undoes_changes():
    counter, weight = Counter(), nn.Parameter(torch.ones(3))
    times, profiled = itertools.count(), []

    def f(x):
        counter.count += 1
        counter.log.append(1)
        weight.requires_grad_(False)
        if next(times) == 0:
            signal.raise_signal(signal.SIGINT)
        result = x * weight
        weight.requires_grad_(True)
        return result

    def profile(frame, event, arg):
        profiled.append(event)

    compiled = replayed(f)
    sys.setprofile(profile)
    try:
        with pytest.raises(KeyboardInterrupt):
            compiled(X)
        assert sys.getprofile() is profile and profiled
    finally:
        sys.setprofile(None)
    assert told(counter) == told(Counter()) and weight.requires_grad
    assert tl.current_stack() == () and not _get_current_dispatch_mode_stack()
    assert _len_torch_function_stack() == 0
    results = []
    thread = threading.Thread(target=lambda: results.append(compiled(X)), daemon=True)
    thread.start()  # captures as soon as the lock is free
    thread.join(60)
    torch.testing.assert_close(results, [X])
    assert (counter.count, counter.log) == (1, [1])


INTERRUPTED = """
def dispatch(*args, **kwargs):
    if len(lines_run) == 1 and next(times) == 0:  # in the function
        raise_signal(SIGINT)
    result = run(*args, **kwargs)
    ended.append(1)
    return result
"""


def test_interrupt_inside_torch_is_raised_at_the_functions_next_line(monkeypatch):
    """Interrupted midway, torch's code would not restore the modes that it has popped."""
    counter, ended, lines_run = Counter(), [], []
    lines = map(lines_run.append, itertools.count())  # hidden from the capture

    def f(x):
        counter.count += 1
        next(lines)
        y = x.sin()
        next(lines)
        return y

    names = {**vars(signal), "run": FakeTensorMode.dispatch, "ended": ended}
    names |= {"lines_run": lines_run, "times": itertools.count()}
    exec(compile(INTERRUPTED, FakeTensorMode.dispatch.__code__.co_filename, "exec"), names)
    monkeypatch.setattr(FakeTensorMode, "dispatch", names["dispatch"])
    compiled = replayed(f)
    with pytest.raises(KeyboardInterrupt) as caught:
        compiled(X)
    assert lines_run == [0]
    assert len(ended) > 0
    assert f.__code__ in [each.frame.code.raw for each in caught.traceback]
    assert told(counter) == told(Counter())
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert sys.gettrace() is None and not _get_current_dispatch_mode_stack()
    torch.testing.assert_close(compiled(X), X.sin())


def test_argument_is_changed_at_each_call():
    def f(x, counter):
        counter.count += 1
        return x * counter.count

    ours, theirs = Counter(), Counter()
    compiled = replayed(f)
    results = [compiled(X, ours).tolist() for _ in range(3)]
    assert results == [f(X, theirs).tolist() for _ in range(3)]
    assert told(ours) == told(theirs)


def test_assignment_of_the_same_value_is_repeated():
    counter = Counter()

    def f(x):
        counter.last = "called"
        return x * 2

    counter.last = "called"
    compiled = replayed(f)
    for before in ("called", "called", None, None, "called", 1):
        counter.last = before
        compiled(X)
        assert counter.last == "called"
    assert [each.calls for each in compiled.report().signatures] == [2, 4]


def test_lower_undoes_changes():
    counter = Counter()
    replayed(counts(counter)).lower(X)
    assert counter.count == 0


def test_uncompiled_function_changes_state_once_per_call():
    counter = Counter()
    w = torch.ones(3, requires_grad=True)

    def f(x):
        counter.last = "called"
        y = torch.vander(x * w, 4)
        return y

    f = replayed(f)
    with pytest.warns(UserWarning, match="f runs uncompiled when autograd is enabled: its reverse"):
        f(X)
    f(X)
    assert counter.last == "called"


def test_second_derivative_does_not_repeat_changes():
    counter = Counter()

    def f(x):
        counter.log = [1]
        return (x**3).sum()

    x = X.clone().requires_grad_()
    compiled = replayed(f)
    result = compiled(x)
    counter.log = [2]
    (slope,) = torch.autograd.grad(result, x, create_graph=True)
    torch.testing.assert_close(torch.autograd.grad(slope.sum(), x)[0], 6 * X)
    assert counter.log == [2]
