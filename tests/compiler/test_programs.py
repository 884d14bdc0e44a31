"""Programs as people write them, compiled: in each nest, results and state are those of eager."""

import contextlib
import copy
import enum
import gc
import threading
import types
import warnings
import weakref

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import torchlayers as tl
from tests.compiler.programs.arrays import ARRAYS
from tests.compiler.programs.drawing import DRAWING
from tests.compiler.programs.reading import READING
from tests.compiler.programs.storing import STORING
from tests.compiler.programs.training import TRAINING
from tests.compiler.programs.writing import WRITING
from torchlayers.errors import EscapedTensorError, TransformError

CALLS = [
    torch.tensor(values, dtype=torch.float64)
    for values in (
        [1.0, -2.0, 0.5],
        [0.5, 1.5, 2.5],
        [-1.0, 0.25, -3.0],
        [-0.1, 0.2, -0.3],
        [3.0, -1.0, 1.5],
    )
]

PROGRAMS = READING + WRITING + STORING + DRAWING + ARRAYS


def total(f):
    def scalar(x):
        return sum(leaf.sum() for leaf in tl.tree.leaves(f(x)) if isinstance(leaf, Tensor))

    return scalar


class Scaled(nn.Module):
    def __init__(self, f):
        super().__init__()
        self.f = f
        self.scale = nn.Parameter(torch.ones(3, dtype=torch.float64))

    def forward(self, x):
        return self.f(x * self.scale)


def called_functionally(f):
    net = Scaled(f)

    def loss(scale, x):
        return total(lambda x: torch.func.functional_call(net, {"scale": scale}, (x,)))(x)

    return lambda x: tl.grad(loss)(x.cos(), x)


def differentiated_by_autograd(f):
    def slope(x):
        x = x.clone().requires_grad_()
        y = total(f)(x)
        return torch.autograd.grad(y, x)[0] if y.requires_grad else y

    return slope


# Each takes the program's function, and what compiles.
NESTS = {
    "plain": lambda f, compile: compile(f),
    "autograd": lambda f, compile: differentiated_by_autograd(compile(f)),
    "grad": lambda f, compile: compile(tl.grad(total(f))),
    "grad(compile)": lambda f, compile: tl.grad(total(compile(f))),
    "vmap(grad)": lambda f, compile: compile(
        lambda x: tl.vmap(lambda scale: tl.grad(total(f))(x) * scale)(x)
    ),
    "vmap": lambda f, compile: compile(lambda x: tl.vmap(f)(torch.stack([x, -x]))),
    "hessian": lambda f, compile: compile(tl.hessian(total(f))),
    "jvp": lambda f, compile: compile(lambda x: tl.jvp(total(f), (x,), (x.cos(),))),
    "jacrev": lambda f, compile: compile(tl.jacrev(total(f))),
    "functional_call": lambda f, compile: compile(called_functionally(f)),
}
# Captured often, or uncompiled in the end, after a warning: see docs/compile.md.
WARNED = {"text_log", "replay_buffer", "nested_functions_with_state"}
WARNED |= {"array_read", "bytearray_state", "array_state", "context_variable"}
WARNED |= {"plateau_step", "scaled_step", "lbfgs_step"}


def compiled(f):
    return tl.compile(f, backend="replay")


def snapshot(state):
    """A copy of Python state, as plain containers."""
    if isinstance(state, types.FunctionType | types.MethodType):
        return snapshot(state())
    if isinstance(state, enum.Enum):
        return state
    if isinstance(state, nn.Module):
        attributes = {k: v for k, v in vars(state).items() if not k.startswith("_")}
        return snapshot([dict(state.state_dict()), attributes])
    if isinstance(state, Tensor):
        return "escaped" if has_escaped(state) else state.detach().clone()
    if isinstance(state, dict):
        return [(snapshot(key), snapshot(value)) for key, value in state.items()]
    if hasattr(state, "_asdict") or isinstance(state, list | tuple) or hasattr(state, "maxlen"):
        return type(state).__name__, [snapshot(value) for value in state]
    if hasattr(state, "__dict__") and not isinstance(state, type):
        return type(state).__name__, snapshot(vars(state))
    return copy.deepcopy(state)


