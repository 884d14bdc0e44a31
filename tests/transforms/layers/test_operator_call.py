"""OperatorCall: how a rule of many operators looks at a call."""

import pytest
import torch

import torchlayers as tl
from tests.transforms.layers.tangent import Tangent

A = torch.ops.aten

X = torch.tensor([[1.0, -2.0, 0.5], [3.0, 0.1, -1.0]])
W = torch.tensor([[1.0, 2.0], [0.0, 1.0], [-1.0, 4.0]])
FUNCTIONS = {
    "linear": lambda x: x @ W,
    "of a constant first": lambda x: W @ x,
    "bilinear": lambda x: x @ x.mT,
    "elementwise": lambda x: x.exp() * x,
    "of a list": lambda x: torch.cat([x, W.mT, x * x]),
    "several results": lambda x: x.sort(1).values + x.sort(1).indices,
    "a list of results": lambda x: x.split(1, 1)[2] * x.split(1, 1)[0],
    "by keyword": lambda x: torch.addmm(x[:, :2], x, W, beta=2),
    "written to": lambda x: x.clone().index_fill_(1, torch.tensor([0]), 2.0),
    "with a constant written": lambda x: torch.slice_scatter(torch.zeros(2, 4), x, 1, 1, 4),
    "without a derivative": lambda x: x.round() + x.sin(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_forward_mode_is_a_layer_of_one_rule(name):
    f = FUNCTIONS[name]
    torch.testing.assert_close(Tangent()(f)(X, X.cos()), tl.jvp(f, (X,), (X.cos(),)))


def call_of(op, *args, **kwargs):
    with Tangent() as layer:
        args = [layer.tensor(x, x) if isinstance(x, torch.Tensor) else x for x in args]
        return tl.OperatorCall(layer, op, tuple(args), kwargs)


def test_arguments_have_names_and_defaults():
    call = call_of(A.sum.dim_IntList, X, [1])
    assert call["dim"] == [1]
    assert call["keepdim"] is False
    assert call.names == ["self", "dim", "keepdim", "dtype"]


def test_linear_operators_are_run_on_tangents():
    call = call_of(A.mm.default, X, W)
    calls = []
    call.on, on = lambda operands: calls.append(1) or on(operands), call.on
    torch.testing.assert_close(call.tangent([X, None]), X @ W)
    torch.testing.assert_close(call.tangent([X, W]), 2 * X @ W)
    assert len(calls) == 3
    assert call.tangent([None, None]) is None


def test_moved_parts_are_what_read_returns():
    with Tangent() as layer:
        x = layer.tensor(X, 3 * X)
        call = tl.OperatorCall(layer, A.t.default, (x,), {})
        torch.testing.assert_close(call.moved(lambda x: x.parts), 3 * X.mT)
