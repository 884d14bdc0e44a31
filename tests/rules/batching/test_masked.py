"""Masked scatter: writes where a mask selects, in all samples at once."""

import pytest
import torch
import torch.func
from torch import Tensor
from torch.testing import assert_close

import torchlayers as tl
from tests.rules.batching.samples import values

X = values(4, 2, 3)
SOURCE = values(4, 7) + 1
MASKS = X.gt(X.median())


def test_each_sample_has_a_mask_of_its_own() -> None:
    assert len(set(MASKS.sum((1, 2)).tolist())) > 1
    expected = torch.stack(
        [x.masked_scatter(m, s) for x, m, s in zip(X, MASKS, SOURCE, strict=True)]
    )
    assert_close(tl.vmap(torch.masked_scatter)(X, MASKS, SOURCE), expected)


def test_a_mask_without_places_needs_no_source() -> None:
    nothing = torch.zeros(2, 3, dtype=torch.bool)
    assert_close(tl.vmap(lambda x, s: x.masked_scatter(nothing, s))(X, SOURCE[:, :0]), X)


def test_masked_scatter_writes_in_place() -> None:
    x = X.clone()

    def write(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
        assert x.masked_scatter_(mask, source) is x
        return x * 1

    written = tl.vmap(write)(x, MASKS, SOURCE)
    assert_close(written, tl.vmap(torch.masked_scatter)(X, MASKS, SOURCE))
    assert_close(x, written)


def test_a_source_that_is_too_short_is_refused() -> None:
    full = torch.ones(2, 3, dtype=torch.bool)
    with pytest.raises(RuntimeError, match=r"has 6 true elements .* the source has only 5"):
        tl.vmap(lambda x, s: x.masked_scatter(full, s))(X, SOURCE[:, :5])
    with pytest.raises((RuntimeError, IndexError)):
        tl.vmap(tl.vmap(lambda x, m, s: x.masked_scatter(m, s)))(
            X[None], torch.ones_like(X[None]) > 0, SOURCE[None, :, :5]
        )
    assert tl.current_stack() == ()


def test_through_two_batches_and_a_gradient() -> None:
    def total(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
        return (x.masked_scatter(mask, source) ** 2).sum()

    def nest(library: object) -> tuple[Tensor, ...]:
        both = library.grad(total, (0, 2))  # type: ignore[attr-defined]
        return library.vmap(library.vmap(both))(  # type: ignore[attr-defined]
            torch.stack([X, 2 * X]), torch.stack([MASKS, ~MASKS]), torch.stack([SOURCE, SOURCE])
        )

    found = nest(tl)
    for i, (x, mask) in enumerate(((X, MASKS), (2 * X, ~MASKS))):
        for j in range(len(X)):
            expected = torch.func.grad(total, (0, 2))(x[j], mask[j], SOURCE[j])
            for ours, theirs in zip(found, expected, strict=True):
                assert_close(ours[i, j], theirs)


@pytest.mark.parametrize("choose", [torch.combinations, lambda x: x.masked_select(X[0, 0] > 0.5)])
def test_cotangents_of_masked_select_run_without_a_loop(choose) -> None:
    """A loop over samples would warn."""

    def pulled(library: object, x: Tensor) -> Tensor:
        out, pull = library.vjp(choose, x)  # type: ignore[attr-defined]
        return pull(out * 2)[0]

    rows = values(4, 3)
    expected = torch.stack([pulled(torch.func, row) for row in rows])
    assert_close(tl.vmap(lambda x: pulled(tl, x))(rows), expected)


@pytest.mark.parametrize("index", [torch.tensor(0), torch.tensor([0])])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_index_fill_of_one_element_by_batched_values(shape, index: Tensor) -> None:
    """Here torch's batching rule writes to expanded memory."""
    x = torch.tensor(2.0).reshape(shape)

    def pulled(x: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        out, pull = tl.vjp(lambda x, v: x.index_fill(0, index, v), x, value)
        return out, *pull(out * value)

    def twice(x: Tensor, value: Tensor) -> tuple[tuple[Tensor, ...], ...]:
        return tl.jvp(pulled, (x, value), (x, value))

    many = torch.tensor([3.0, 4.0])
    found = tl.vmap(twice, in_dims=(None, 0))(x, many)
    for i, value in enumerate(many):
        for ours, single in zip(found, twice(x, value), strict=True):
            assert_close([each[i] for each in ours], list(single))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
@pytest.mark.parametrize("is_batched", [False, True])
def test_one_value_of_another_dtype_goes_where_a_mask_says(
    dtype: torch.dtype, is_batched: bool
) -> None:
    def write(x: Tensor, mask: Tensor) -> Tensor:
        y = torch.zeros(2, 3, dtype=dtype)
        y[mask] = 5 * x[0, 0]
        return y

    masks = MASKS if is_batched else MASKS[:1].expand_as(MASKS)
    expected = torch.stack([write(x, mask) for x, mask in zip(X, masks, strict=True)])
    found = tl.vmap(write, (0, 0 if is_batched else None))(X, masks if is_batched else masks[0])
    assert_close(found, expected)


@pytest.mark.parametrize("is_batched", [False, True])
def test_index_fill_counts_each_samples_places_from_behind_too(is_batched: bool) -> None:
    places = torch.tensor([[0, -1], [-2, 1], [-1, -3], [2, 2]])
    x = X if is_batched else X[0]
    fill = tl.vmap(lambda x, at, v: x.index_fill(1, at, v), (0 if is_batched else None, 0, 0))
    expected = [
        (x[i] if is_batched else x).index_fill(1, places[i], SOURCE[i, 0]) for i in range(4)
    ]
    assert_close(fill(x, places, SOURCE[:, 0]), torch.stack(expected))