def has_escaped(tensor):
    """Whether a tensor was stored in a vmap that has ended."""
    try:
        tensor.sum()
    except EscapedTensorError:
        return True
    return False


def outcome(f, x):
    try:
        return f(x)
    except TransformError:
        return TransformError, ""
    except Exception as error:
        return type(error), str(error)[:40]


def is_error(result):
    return isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], type)


def check(ours, expected):
    assert type(ours) is type(expected), (ours, expected)
    if isinstance(expected, Tensor):
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9, equal_nan=True)
        assert ours.requires_grad == expected.requires_grad
    elif isinstance(expected, list | tuple):
        for pair in zip(ours, expected, strict=True):
            check(*pair)
    elif isinstance(expected, dict):
        check([*ours.items()], [*expected.items()])
    elif isinstance(expected, np.ndarray):
        np.testing.assert_allclose(ours, expected)
    elif isinstance(expected, float):
        assert ours == pytest.approx(expected, nan_ok=True)
    else:
        assert ours == expected


def check_calls(program, nest, calls):
    """Compares calls of the compiled program, and the state after each, with eager ones."""
    torch.manual_seed(0)
    f, state = program()
    eager = NESTS[nest](f, lambda f: f)
    expected = [(outcome(eager, x), snapshot(state)) for x in calls]
    torch.manual_seed(0)
    f, state = program()
    call = NESTS[nest](f, compiled)
    for x, (result, state_after) in zip(calls, expected, strict=True):
        check(outcome(call, x), result)
        if not is_error(result):  # for those, test_exceptions.py compares the state
            check(snapshot(state), state_after)


@contextlib.contextmanager
def warnings_ignored():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def no_warnings(program):
    """Inside, warnings are errors, unless this program is one that is warned of."""
    with warnings_ignored():
        if program.__name__ not in WARNED:
            warnings.filterwarnings("error", "torchlayers")
        yield


@pytest.mark.sweep
@pytest.mark.parametrize("nest", NESTS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each.__name__)
def test_nests(program, nest):
    # What stores a tensor inside vmap runs uncompiled.
    with warnings_ignored() if nest == "vmap" else no_warnings(program):
        check_calls(program, nest, CALLS)


@pytest.mark.sweep
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each.__name__)
def test_many_calls(program):
    generator = torch.Generator().manual_seed(5)
    calls = [torch.randn(3, dtype=torch.float64, generator=generator) * 2 for _ in range(24)]
    with warnings_ignored():
        check_calls(program, "plain", calls)


@pytest.mark.parametrize("program", TRAINING, ids=lambda each: each.__name__)
def test_training_steps(program):
    with no_warnings(program):
        check_calls(program, "plain", [*CALLS, CALLS[0] * torch.inf, *CALLS])


@pytest.mark.sweep
@pytest.mark.parametrize("program", READING, ids=lambda each: each.__name__)
def test_two_threads(program):
    f, _ = program()
    call, wrong = compiled(f), []
    expected = [outcome(f, x) for x in CALLS]

    def work(start):
        try:
            for i in range(start, start + 10):
                check(outcome(call, CALLS[i % 5]), expected[i % 5])
        except AssertionError as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(start,)) for start in (0, 3)]
    with warnings_ignored():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


class Resource:
    """What a program's function holds on to, to see whether it goes."""


@pytest.mark.sweep
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each.__name__)
def test_a_dropped_function_leaves_nothing_behind(program):
    def dropped():
        f, _ = program()
        resource = Resource()

        def g(x, resource=resource):
            return f(x)

        call = compiled(g)
        for x in CALLS:
            outcome(call, x)
        return weakref.ref(resource)

    with warnings_ignored():
        resource = dropped()
    gc.collect()
    assert resource() is None
