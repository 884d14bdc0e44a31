"""jet's arguments and results: structures, absent coefficients, dtypes, writes."""

import functools
import gc

import pytest
import torch
from torch.testing import assert_close
from torch.utils import _pytree as pytree

import torchlayers as tl
from tests.support.calls import is_dead, level_of, structures
from torchlayers.transforms.jet.layer import Jet
from torchlayers.transforms.jet.series import Series

X = torch.tensor([0.3, -0.7, 1.2], dtype=torch.float64)
V = torch.tensor([1.0, 0.5, -2.0], dtype=torch.float64)


def product(tree):
    return functools.reduce(torch.mul, pytree.tree_leaves(tree))


@structures
def test_primals_may_be_structures(pack):
    count = len(pytree.tree_leaves(pack(X, V)))
    value, found = tl.jet(product, (pack(X, X),), ([pack(V, V), None],))
    assert_close((value, found), tl.jet(lambda x: x**count, (X,), ([V, None],)))


@structures
def test_outputs_may_be_structures(pack):
    value, found = tl.jet(lambda x: pack(x.sin(), x.exp()), (X,), ([V, X],))
    first, second = (tl.jet(f, (X,), ([V, X],)) for f in (torch.sin, torch.exp))
    assert len(found) == 2
    for n, each in enumerate([value, *found]):
        expected = pack(*([y, *series][n] for y, series in (first, second)))
        assert pytree.tree_structure(each) == pytree.tree_structure(expected)
        assert_close(pytree.tree_leaves(each), pytree.tree_leaves(expected))


@structures
def test_outputs_are_a_curve_for_another_jet(pack):
    value, found = tl.jet(lambda x: pack(x.sin(), x.exp()), (X,), ([V, None],))
    both = tl.jet(lambda x: product(pack(x.sin(), x.exp())), (X,), ([V, None],))
    assert_close(tl.jet(product, (value,), (found,)), both)


def test_order_zero_is_the_function():
    value, found = tl.jet(torch.sin, (X,), ([],))
    assert_close(value, X.sin())
    assert found == []


def test_none_is_zero_for_a_whole_derivative_and_for_a_leaf():
    f = torch.mul
    zero = torch.zeros_like(X)
    expected = tl.jet(f, (X, V), ([V, zero], [zero, zero]))
    assert_close(tl.jet(f, (X, V), ([V, None], [None, None])), expected)
    g = lambda pair: f(*pair)  # noqa: E731
    assert_close(tl.jet(g, ((X, V),), ([(V, None), None],)), expected)


def test_a_result_that_does_not_depend_on_the_primals_has_zeros():
    value, found = tl.jet(lambda x: V * 2, (X,), ([V, None],))
    assert_close(value, V * 2)
    assert_close(found, [torch.zeros_like(V)] * 2)


def test_absent_coefficients_stay_absent():
    """A quadratic function of a line has no third derivative, not one of zeros."""
    seen = []

    class Watching(Jet):
        name = "watching jet"

        def outputs(self, result):
            seen.append([part is None for part in result.parts])
            return super().outputs(result)

    Watching(4)(lambda x: (x * 2 + 1) * x.sum())((X,), [[V, None, None, None]])
    assert seen == [[False, False, True, True]]


def test_constants_inside_stay_plain():
    def f(x):
        constant = V.sin() * 2
        assert not isinstance(torch.zeros_like(x), tl.LayerTensor)
        return x * constant

    assert_close(tl.jet(f, (X,), ([V, None],))[1][0], V * V.sin() * 2)


def test_results_are_not_the_callers_tensors():
    value, found = tl.jet(lambda x: x, (X,), ([V, X],))
    assert value is not X and found[0] is not V and found[1] is not X


def test_nothing_returned_carries_a_wrapper():
    value, found = tl.jet(lambda x: (x, x.sin()), (X,), ([V, None],))
    for leaf in pytree.tree_leaves((value, found)):
        assert type(leaf) is torch.Tensor and level_of(leaf) == -1 and not is_dead(leaf)


def test_writes_are_followed():
    def f(x):
        y = x * 2
        y[0] = x[1]
        y.mul_(x)
        return y.clone().sin_()

    def pure(x):
        return (torch.cat([x[1:2], 2 * x[1:]]) * x).sin()

    assert_close(tl.jet(f, (X,), ([V, X, None],)), tl.jet(pure, (X,), ([V, X, None],)))


def test_the_primals_are_not_written_to():
    x = X.clone()
    tl.jet(lambda x: x.mul_(2), (x,), ([V],))
    assert_close(x, X)


