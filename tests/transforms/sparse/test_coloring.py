"""Colourings: each recovers the matrix from its products, with few colours."""

import itertools
import pickle

import pytest
import torch

from tests.transforms.sparse.patterns import PATTERNS, arrow, banded, random, random_symmetric
from torchlayers import Coloring, SparsityPattern, coloring
from torchlayers.errors import StructureError

ORDERS = ["natural", "largest_first", "smallest_last", "incidence_degree"]
JACOBIAN_MODES = ["columns", "rows", "bidirectional", "auto"]
HESSIAN_MODES = ["star", "acyclic"]
# The colours of columns, rows and star colourings that asdex 0.5.1 finds.
OF_ASDEX = {
    "diagonal": (1, 1, 1),
    "tridiagonal": (3, 3, 3),
    "pentadiagonal": (5, 5, 5),
    "ring of 30": (3, 3, 4),
    "ring of 31": (4, 4, 3),
    "arrow": (30, 30, 2),
    "arrow of three": (30, 30, 4),
    "dense rows apart": (30, 30, 29),
    "blocks": (5, 5, 5),
    "5-point stencil": (7, 7, 6),
    "9-point stencil": (9, 9, 9),
    "7-point stencil": (10, 10, 9),
    "bidiagonal": (2, 2, None),
    "dense": (6, 6, 6),
    "dense row": (9, 1, None),
    "dense column": (1, 9, None),
    "empty": (1, 1, None),
    "random wide": (8, 5, None),
    "random tall": (6, 9, None),
    "random square": (8, 8, None),
    "random symmetric": (8, 8, 7),
    "random denser": (28, 28, 18),
    "attached": (20, 20, 9),
    "bundle adjustment": (9, 12, None),
}
# Matrices for which using both directions takes far fewer products.
OF_BOTH_DIRECTIONS = {"arrow": 3, "arrow of three": 7, "dense rows apart": 5}


def matrix(mask, *, symmetric=False):
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(mask.shape, generator=generator, dtype=torch.float64) * mask
    return values + values.T if symmetric else values


def recovered(coloring, matrix):
    """The matrix, from products with one vector for each color."""
    found = []
    if coloring.column_colors is not None:
        found += [
            matrix @ (coloring.column_colors == c).double() for c in range(coloring.num_columns)
        ]
    if coloring.row_colors is not None:
        found += [(coloring.row_colors == c).double() @ matrix for c in range(coloring.num_rows)]
    reading = coloring.reading
    pairs = zip(reading.products.tolist(), reading.elements.tolist(), strict=True)
    values = torch.stack([found[product][element] for product, element in pairs])
    for sign, sources, targets in reading.steps:
        values = values.index_add(0, targets, values[sources], alpha=sign)
    if reading.unknown_of_entry is not None:
        values = values[reading.unknown_of_entry]
    return coloring.pattern.to_sparse(values).to_dense()


def is_symmetric(mask):
    return mask.shape[0] == mask.shape[1] and torch.equal(mask, mask.T)


@pytest.mark.parametrize("mode", JACOBIAN_MODES)
@pytest.mark.parametrize("name", [name for name in PATTERNS if name != "empty"])
def test_products_hold_all_entries(name, mode):
    mask = PATTERNS[name]()
    values = matrix(mask)
    assert torch.allclose(recovered(coloring(mask, mode), values), values)


@pytest.mark.parametrize("mode", HESSIAN_MODES)
@pytest.mark.parametrize("name", [name for name in PATTERNS if is_symmetric(PATTERNS[name]())])
def test_products_hold_all_entries_of_symmetric_matrices(name, mode):
    mask = PATTERNS[name]()
    values = matrix(mask, symmetric=True)
    assert torch.allclose(recovered(coloring(mask, mode), values), values)


@pytest.mark.parametrize("mode", [*JACOBIAN_MODES[:3], *HESSIAN_MODES])
@pytest.mark.parametrize("order", ORDERS)
def test_every_order_is_valid(order, mode):
    symmetric = mode in HESSIAN_MODES
    for seed, density in itertools.product(range(4), (0.02, 0.1, 0.3)):
        mask = random_symmetric(25, density, seed) if symmetric else random(20, 30, density, seed)
        values = matrix(mask, symmetric=symmetric)
        found = coloring(mask, mode, order)
        assert found.order == order
        assert torch.allclose(recovered(found, values), values)


@pytest.mark.parametrize("name", PATTERNS)
def test_no_more_colors_than_asdex(name):
    mask = PATTERNS[name]()
    columns, rows, star = OF_ASDEX[name]
    assert coloring(mask, "columns").num_colors <= columns
    assert coloring(mask, "rows").num_colors <= rows
    assert coloring(mask).num_colors <= OF_BOTH_DIRECTIONS.get(name, min(columns, rows))
    if star is not None:
        assert coloring(mask, "star").num_colors <= star
        assert coloring(mask, "acyclic").num_colors <= star


