"""Views merged, values shared, products of fewer and larger factors."""

import pytest
import torch
from torch import Tensor

from tests.compiler.passes.simplified import operators, same


@pytest.mark.parametrize(
    "func, left",
    [
        (lambda x: x.t().t().sin(), ["sin"]),
        (lambda x: x.view(6).view(3, 2).view(2, 3).sin(), ["sin"]),
        (lambda x: x.unsqueeze(0).squeeze(0).unsqueeze(1).sin(), ["unsqueeze", "sin"]),
        (lambda x: x[None].permute(2, 0, 1).transpose(0, 1).sin(), ["unsqueeze", "permute", "sin"]),
        (lambda x: x.expand(4, 2, 3).expand(5, 4, 2, 3).sin(), ["expand", "sin"]),
        (lambda x: x.expand(4, 2, 3)[1].sin(), ["sin"]),
        (lambda x: x[:1].expand(4, 3)[2].sin(), ["slice", "select", "sin"]),
        (lambda x: x[:, None].expand(2, 4, 3)[:, 2].sin(), ["sin"]),
    ],
)  # fmt: skip
def test_views_of_views(func, left):
    names = operators(same(func, torch.randn(2, 3)))
    assert names == left


def test_views_that_do_not_merge_are_unchanged():
    same(lambda x: x.t().unsqueeze(0).reshape(6).view(3, 2).sin(), torch.randn(2, 3))
    same(lambda x: x.t().unsqueeze(1).squeeze(1).sin(), torch.randn(2, 3))
    same(lambda x: x.permute(2, 0, 1).transpose(-1, 0).sin(), torch.randn(2, 3, 4))


def test_view_across_a_dimension_of_size_one_is_kept_where_needed():
    # Fake tensors (torch 2.13) would allow a (6, 4) view of (6, 2, 1, 2), strides (2, 12, 2, 1).
    same(lambda x: x.transpose(0, 1).unsqueeze(2).sin().reshape(6, 4), torch.randn(2, 6, 2))
    same(lambda x: x.transpose(0, 1)[:, :, None].reshape(6, 4).view(6, 2, 2), torch.randn(2, 6, 2))
    same(
        lambda x: (x.transpose(0, 1)[:, :, None].clone() * 2).reshape(6, 2, 2).reshape(6, 4),
        torch.randn(2, 6, 2),
    )


def test_dtype_view_is_not_merged():
    same(lambda x: x.view(torch.int32).view(3, 2).view(torch.float32), torch.randn(2, 3))


def test_the_same_computed_twice_is_shared():
    graph = same(lambda x: x.sin() + (x.clone().sin() * x.t().t()), torch.randn(2, 3))
    assert operators(graph) == ["sin", "mul", "add"]


def test_similar_but_different_values_are_not_shared():
    def func(x: Tensor) -> list[Tensor]:
        tiny = x * 0
        return [x + 1, x + 1.0, x.float() / (tiny + 0.0), x.float() / (tiny - 0.0), x + True]

    same(func, torch.arange(3))
    same(lambda x: (torch.full((2,), 0.0) / x, torch.full((2,), -0.0) / x), torch.ones(2))


def test_random_numbers_are_drawn_twice():
    graph = same(lambda x: torch.rand_like(x) - torch.rand_like(x), torch.ones(3))
    assert operators(graph) == ["rand_like", "rand_like", "sub"]


def test_two_results_of_one_value_are_two():
    x = torch.randn(3)
    graph = same(lambda x: (x.sin(), x.sin()), x)
    one, other = graph(x)
    assert one.data_ptr() != other.data_ptr()


SHAPES = [(4, 3, 5, 2), (1, 3, 5, 2), (4, 1, 5, 2), (4, 3, 1, 2), (4, 3, 5, 1), (0, 3, 5, 2),
          (4, 3, 0, 2), (4, 0, 5, 2)]  # fmt: skip


@pytest.mark.sweep
@pytest.mark.parametrize("sizes", SHAPES, ids=str)
@pytest.mark.parametrize("shared", ["one", "other", "both", "none", "one, others transposed"])
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
def test_batched_products_with_a_shared_factor(sizes, shared, bias):
    batch, rows, inner, columns = sizes

    def func(one: Tensor, other: Tensor, bias_of: Tensor) -> Tensor:
        if "transposed" in shared:
            other = other.transpose(1, 2)
        one, other = one.expand(batch, -1, -1), other.expand(batch, -1, -1)
        return torch.baddbmm(bias_of, one, other) if bias else one.bmm(other)

    one = torch.randn(batch if shared in ("other", "none") else 1, rows, inner)
    other = torch.randn(1 if shared in ("other", "both") else batch, inner, columns)
    if "transposed" in shared:
        other = other.transpose(1, 2).contiguous()
    for dtype in (torch.float32, torch.float64, torch.complex64, torch.int64):
        given = [tensor.mul(9).to(dtype) for tensor in (one, other, torch.randn(batch, 1, columns))]
        graph = same(func, *given, exact=dtype == torch.int64)
        if (
            shared in ("other", "both", "one, others transposed")
            and batch > 1
            and inner > 1
            and rows
        ):
            assert "mm" in operators(graph)


# Which factor repeats, along which dimension, and the operators that remain.
REPEATED = {
    "rows": (0, 1, ["bmm"]),
    "columns": (1, 2, ["bmm"]),
    "terms of one": (0, 2, ["sum", "mul"]),
    "terms of other": (1, 1, ["sum", "mul"]),
}


