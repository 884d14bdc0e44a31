"""Transposes of products become products of transposes."""

import pytest
import torch

from tests.compiler.passes.simplified import operators, same

TURNED = {
    "matrices": (lambda a, b, c: (a @ b).T + c, (5, 3), (3, 4), (4, 5)),
    "batches": (lambda a, b, c: (a @ b).mT * c, (2, 5, 3), (2, 3, 4), (2, 4, 5)),
    "transposes of it alone": (
        lambda a, b, c: (a @ b).mT.sin() + (a @ b).mT.cos() * c,
        (2, 5, 3), (2, 3, 4), (2, 4, 5),
    ),
    "of transposes": (lambda a, b, c: (a.mT @ b.mT).mT * c, (2, 3, 5), (2, 4, 3), (2, 4, 5)),
    "by permute": (
        lambda a, b, c: torch.bmm(a, b).permute(0, 2, 1) - c, (2, 5, 3), (2, 3, 4), (2, 4, 5)
    ),
}  # fmt: skip
LEFT = {
    "read as it is, too": (lambda a, b, c: (a @ b).T + c + (a @ b).sum(), (5, 3), (3, 4), (4, 5)),
    "returned": (lambda a, b, c: (a @ b).T, (5, 3), (3, 4), (4, 5)),
    "batches first": (
        lambda a, b, c: torch.bmm(a, b).permute(1, 2, 0) * c, (2, 5, 3), (2, 3, 4), (5, 4, 2)
    ),
}  # fmt: skip


def rows_of_products(func, *sizes, **options):
    graph = same(func, *map(torch.randn, sizes), exact=False, **options)
    return [node.meta["val"].shape[-2] for node in graph.graph.nodes if "mm." in str(node.target)]


@pytest.mark.parametrize("name", TURNED)
def test_transposed_products_are_computed_transposed(name):
    assert rows_of_products(*TURNED[name]) == [4]
    same(TURNED[name][0], *map(torch.randn, TURNED[name][1:]), exact=False, fuse_small=True)


@pytest.mark.parametrize("name", LEFT)
def test_other_products_are_unchanged(name):
    assert rows_of_products(*LEFT[name]) == [5]


def test_no_transpose_is_left_between_products():
    graph = same(
        lambda a, b: (a.T @ b.T).T.sum(), torch.randn(3, 5), torch.randn(4, 3), exact=False
    )
    assert operators(graph) == ["mm", "sum"]
