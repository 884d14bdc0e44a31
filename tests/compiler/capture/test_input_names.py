"""Arguments, keys and fields of any name."""

import collections
import functools

import pytest
import torch
from torch import nn

import torchlayers as tl
from torchlayers.core import pytree

Pair = collections.namedtuple("Pair", ["Left", "left"])


def total(*args, **kwargs):
    """Returns a sum of squares over all tensors, each weighted by another factor."""
    leaves = pytree.leaves((args, kwargs))
    return sum((i + 1) * (leaf * leaf).sum() for i, leaf in enumerate(leaves))


def numbers(start=1.0):
    return torch.tensor([start, 2.0], dtype=torch.float64, requires_grad=True)


KEYWORDS = [
    *("X", "Weight", "aB", "W_q", "_x", "x_", "__x", "__x__", "_", "self", "args", "cls"),
    *("class", "lambda", "None", "int", "double", "register", "template", "and", "print", "len"),
    *("sum", "input", "type", "torch", "device", "inf", "nan", "primals_1", "tangents_1", "output"),
    *("getitem", "placeholder", "root", "λ", "ñ", "ª", "变量", "x1", "x_1", "captured_0", "arg_0"),
]
NAMES = {
    **{name: ((), {name: numbers()}) for name in KEYWORDS},
    "every one": ((), {name: numbers(i) for i, name in enumerate(KEYWORDS)}),
    "keys": (({name: numbers(i) for i, name in enumerate(KEYWORDS)},), {}),
    "capital and small": ((), {"A": numbers(), "a": numbers(2.0)}),
    "a path and a name": ((), {"x": {"y": numbers(2.0)}, "x_y": numbers()}),
    "dots and spaces": (({"a.b": numbers(), "a b": numbers(2.0), "a_b": numbers(3.0)},), {}),
    "quotes, lines and nothing": (({"a'b\"": numbers(), "a\nb": numbers(2.0), "": numbers()},), {}),
    "integers": (({0: numbers(), 1: numbers(2.0), -1: numbers(3.0)},), {}),
    "fields": ((Pair(numbers(), [numbers(2.0), {"Left": numbers(3.0)}]),), {}),
}


def gradients(f, args, kwargs, order=2):
    leaves = pytree.leaves((args, kwargs))
    found = [f(*args, **kwargs)]
    for _ in range(order):
        first = torch.autograd.grad(found[-1], leaves, create_graph=True)
        found += [*first, sum((g * g).sum() for g in first)]
    return found


@pytest.mark.sweep(one_in=16)
@pytest.mark.parametrize("name", NAMES)
def test_arguments_of_any_name_are_differentiated(name):
    args, kwargs = NAMES[name]
    found = gradients(tl.compile(total, backend="replay"), args, kwargs)
    torch.testing.assert_close(found, gradients(total, args, kwargs))


@pytest.mark.full
@pytest.mark.parametrize("name", ["every one", "dots and spaces"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_inductor_compiles_arguments_of_any_name(name, dynamic):
    args, kwargs = NAMES[name]
    compiled = tl.compile(total, dynamic=dynamic)
    torch.testing.assert_close(
        gradients(compiled, args, kwargs, 1), gradients(total, args, kwargs, 1)
    )
    for size in (3, 4, 5) if dynamic else ():
        args, kwargs = pytree.map_tensors(lambda x: torch.ones(size).double(), (args, kwargs))  # noqa: B023
        torch.testing.assert_close(compiled(*args, **kwargs), total(*args, **kwargs))


@pytest.mark.parametrize(
    "func",
    [
        lambda X, x: X * x,
        lambda A, a, _a, a_: A * a + _a - a_,
        lambda self, cls, λ, int: self * cls + λ - int,
        lambda primals_2, tangents_1, primals_1: primals_2 * tangents_1 - primals_1,
        lambda X, *ARGS, **KW: X * ARGS[0] - ARGS[-1],
    ],
)
def test_arguments_by_position(func):
    count = min(func.__code__.co_argcount, 4) if func.__code__.co_argcount > 1 else 3
    args = [numbers(float(i)) for i in range(count)]
    expected = gradients(lambda *args: func(*args).sum(), args, {}, 1)
    compiled = tl.compile(functools.wraps(func)(lambda *args: func(*args).sum()), backend="replay")
    torch.testing.assert_close(gradients(compiled, args, {}, 1), expected)
    graph = tl.make_graph(func)(*args)
    torch.testing.assert_close(graph(*args), [func(*args)])


def test_graph_inputs_keep_valid_names():
    graph = tl.make_graph(total)(X=numbers(), aB={"C": numbers(), "λ": numbers(), 3: numbers()})
    inputs = [node.name for node in graph.graph.find_nodes(op="placeholder")]
    assert inputs == ["X", "aB_C", "aB", "aB_3"]
    graph.print_readable(print_output=False)
    graph.recompile()


def test_module_parameters_of_any_name():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            for name in ("W", "w", "λ", "Class_", "weight_1"):
                setattr(self, name, nn.Parameter(torch.randn(3)))
            self.register_buffer("Running", torch.ones(3))
            self.Lists = nn.ParameterDict({"A": torch.ones(3), "a b": torch.ones(3)})

        def forward(self, X):
            self.Running.mul_(0.5)
            return X * self.W + self.w * self.λ * self.Class_ * self.weight_1 * self.Lists["a b"]

    net = Net()
    X = torch.randn(3, requires_grad=True)
    inputs = [X, *net.parameters()]
    found = []
    for f in (tl.compile(net, backend="replay"), net):
        net.Running.fill_(1)
        found.append(
            torch.autograd.grad(f(X).sum(), inputs, allow_unused=True, materialize_grads=True)
        )
    torch.testing.assert_close(*found)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
def test_package_keeps_the_names(tmp_path):
    given = {
        "Class": torch.ones(2),
        "λ": torch.ones(2),
        "a b": torch.ones(2),
        "class": torch.ones(2),
    }
    path = tmp_path / "Names.pt2"
    tl.compile(total).lower(given, X=torch.ones(2), x=torch.ones(2), self=torch.ones(2)).save(path)
    others = {name: torch.rand(2) for name in given}
    rest = {"X": torch.rand(2), "x": torch.rand(2), "self": torch.rand(2)}
    torch.testing.assert_close(tl.load(path)(others, **rest), total(others, **rest))