@pytest.mark.parametrize("name", PATTERNS)
def test_trying_all_orders_is_as_good_as_each(name):
    mask = PATTERNS[name]()
    for mode in ("columns", "rows", *(HESSIAN_MODES if is_symmetric(mask) else ())):
        fewest = min(coloring(mask, mode, order).num_colors for order in ORDERS)
        assert coloring(mask, mode).num_colors <= fewest


def test_columns_of_one_color_have_no_row_in_common():
    mask = random(40, 40, 0.1, 0)
    colors = coloring(mask, "columns").column_colors
    together = mask.double().T @ mask.double() > 0
    same = colors[:, None] == colors
    assert not bool((together & same & ~torch.eye(40, dtype=torch.bool)).any())


@pytest.mark.parametrize("mode", HESSIAN_MODES)
def test_neighbors_differ_in_symmetric_colorings(mode):
    mask = random_symmetric(40, 0.1, 1)
    colors = coloring(mask, mode).column_colors
    same = (colors[:, None] == colors) & (colors >= 0)
    assert not bool((mask & same & ~torch.eye(40, dtype=torch.bool)).any())


def test_a_long_chain_is_solved_in_a_few_steps():
    size = 1000
    found = coloring(banded(size, 1), "acyclic")
    assert found.num_colors == 2
    assert len(found.reading.steps) <= 10  # the chain's depth of 1000 has ten binary digits
    values = matrix(banded(size, 1), symmetric=True)
    assert torch.allclose(recovered(found, values), values)


def test_unneeded_vertices_have_no_color():
    found = coloring(arrow(20, 1), "bidirectional")
    assert found.num_rows == 1 and found.num_columns == 2
    assert found.row_colors.tolist() == [0] + [-1] * 19


def test_auto_takes_the_direction_with_fewer_colors():
    wide = torch.ones(2, 9, dtype=torch.bool)
    assert coloring(wide).mode == "rows" and coloring(wide.T).mode == "columns"
    assert coloring(arrow(9, 1)).mode == "bidirectional"


@pytest.mark.parametrize("mode", [*JACOBIAN_MODES, *HESSIAN_MODES])
@pytest.mark.parametrize("size", [0, 3])
def test_a_matrix_of_zeros_needs_no_products(size, mode):
    found = coloring(torch.zeros(size, size), mode)
    assert found.num_colors == 0 and found.reading.products.numel() == 0


def test_symmetric_modes_make_the_pattern_symmetric():
    found = coloring(torch.ones(4, 4).triu(), "star")
    assert found.pattern == SparsityPattern.from_dense(torch.ones(4, 4))


def test_a_coloring_is_pickled():
    found = coloring(arrow(6, 1), "bidirectional")
    _ = found.places
    again = pickle.loads(pickle.dumps(found))
    assert again.pattern == found.pattern and again.mode == found.mode
    assert torch.equal(again.column_colors, found.column_colors)
    assert torch.equal(again.row_colors, found.row_colors)
    assert "places" not in vars(again)


def test_drawn_with_the_product_of_each_entry():
    lines = str(coloring(arrow(4, 1), "bidirectional")).splitlines()
    assert "3 (2 by columns, 1 by rows)" in lines[0]
    assert lines[1:] == ["aAAA", "ab⋅⋅", "a⋅b⋅", "a⋅⋅b"]
    assert str(coloring(arrow(3, 1), "star")).splitlines()[1:] == ["aaa", "ab⋅", "a⋅b"]


def test_drawn_as_a_pattern_where_large():
    large = coloring(banded(100, 1), "columns")
    assert str(large).splitlines()[1:] == str(large.pattern).splitlines()[1:]
    assert repr(large) == "Coloring(mode='columns', num_colors=3, shape=(100, 100), nnz=298)"


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: coloring(banded(3, 1), "both"), ValueError, "mode must be .* got 'both'"),
        (lambda: coloring(banded(3, 1), order="best"), ValueError, "order must be .* got 'best'"),
        (lambda: coloring(torch.ones(2, 3), "star"), StructureError, r"got shape \(2, 3\)"),
        (lambda: coloring(torch.ones(3)), StructureError, "two dimensions"),
        (
            lambda: (
                Coloring(
                    SparsityPattern.from_dense(torch.ones(2, 2)),
                    "columns",
                    "natural",
                    torch.zeros(2, dtype=torch.int64),
                    None,
                ).reading
            ),
            StructureError,
            r"entry \(0, 0\) can't be told",
        ),
        (
            lambda: (
                Coloring(
                    SparsityPattern.from_dense(banded(4, 3)),
                    "acyclic",
                    "natural",
                    torch.tensor([0, 1, 0, 1]),
                    None,
                ).reading
            ),
            RuntimeError,
            "not acyclic",
        ),
    ],
)
def test_invalid_arguments_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()