@pytest.mark.parametrize("name", REPEATED)
@pytest.mark.parametrize("sizes", [(2, 3, 5, 4), (1, 3, 5, 4), (2, 1, 5, 4), (2, 3, 1, 4),
                                   (2, 3, 5, 1), (2, 3, 0, 4), (2, 0, 5, 4)], ids=str)  # fmt: skip
def test_products_with_expanded_factors(name, sizes):
    which, dim, expected = REPEATED[name]
    batch, rows, inner, columns = sizes
    shapes = [(batch, rows, inner), (batch, inner, columns)]

    def func(*factors: Tensor) -> Tensor:
        repeated = factors[which].expand(shapes[which])
        return torch.bmm(*factors[:which], repeated, *factors[which + 1 :])

    for dtype in (torch.float64, torch.float32, torch.float16, torch.complex64, torch.int64):
        given = [torch.randn(shape).mul(5).to(dtype) for shape in shapes]
        given[which] = given[which].narrow(dim, 0, min(1, shapes[which][dim]))
        graph = same(func, *given, exact=dtype == torch.int64)
        if sizes == (2, 3, 5, 4) and dtype == torch.float32:
            assert [op for op in operators(graph) if op in ("bmm", "mm", "sum", "mul")] == expected
        if sizes == (2, 3, 5, 4) and dtype == torch.float16:
            assert "sum" not in operators(graph)  # it may be out of range


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.complex64, torch.int64], ids=str
)
def test_product_of_a_column_and_a_row_is_a_multiplication(dtype):
    one, other = torch.randn(3, 1).mul(5).to(dtype), torch.randn(1, 4).mul(5).to(dtype)
    assert operators(same(torch.mm, one, other)) == ["mul"]


SMALL = {
    "mm": (torch.mm, (3, 4), (4, 2)),
    "mm of nothing": (torch.mm, (3, 0), (0, 2)),
    "bmm": (torch.bmm, (2, 3, 4), (2, 4, 2)),
    "mv": (torch.mv, (3, 4), (4,)),
    "dot": (torch.dot, (4,), (4,)),
    "addmm": (torch.addmm, (2,), (3, 4), (4, 2)),
    "addmv": (torch.addmv, (3,), (3, 4), (4,)),
    "baddbmm": (torch.baddbmm, (2, 1, 2), (2, 3, 4), (2, 4, 2)),
    "addmm with factors": (lambda *x: torch.addmm(*x, beta=2, alpha=3), (3, 1), (3, 4), (4, 2)),
    "addmm of nothing added": (lambda *x: torch.addmm(*x, beta=0, alpha=0.5), (2,), (3, 4), (4, 2)),
}  # fmt: skip


@pytest.mark.parametrize("name", SMALL)
def test_small_products_are_sums(name):
    func, *shapes = SMALL[name]
    for dtype in (torch.float32, torch.float64):
        args = [torch.randn(shape, dtype=dtype) for shape in shapes]
        graph = same(func, *args, exact=False, fuse_small=True)
        assert not {"mm", "bmm", "addmm", "baddbmm", "mv", "dot"} & {*operators(graph)}
        assert operators(same(func, *args)) != operators(graph)


def test_large_products_and_half_precision_stay_products():
    assert operators(same(torch.mm, torch.ones(32, 32), torch.ones(32, 32), fuse_small=True)) == [
        "mm"
    ]
    half = torch.ones(2, 2, dtype=torch.float16)
    assert operators(same(torch.mm, half, half, fuse_small=True)) == ["mm"]
    nan = torch.tensor([float("nan"), 1.0])
    graph = same(
        lambda *x: torch.addmv(*x, beta=0), nan, torch.ones(2, 2), torch.ones(2), fuse_small=True
    )
    assert "add" not in operators(graph)


# A product, its factors' shapes, and whether the second factor is copied to contiguous rows.
STRIDED = {
    "transposed": (torch.mm, (8, 3), (20, 3), True),
    "each of a batch": (torch.bmm, (2, 8, 3), (2, 20, 3), True),
    "with a bias": (lambda x, y: torch.addmm(x[:, :1], x, y), (8, 3), (20, 3), True),
    "read by few rows": (torch.mm, (3, 3), (20, 3), False),
    "with few columns": (torch.mm, (8, 3), (15, 3), False),
    "of more terms": (torch.mm, (8, 5), (20, 5), False),
}


@pytest.mark.parametrize("name", STRIDED)
def test_factor_with_strided_rows_is_copied(name):
    product, one, other, is_copied = STRIDED[name]
    args = torch.randn(one), torch.randn(other)
    graph = same(lambda x, y: product(x, y.mT), *args, exact=False, fuse_small=True)
    assert copied_in_rows(graph) == ([True] if is_copied else [])


def test_factor_with_contiguous_rows_is_not_copied():
    x, y = torch.randn(8, 3), torch.randn(3, 20)
    for other in (lambda y: y, lambda y: y[0].expand(3, 20), lambda y: y[:, :1].expand(3, 20)):
        graph = same(lambda x, y, f=other: x @ f(y), x, y, exact=False, fuse_small=True)
        assert copied_in_rows(graph) == []


def copied_in_rows(graph):
    """Returns, for each copy that forces strides, whether it is contiguous."""
    copies = [node for node in graph.graph.nodes if "force_stride" in str(node.target)]
    return [node.meta["val"].is_contiguous() for node in copies]