def test_branches_read_the_value():
    def f(x):
        return x.sin() if x.sum() > 0 else x.cos()

    assert_close(tl.jet(f, (X,), ([V, None],)), tl.jet(torch.sin, (X,), ([V, None],)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
def test_results_have_the_dtype_of_the_function(dtype):
    x = torch.rand(2, 3).to(dtype)
    value, found = tl.jet(lambda x: (x @ x.mT).exp().sum(0) / 3, (x,), ([x, x, None],))
    assert {each.dtype for each in (value, *found)} == {dtype}
    value, found = tl.jet(lambda x: x.double() if not x.is_complex() else x, (x,), ([x, x],))
    assert {each.dtype for each in found} == {value.dtype}


def test_complex_numbers():
    z = torch.tensor([0.3 + 1j, -0.5 + 0.2j], dtype=torch.complex128)
    v = torch.tensor([1 - 1j, 2j], dtype=torch.complex128)
    line = [v, None, None]
    _, found = tl.jet(lambda z: z.exp() * z.sin(), (z,), (line,))
    pushed = lambda f: lambda z: tl.jvp(f, (z,), (v,))[1]  # noqa: E731
    third = pushed(pushed(pushed(lambda z: z.exp() * z.sin())))
    assert_close(found[2], third(z))
    _, sizes = tl.jet(torch.abs, (z,), (line,))
    assert_close(sizes[2], pushed(pushed(pushed(torch.abs)))(z))


@pytest.mark.parametrize(
    "x", [torch.rand(3, 2).t(), torch.rand(3).expand(2, 3), torch.rand(2, 6)[:, ::2]]
)
def test_primals_may_have_any_strides(x):
    f = lambda x: (x.sin() * torch.rand(1).expand_as(x) * 0 + x.exp()).sum(1)  # noqa: E731
    expected = tl.jet(f, (x.contiguous(),), ([x.contiguous(), None, None],))
    assert_close(tl.jet(f, (x,), ([x, None, None],)), expected)


def test_broadcast_operands_get_coefficients_of_the_results_shape():
    row, column = torch.rand(1, 3), torch.rand(2, 1)
    value, found = tl.jet(lambda row: row + column, (row,), ([row, None],))
    assert value.shape == found[0].shape == found[1].shape == (2, 3)
    assert_close(found[0], row.expand(2, 3))


def test_a_network_module():
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(3, 5), torch.nn.LayerNorm(5), torch.nn.GELU(), torch.nn.Linear(5, 2)
    ).double()
    pushed = lambda f: lambda x: tl.jvp(f, (x,), (V,))[1]  # noqa: E731
    _, found = tl.jet(net, (X,), ([V, None, None],))
    assert_close(found[2].detach(), pushed(pushed(pushed(net)))(X).detach())
    (found[2].sum()).backward()
    assert all(p.grad is not None for p in net[0].parameters())


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_recurrent_networks(kind):
    torch.manual_seed(0)
    net = kind(2, 3).double()
    x = torch.rand(4, 1, 2, dtype=torch.float64)
    f = lambda x: net(x)[0]  # noqa: E731
    pushed = lambda f: lambda y: tl.jvp(f, (y,), (x,))[1]  # noqa: E731
    _, found = tl.jet(f, (x,), ([x, None],))
    assert_close(found[1].detach(), pushed(pushed(f))(x).detach())


@pytest.mark.sweep(one_in=8)
@pytest.mark.parametrize(
    "f",
    [
        lambda x: x.tanh().sin().softmax(0).log(),
        lambda x: torch.linalg.inv(torch.outer(x, x) + torch.eye(3)),
        torch.linalg.vector_norm,
        lambda x: torch.linalg.matrix_exp(torch.outer(x, x)),
    ],
)
def test_memory_is_freed_without_the_garbage_collector(f):
    gc.collect()
    gc.disable()
    try:
        tl.jet(f, (X,), ([V, X, None],))
        left = [each for each in gc.get_objects() if type(each) in (Series, tl.LayerTensor)]
    finally:
        gc.enable()
    assert left == []


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x**2


def test_an_autograd_function_is_run_forward():
    assert_close(tl.jet(Cube.apply, (X,), ([V, X],)), tl.jet(lambda x: x**3, (X,), ([V, X],)))


def test_as_strided_counts_from_the_memory_of_each_coefficient():
    memory = torch.arange(8.0, dtype=torch.float64)
    x, first, second = memory[1:7].reshape(2, 3), memory[:6].reshape(2, 3), memory[2:].reshape(2, 3)

    def by_strides(x):
        return x.as_strided((2, 2), (3, 1), x.storage_offset() + 1) ** 2

    found = tl.jet(by_strides, (x,), ([first, second],))
    expected = tl.jet(lambda x: x[:, 1:] ** 2, (x,), ([first, second],))
    assert_close(found, expected)
