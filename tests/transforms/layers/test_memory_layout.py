"""as_strided and view of tensors of which a layer keeps parts with another memory layout."""

import pytest
import torch
from torch.testing import assert_close

import torchlayers as tl
from tests.transforms.layers.interval import Interval
from tests.transforms.layers.tangent import Tangent
from torchlayers.errors import RuleError

X = torch.linspace(0.1, 0.9, 6, dtype=torch.float64).reshape(2, 3)
TRANSPOSED = X.mT.contiguous().mT
FACTORS = torch.tensor([1.0, 2.0, -1.0, 0.5, 3.0, 1.5], dtype=torch.float64)


def read_in_memory(y):
    return y.as_strided((6,), (1,)).tanh() * FACTORS


def read_in_place(y):
    return y.mT.reshape(6).tanh() * FACTORS


def write_in_memory(y):
    y = y * 2
    y.as_strided((3,), (2,), 1).mul_(y.as_strided((3,), (1,), 1))
    return y.tanh()


def write_in_place(y):
    y = y * 2
    y[1].mul_(y.mT.reshape(6)[1:4])
    return y.tanh()


def viewed(y):
    return torch.view_as_real(torch.view_as_complex(y.mT)).tanh() * y.mT.view(6)[0]


def not_viewed(y):
    return y.mT.tanh() * y[0, 0]


PAIRS = {
    "read": (read_in_memory, read_in_place),
    "write": (write_in_memory, write_in_place),
    "view": (viewed, not_viewed),
}

# Arguments, and what makes tensors of them that are transposed in memory.
CASES = {
    "argument": (TRANSPOSED, lambda x: x),
    "clone": (TRANSPOSED, lambda x: x.clone()),
    "first factor": (X, lambda x: TRANSPOSED * x),
    "second factor": (TRANSPOSED, lambda x: x * X),
    "summand": (X, lambda x: TRANSPOSED + x),
    "written": (X, lambda x: torch.zeros_like(TRANSPOSED).copy_(x)),
}


def jet(f, x):
    return tl.jet(f, (x,), ([X.cos(), X],))


def laplacian(f, x):
    return tl.laplacian(lambda x: f(x).sum())(x)


def interval(f, x):
    return Interval()(f)(x, x.contiguous() + 0.1)


def tangent(f, x):
    return Tangent()(f)(x, X.cos())


LAYERS = {"jet": jet, "laplacian": laplacian, "layer in Python": interval, "OperatorCall": tangent}


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("layer", LAYERS)
def test_parts_with_another_memory_layout(layer, case, pair):
    x, make = CASES[case]
    assert make(x).stride() == (1, 2)
    found, expected = (LAYERS[layer](lambda x: f(make(x)), x) for f in PAIRS[pair])  # noqa: B023
    assert_close(found, expected)


def test_a_part_that_starts_elsewhere_in_memory():
    x = torch.stack([X, X])[1]
    read = interval(lambda x: x.as_strided((2, 2), (3, 1), x.storage_offset() + 1), x)
    assert_close(read, interval(lambda x: x[:, 1:], x))


def test_parts_that_start_elsewhere_than_their_tensor():
    x = torch.stack([X, X])[1]
    low, high = x - 0.1, x + 0.1
    offset = x.storage_offset() + 1
    with Interval() as layer:
        view = layer.apply(torch.as_strided, layer.tensor(x, (low, high)), (2, 2), (3, 1), offset)
    assert_close(view.parts, (low[:, 1:], high[:, 1:]))


def test_memory_that_is_not_the_tensors_own_is_refused():
    x = torch.stack([X, X])[1]
    with Interval() as layer, pytest.raises(RuleError, match="elements that a tensor of shape"):
        layer.apply(torch.as_strided, layer.tensor(x, (x, x)), (6,), (1,), 0)
    assert tl.current_stack() == ()


class Total(tl.Layer):
    """parts are the sum of all elements."""


@Total.rule("view")
def view(layer, op, *args, **kwargs):
    parts = layer.send_down(op, args, kwargs, read=lambda x: x.parts)
    return layer.tensor(layer.send_down(op, args, kwargs), parts)


@pytest.mark.parametrize("part", [torch.ones(()), 6.0])
def test_a_part_of_another_shape_is_refused(part):
    with Total() as layer, pytest.raises(RuleError, match="has to have the same shape"):
        layer.apply(torch.as_strided, layer.tensor(X, part), (6,), (1,))
    assert tl.current_stack() == ()
