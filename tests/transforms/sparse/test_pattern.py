"""Sparsity patterns: how they are made, compared, drawn and kept."""

import pickle

import numpy
import pytest
import scipy.sparse
import torch

from torchlayers.errors import StructureError
from torchlayers.transforms.sparse.pattern import SparsityPattern, as_pattern

# torch warns once per process.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse ... tensor support is in beta state"),
    pytest.mark.filterwarnings("ignore:Sparse invariant checks"),
]

MASK = torch.tensor([[1, 0, 2, 0], [0, 0, 0, 0], [0, 3, 0, 4]], dtype=torch.float64)
SOURCES = {
    "dense": lambda: MASK,
    "bool": lambda: MASK.bool(),
    "numpy": lambda: MASK.numpy(),
    "list": lambda: MASK.tolist(),
    "coo": lambda: MASK.to_sparse(),
    "csr": lambda: MASK.to_sparse_csr(),
    "csc": lambda: MASK.to_sparse_csc(),
    "scipy coo": lambda: scipy.sparse.coo_matrix(MASK.numpy()),
    "scipy csr": lambda: scipy.sparse.csr_array(MASK.numpy()),
    "pattern": lambda: SparsityPattern.from_dense(MASK),
}


def random_mask(height, width, density=0.2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(height, width, generator=generator) < density


@pytest.mark.parametrize("source", SOURCES)
def test_every_source_gives_the_entries_in_order(source):
    pattern = as_pattern(SOURCES[source]())
    assert pattern.rows.tolist() == [0, 0, 2, 2]
    assert pattern.cols.tolist() == [0, 2, 1, 3]
    assert pattern.shape == (3, 4) and pattern.nnz == 4 and pattern.density == 4 / 12
    assert torch.equal(pattern.to_dense(), MASK.bool())


@pytest.mark.parametrize("layout", ["bsr", "bsc"])
def test_blocks_are_entries_as_a_whole(layout):
    blocks = torch.zeros(4, 6)
    blocks[2, 3] = 1
    pattern = as_pattern(getattr(blocks, f"to_sparse_{layout}")((2, 3)))
    expected = torch.zeros(4, 6, dtype=torch.bool)
    expected[2:4, 3:6] = True
    assert torch.equal(pattern.to_dense(), expected)


def test_stored_zeros_are_entries():
    stored = torch.sparse_coo_tensor([[0, 1], [1, 0]], [0.0, 0.0], (2, 2))
    assert as_pattern(stored).nnz == as_pattern(stored.to_sparse_csr()).nnz == 2


def test_entries_are_sorted_and_unique():
    pattern = SparsityPattern.from_coo([2, 0, 2, 0], [1, 3, 1, 0], (3, 4))
    assert pattern.rows.tolist() == [0, 0, 2] and pattern.cols.tolist() == [0, 3, 1]


def test_row_starts_are_those_of_csr():
    mask = random_mask(9, 7)
    pattern = SparsityPattern.from_dense(mask)
    assert torch.equal(pattern.row_starts, mask.to_sparse_csr().crow_indices())
    assert torch.equal(pattern.to_sparse(layout="csr").to_dense(), mask)
    assert torch.equal(pattern.to_sparse().to_dense(), mask)


def test_transposing_uniting_and_comparing():
    a, b = (random_mask(6, 5, seed=seed) for seed in (1, 2))
    of_a, of_b = SparsityPattern.from_dense(a), SparsityPattern.from_dense(b)
    assert torch.equal(of_a.T.to_dense(), a.T)
    assert of_a | of_b == SparsityPattern.from_dense(a | b)
    assert of_a.issubset(of_a | of_b) and not (of_a | of_b).issubset(of_a)
    assert of_a != of_b and of_a == of_a.T.T and hash(of_a) == hash(of_a.T.T)
    assert SparsityPattern.from_dense(torch.ones(2, 3)) != SparsityPattern.from_dense(
        torch.ones(3, 2)
    )


def test_union_keeps_the_unknown_operators():
    one = SparsityPattern.from_coo([0], [0], (1, 1), ("a", "b"))
    other = SparsityPattern.from_coo([], [], (1, 1), ("b", "c"))
    assert (one | other).unknown == ("a", "b", "c")
    assert "unknown" in repr(one)


def test_symmetry():
    mask = random_mask(6, 6)
    assert SparsityPattern.from_dense(mask | mask.T).is_symmetric
    assert not SparsityPattern.from_dense(mask).is_symmetric
    assert not SparsityPattern.from_dense(torch.ones(2, 3)).is_symmetric


def test_pickled():
    pattern = SparsityPattern.from_coo([0, 1], [1, 0], (2, 2), ("aten::x",))
    again = pickle.loads(pickle.dumps(pattern))
    assert again == pattern and again.unknown == pattern.unknown


def test_drawn_entry_by_entry_where_small():
    assert str(SparsityPattern.from_dense(MASK)).splitlines()[1:] == ["●⋅●⋅", "⋅⋅⋅⋅", "⋅●⋅●"]
    assert str(SparsityPattern.from_dense(torch.zeros(0, 4))).splitlines()[1:] == []


def test_drawn_to_scale_where_large():
    lines = str(SparsityPattern.from_dense(torch.eye(10_000))).splitlines()[1:]
    assert len(lines) == 16 and {len(line) for line in lines} == {32}
    for i, line in enumerate(lines):  # the diagonal, and nothing else
        assert all(mark != "\u2800" for mark in line[2 * i : 2 * i + 2])
        assert set(line[: 2 * i] + line[2 * i + 2 :]) <= {"\u2800"}


def test_a_scaled_drawing_shows_each_entry():
    for height, width in [(17, 3), (3, 41), (1, 1000), (1000, 1), (65, 81), (129, 7)]:
        corner = SparsityPattern.from_coo([height - 1], [width - 1], (height, width))
        lines = str(corner).splitlines()[1:]
        assert sum(mark != "\u2800" for line in lines for mark in line) == 1
        assert len(lines) <= 16 and max(map(len, lines)) <= 40
        assert lines[-1][-1] != "\u2800"


def test_it_is_immutable():
    with pytest.raises(AttributeError):
        SparsityPattern.from_dense(MASK).shape = (1, 1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SparsityPattern.from_coo([0], [0, 1], (2, 2)), "one element per entry"),
        (lambda: SparsityPattern.from_coo([0, 2], [0, 1], (2, 2)), r"\(2, 1\) is outside"),
        (lambda: SparsityPattern.from_coo([0], [-1], (2, 2)), r"\(0, -1\) is outside"),
        (lambda: as_pattern(torch.ones(2, 2, 2)), r"got shape \(2, 2, 2\)"),
        (lambda: as_pattern(numpy.ones(3)), r"got shape \(3,\)"),
        (lambda: SparsityPattern.from_sparse(torch.ones(2, 2)), "expected a sparse matrix"),
        (lambda: as_pattern(MASK) | as_pattern(MASK.T), "one shape"),
        (lambda: as_pattern(MASK).issubset(as_pattern(MASK.T)), "one shape"),
    ],
)
def test_invalid_patterns_are_refused(make, message):
    with pytest.raises(StructureError, match=message):
        make()


def test_unknown_layout_is_refused():
    with pytest.raises(ValueError, match="'coo' or 'csr', got 'bsr'"):
        as_pattern(MASK).to_sparse(layout="bsr")
