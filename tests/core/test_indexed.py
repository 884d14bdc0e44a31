"""at: reads and writes with a mode for indices that are out of bounds."""

import itertools

import pytest
import torch

import torchlayers as tl
from torchlayers.errors import CallError, DimensionError

F64 = torch.float64
X = torch.arange(2.0, 26.0, dtype=F64).view(2, 3, 4)
A, B = torch.tensor([0, 1, -1]), torch.tensor([[2], [0]])
FAR, FAR_BACK = torch.tensor([0, 5, -1, -3, -4]), torch.tensor([[2], [3], [-9]])

# Indices inside, for which torch's own indexing is the reference.
INSIDE = [
    (A,),
    (A % 2, A),
    (0,),
    (-1, 2),
    (0, A, 1),
    (slice(None), A),
    (slice(1, None), A, slice(0, 4, 2)),
    (..., A),
    (A % 2, ..., B),
    (A % 2, slice(None), B),
    (slice(None), B, A),
    (None, A % 2, None),
    (A % 2, None, B),
    (torch.tensor(1), 0, B),
    (torch.tensor(1), slice(None), torch.tensor(-1)),
    (slice(None), torch.tensor(1), A),
    (),
    (1, 2, 3),
]


@pytest.mark.parametrize("index", INSIDE)
def test_inside_it_is_torchs_indexing(index):
    right = X[index]
    for mode in ("fill", "clip"):
        assert torch.equal(tl.at(X)[index].get(mode=mode), right)
    values = torch.linspace(-1, 1, right.numel(), dtype=F64).view(right.shape)
    for mode in ("drop", "clip"):
        written = X.clone()
        written[index] = 3.0
        assert torch.equal(tl.at(X)[index].set(3, mode=mode), written)
        places = torch.arange(X.numel()).view(X.shape)[index].flatten()
        added = X.flatten().scatter_add(0, places, values.flatten()).view(X.shape)
        torch.testing.assert_close(tl.at(X)[index].add(values, mode=mode), added)


def references(mode, name, values):
    """The reads and writes one element at a time."""
    combine = {
        "set": lambda old, new: new,
        "add": lambda old, new: old + new,
        "subtract": lambda old, new: old - new,
        "multiply": lambda old, new: old * new,
        "divide": lambda old, new: old / new,
        "min": min,
        "max": max,
    }
    result = X.clone()
    for (i, j), value in zip(itertools.product(range(3), range(5)), values.flatten(), strict=True):
        row, column = int(FAR_BACK[i, 0]), int(FAR[j])
        row, column = (row + 3 if row < 0 else row), (column + 4 if column < 0 else column)
        if mode == "clip":
            row, column = min(max(row, 0), 2), min(max(column, 0), 3)
        elif not (0 <= row < 3 and 0 <= column < 4):
            continue
        result[1, row, column] = combine[name](result[1, row, column], value)
    return result


@pytest.mark.parametrize("mode", ["drop", "clip"])
@pytest.mark.parametrize("name", ["set", "add", "subtract", "multiply", "divide", "min", "max"])
def test_writes_out_of_bounds(name, mode):
    values = torch.tensor(7.0, dtype=F64) if name == "set" else torch.linspace(-9, 30, 15).double()
    values = values.expand(15).view(3, 5)
    before = X.clone()
    written = getattr(tl.at(X)[1, FAR_BACK, FAR], name)(values, mode=mode)
    torch.testing.assert_close(written, references(mode, name, values))
    assert torch.equal(X, before)


