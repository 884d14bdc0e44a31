"""Operator, arithmetic and byte counts of captured graphs, against counts by hand."""

import pytest
import torch
import torch.nn.functional as F

import torchlayers as tl
from torchlayers.compiler.capture.record import record
from torchlayers.compiler.costs import Costs, _flops, costs
from torchlayers.compiler.passes import simplify


def costs_of(func, *args):
    return costs(simplify(record(func, args).graph))


def test_matrix_product_counts_two_operations_per_term():
    a, b = torch.ones(3, 4), torch.ones(4, 5)
    moved = 4 * (12 + 20 + 15)
    assert costs_of(torch.mm, a, b) == Costs(1, 2 * 3 * 4 * 5, moved, 4 * 15)


def test_matrix_vector_product_counts_two_operations_per_term():
    assert costs_of(torch.mv, torch.ones(3, 4), torch.ones(4)).flops == 2 * 3 * 4
    assert costs_of(torch.dot, torch.ones(5), torch.ones(5)).flops == 2 * 5


def test_expanded_operand_is_read_once():
    def func(row, matrix):
        return row.expand(3, 4) * matrix

    found = costs_of(func, torch.ones(4), torch.ones(3, 4))
    assert (found.flops, found.bytes_moved) == (12, 4 * (4 + 12 + 12))


def test_sum_counts_its_operands_elements():
    found = costs_of(lambda x: x.sum(), torch.ones(10, 10, dtype=torch.float64))
    assert found == Costs(1, 100, 8 * 101, 8)


def test_integer_operators_and_copies_count_no_flops():
    assert costs_of(lambda i: i + i, torch.ones(3, dtype=torch.int64)).flops == 0
    assert costs_of(lambda x: torch.cat([x, x]), torch.ones(3)).flops == 0


def test_memory_is_freed_after_its_last_use():
    def chain(x):
        for _ in range(10):
            x = x.sin()
        return x

    assert costs_of(chain, torch.ones(100)).peak_bytes == 2 * 400


def test_view_keeps_its_base_alive():
    def func(x):
        part = x.sin()[0]
        return x.cos().exp().sum() + part

    assert costs_of(func, torch.ones(1000)).peak_bytes == 3 * 4000


def test_several_results_of_an_operator_are_counted_once():
    found = costs_of(lambda x: torch.sort(x)[0], torch.ones(8))
    assert found.operators == 1
    assert found.bytes_moved == 4 * 8 + (4 + 8) * 8
    assert found.peak_bytes == (4 + 8) * 8


def test_hessian_counts_each_of_its_operators():
    weight = torch.randn(6, 6)
    found = costs_of(tl.hessian(lambda x: (weight @ x).tanh().sum()), torch.randn(6))
    assert found.flops > 2 * 6**3
    assert found.peak_bytes >= 4 * 36


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("transposed", [False, True])
def test_gradients_of_a_convolution_cost_twice_the_convolution(groups, transposed):
    convolution = F.conv_transpose2d if transposed else F.conv2d
    x, weight = torch.randn(2, 4, 5, 5), torch.randn(4, 8 // groups, 3, 3)
    if not transposed:
        weight = torch.randn(8, 4 // groups, 3, 3)

    def loss(x, weight):
        return convolution(x, weight, groups=groups).square().sum()

    def products(func):
        counted = simplify(record(func, (x, weight)).graph).graph.nodes
        named = [node for node in counted if "conv" in getattr(node.target, "__name__", "")]
        return sum(map(_flops, named))

    once = products(loss)
    assert once > 0
    assert products(tl.grad(loss, argnums=(0, 1))) == 3 * once
