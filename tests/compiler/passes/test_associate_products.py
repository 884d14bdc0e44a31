"""Products of three factors, in the cheaper order."""

import pytest
import torch

import torchlayers as tl
from tests.compiler.passes.simplified import same
from torchlayers.compiler.capture.record import record
from torchlayers.compiler.costs import costs


def twice(product, vector):
    return product @ vector, product.sin()


ASSOCIATED = {
    "a matrix by a vector": (lambda a, b, v: (a @ b) @ v, [(9, 4), (4, 5), (5,)]),
    "a vector by a matrix": (lambda a, b, v: v @ (a @ b), [(9, 4), (4, 5), (9,)]),
    "rows by one vector": (lambda a, b, v: ((a @ b) * v).sum(-1), [(9, 4), (4, 5), (5,)]),
    "a column on the right": (lambda a, b, c: (a @ b) @ c, [(9, 8), (8, 7), (7, 1)]),
    "narrow on the right": (lambda a, b, c: (a @ b) @ c, [(9, 8), (8, 7), (7, 2)]),
    "narrow on the left": (lambda a, b, c: a @ (b @ c), [(2, 8), (8, 7), (7, 9)]),
    "batches": (lambda a, b, c: (a @ b) @ c, [(3, 9, 8), (3, 8, 7), (3, 7, 2)]),
    "a chain": (lambda a, b, c: ((a @ b) @ b) @ c, [(6, 8), (8, 8), (8,)]),
    "under vmap": (lambda a, b, v: tl.vmap(lambda a: v @ (b @ a))(a), [(9, 4), (5, 4), (5,)]),
}
LEFT = {
    "the cheaper order": (lambda a, b, c: (a @ b) @ c, [(2, 8), (8, 7), (7, 9)]),
    "read besides": (lambda a, v, w: twice(a @ w, v), [(9, 4), (5,), (4, 5)]),
    "a weight for each row": (lambda a, b, w: ((a @ b) * w).sum(-1), [(9, 4), (4, 5), (9, 5)]),
    "sums of columns": (lambda a, b, v: ((a @ b) * v).sum(0), [(9, 4), (4, 5), (5,)]),
    "sums that are kept": (lambda a, b, v: ((a @ b) * v).sum(1, True), [(9, 4), (4, 5), (5,)]),
}


def multiplications(case, **options) -> tuple[float, float]:
    """Returns the multiplication counts before and after, as costs() reports them."""
    func, shapes = case
    given = [torch.randn(shape, dtype=options.get("dtype", torch.float64)) for shape in shapes]
    after = same(func, *given, exact=False)
    return costs(record(func, given).graph).flops, costs(after).flops


@pytest.mark.parametrize("name", ASSOCIATED)
def test_fewer_multiplications(name):
    before, after = multiplications(ASSOCIATED[name])
    assert after < 0.8 * before


@pytest.mark.parametrize("name", LEFT)
def test_other_products_are_unchanged(name):
    before, after = multiplications(LEFT[name])
    assert after >= 0.8 * before


def test_half_precision_stays():
    case = ASSOCIATED["a matrix by a vector"]
    before, after = multiplications(case, dtype=torch.bfloat16)
    assert after == before


def test_whole_numbers_stay():
    func, shapes = ASSOCIATED["a matrix by a vector"]
    same(func, *(torch.randint(9, shape) for shape in shapes))


def test_sizes_that_are_symbols():
    func = tl.compile(lambda a, b, v: (a @ b) @ v, dynamic=True, backend="replay")
    for rows in (3, 5, 9):
        a, b, v = torch.randn(rows, 4), torch.randn(4, 5), torch.randn(5)
        torch.testing.assert_close(func(a, b, v), a @ b @ v)
    assert len(func.report().signatures) == 2