def test_reads_out_of_bounds():
    got = tl.at(X)[1, FAR_BACK, FAR]
    row = X[1, 2]
    expected = [row[0], torch.nan, row[3], row[1], row[0]]
    torch.testing.assert_close(got.get(mode="fill")[0], torch.tensor(expected), equal_nan=True)
    assert got.get(mode="fill", fill_value=-5)[1:].eq(-5).all()
    assert torch.equal(got.get(mode="clip")[0], row[[0, 3, 3, 1, 0]])
    assert torch.equal(got.get(mode="clip")[2], X[1, 0][[0, 3, 3, 1, 0]])
    assert tl.at(X)[5, :, A].get(mode="fill").isnan().all()
    assert torch.equal(tl.at(X)[5].get(mode="clip"), X[1])
    assert torch.equal(tl.at(X)[5].set(0, mode="drop"), X)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [(torch.int8, -128), (torch.uint8, 255), (torch.bool, True), (torch.int64, -(2**63))],
)
def test_integers_are_filled_with_their_extremes(dtype, value):
    filled = tl.at(torch.zeros(2, dtype=dtype))[torch.tensor([1, 2])].get(mode="fill")
    assert filled.dtype == dtype
    assert filled.tolist() == [0, value]


def test_empty_tensors():
    empty = torch.ones(0, 3)
    assert tl.at(empty)[A].get(mode="fill").isnan().all()
    assert tl.at(empty)[A].set(1.0, mode="drop").shape == (0, 3)
    assert tl.at(X)[A[:0]].get(mode="clip").shape == (0, 3, 4)


def reads_and_writes(x, i):
    y = tl.at(x)[i].add(x[: i.shape[0]].sin(), mode="drop")
    y = tl.at(y)[1 - i].multiply(y.sum(), mode="clip")
    return tl.at(y)[i + 1].get(mode="fill", fill_value=0.5) * tl.at(y)[0].max(x[1], mode="clip")[:2]


def in_torch(x, i):
    inside = (i >= -3) & (i < 3)
    y = x + torch.zeros_like(x).index_add(
        0, i.clamp(-3, 2) % 3, torch.where(inside, x[:2].sin(), 0)
    )
    factors = torch.ones_like(x)
    for place in (1 - i).clamp(-3, 2) % 3:
        factors = factors * torch.where(torch.arange(3) == place, y.sum(), 1)
    y = y * factors
    read = torch.where(i + 1 < 3, y[(i + 1).clamp(-3, 2)], 0.5)
    return read * torch.cat([torch.maximum(y[:1], x[1:2]), y[1:]])[:2]


VECTOR, PLACES = torch.tensor([0.3, -1.2, 0.7], dtype=F64), torch.tensor([[0, 5], [2, -2], [1, 1]])


def test_derivatives_and_batches():
    for transform in (
        lambda f: lambda x, i: f(x, i[0]),
        lambda f: tl.vmap(f, (None, 0)),
        lambda f: tl.vmap(tl.jacrev(f), (None, 0)),
        lambda f: tl.vmap(tl.jacfwd(f), (None, 0)),
        lambda f: tl.vmap(tl.hessian(lambda x, i: f(x, i).sum()), (None, 0)),
        lambda f: tl.compile(tl.vmap(tl.jacrev(f), (None, 0)), backend="replay"),
    ):
        torch.testing.assert_close(
            transform(reads_and_writes)(VECTOR, PLACES), transform(in_torch)(VECTOR, PLACES)
        )


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: tl.at(3), CallError, "takes a tensor, got int"),
        (lambda: tl.at(X)[0].get(mode="drop"), CallError, "mode must be 'fill' or 'clip', got 'dr"),
        (lambda: tl.at(X)[0].set(1, mode="wrap"), CallError, "mode must be 'drop' or 'clip'"),
        (lambda: tl.at(X)[X > 3].get(mode="clip"), CallError, r"a tensor of torch\.bool.*where"),
        (lambda: tl.at(X)[True].get(mode="clip"), CallError, "got bool"),
        (lambda: tl.at(X)[0, 0, 0, 0].get(mode="clip"), DimensionError, "4 parts and 0 ellipses"),
        (lambda: tl.at(X)[..., 0, ...].get(mode="clip"), DimensionError, "1 parts and 2 ellipses"),
    ],
)
def test_mistakes_are_refused(call, error, words):
    with pytest.raises(error, match=f"^torchlayers: at: .*{words}"):
        call()
