"""debug.nans: the operator and the line that make a nan."""

import pytest
import torch

import torchlayers as tl
from torchlayers import debug
from torchlayers.errors import NanError

ROWS = torch.tensor([[0.5, 0.5], [1.0, 0.0]])


def entropy(p):
    return -(p * p.log()).sum()


def norm(x):
    return x.square().sum().sqrt()


def masked_norm(x):
    return torch.where(x.sum() > 0, norm(x), 0.0)


def line(function):
    return f"test_nans.py:{function.__code__.co_firstlineno + 1}"


@pytest.mark.parametrize(
    "call",
    [
        lambda: entropy(ROWS),
        lambda: tl.vmap(entropy)(ROWS),
        lambda: tl.grad(entropy)(ROWS[1]),
        lambda: tl.vmap(tl.grad(entropy))(ROWS),
        lambda: tl.vmap(tl.compile(entropy))(ROWS),
        lambda: tl.compile(entropy, backend="replay")(ROWS),
        lambda: torch.func.vmap(entropy)(ROWS),
    ],
)
def test_a_value(call):
    with pytest.raises(NanError) as caught, debug.nans():
        call()
    assert "aten::mul.Tensor made 1 nan of numbers" in str(caught.value)
    assert "where its arguments are 0.0, -inf" in str(caught.value)
    assert line(entropy) in str(caught.value)
    assert not torch.is_anomaly_enabled()
    assert tl.current_stack() == ()
    assert torch._C._len_torch_dispatch_stack() == 0


@pytest.mark.parametrize(
    "call",
    [
        lambda: tl.grad(masked_norm)(torch.zeros(2)),
        lambda: tl.vmap(tl.grad(masked_norm))(torch.eye(2) - torch.tensor([[1.0, 0], [0, 0]])),
        lambda: tl.jacrev(masked_norm)(torch.zeros(2)),
        lambda: tl.hessian(lambda x: masked_norm(x) * x.sum())(torch.zeros(2)),
    ],
)
@pytest.mark.filterwarnings("ignore:Error detected in")
def test_a_gradient_names_the_line_whose_derivative_it_is(call):
    with pytest.raises(NanError, match="nan") as caught, debug.nans():
        call()
    assert line(norm) in str(caught.value)
    assert not torch.is_anomaly_enabled()


@pytest.mark.filterwarnings("ignore:Error detected in")
def test_a_gradient_of_torchs_engine():
    x = torch.zeros(2, requires_grad=True)
    with pytest.raises(NanError, match="SqrtBackward0"), debug.nans():
        masked_norm(x).backward()


@pytest.mark.parametrize(("func", "x"), [(norm, torch.zeros(2)), (entropy, ROWS[1])])
def test_a_tangent(func, x):
    with pytest.raises(NanError) as caught, debug.nans():
        tl.jvp(func, (x,), (torch.zeros(2),))
    assert line(func) in str(caught.value)


def test_a_nan_that_is_given_is_passed_on():
    nan = torch.tensor([1.0, float("nan")])
    with debug.nans():
        assert entropy(nan).isnan()
        assert torch.full((2,), float("nan")).sin().isnan().all()
        torch.empty(1000)
        tl.vmap(tl.grad(entropy))(ROWS[:1])


def test_any_dtype_and_layout_may_be_there():
    with debug.nans():
        torch.ones(2, dtype=torch.int64).add(1).to_sparse()
        torch.ones(2, device="meta").sin()
        torch.ones(0).log()
        assert tl.make_graph(entropy)(ROWS) is not None
        with pytest.raises(NanError, match=r"at \(0,\)"):
            torch.zeros(1, dtype=torch.complex64) / 0


def test_other_errors_pass():
    with pytest.raises(RuntimeError, match="size"), debug.nans():
        torch.ones(2) + torch.ones(3)
    with pytest.raises(FloatingPointError), debug.nans():
        entropy(ROWS)


def logarithm(x):
    return x.log()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: tl.vmap(logarithm)(torch.tensor([1.0, 0.0])), r"aten::log made 1 inf of numbers"),
        (lambda: torch.full((3,), 3e38).sum(), r"aten::sum made 1 inf of numbers"),
        (
            lambda: tl.grad(torch.sqrt)(torch.tensor(0.0)),
            r"aten::div\.Tensor made 1 inf",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:Error detected")
def test_an_infinite_number_if_that_is_asked_for(call, words):
    with pytest.raises(NanError, match=words), debug.nans(infinities=True):
        call()
    with debug.nans():
        call()


def test_infinite_numbers_that_are_passed_on_are_none():
    with debug.nans(infinities=True):
        masked = ROWS.masked_fill(ROWS == 0, -torch.inf).softmax(1)
    assert masked[1].tolist() == [1.0, 0.0]
