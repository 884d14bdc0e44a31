"""In-place operators for which torch has no batching rule; a loop over samples would warn."""

from collections.abc import Callable

import pytest
import torch
import torch.func
from torch import Tensor
from torch.testing import assert_close

import torchlayers as tl
from tests.rules.batching.samples import ROWS, values
from torchlayers.errors import BatchedOperatorError

X, Y, Z = values(4, 2, 3), values(4, 2, 3) + 1, values(4, 3)

WRITES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "addcmul_": lambda x, y, z: x.addcmul_(y, z, value=0.5),
    "addcdiv_": lambda x, y, z: x.addcdiv_(z, y),
    "lerp_": lambda x, y, z: x.lerp_(y, 0.3),
    "lerp_ by weights": lambda x, y, z: x.lerp_(y, z),
    "clamp_": lambda x, y, z: x.clamp_(0.3, 0.7),
    "clamp_ to tensors": lambda x, y, z: x.clamp_(z, y),
    "fill_": lambda x, y, z: x.fill_(z.sum()),
    "fill_ by a value of each": lambda x, y, z: x.fill_(y[1, 0]),
    "fill_ by its own": lambda x, y, z: x.fill_(x[1, 2]),
    "fill_ a part": lambda x, y, z: (x, x[:, 1].fill_(y[0, 0]))[0],
    "fill_ an element": lambda x, y, z: (x, x[1, 2].fill_(y[0, 0]))[0],
    "fill_ by another dtype": lambda x, y, z: x.fill_((10 * y[0, 0]).to(torch.int64)),
    "fmod_": lambda x, y, z: x.fmod_(z),
    "hypot_": lambda x, y, z: x.hypot_(y),
    "gt_": lambda x, y, z: x.gt_(z),
    "xlogy_": lambda x, y, z: x.xlogy_(y),
    "cumsum_": lambda x, y, z: x.cumsum_(-1),
    "tril_": lambda x, y, z: x.tril_(),
    "scatter_": lambda x, y, z: x.scatter_(1, ROWS, y),
    "masked_fill_": lambda x, y, z: x.masked_fill_(x > z, z.sum()),
    "masked_scatter_": lambda x, y, z: x.masked_scatter_(x > 0.5, y),
}


def test_torch_has_no_rule_of_them() -> None:
    """Otherwise torch's rule would be used."""
    with pytest.warns(UserWarning, match="batching rule for aten::lerp_"):
        torch.func.vmap(lambda x, y: x.lerp_(y, 0.3))(X.clone(), Y)


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_writes_agree_with_a_loop(write: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    def written(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        assert write(x, y, z) is x
        return x

    expected = torch.stack([write(*each) for each in zip(X.clone(), Y, Z, strict=True)])
    x = X.clone()
    assert_close(tl.vmap(written)(x, Y, Z), expected)
    assert_close(x, expected)
    columns = X.movedim(0, -1).clone()
    assert_close(tl.vmap(written, in_dims=(-1, 0, 0))(columns, Y, Z), expected)
    assert_close(columns.movedim(-1, 0), expected)
    twice = tl.vmap(tl.vmap(written, in_dims=(0, 0, None)), in_dims=(0, 0, None))
    assert_close(
        twice(torch.stack([X, Y]), torch.stack([Y, X]), Z[0]),
        torch.stack(
            [
                torch.stack([write(a.clone(), b, Z[0]) for a, b in zip(*pair, strict=True)])
                for pair in ((X, Y), (Y, X))
            ]
        ),
    )


@pytest.mark.parametrize("name", ["addcmul_", "lerp_ by weights", "clamp_", "masked_fill_"])
def test_in_place_operators_are_differentiated(name: str) -> None:
    write = WRITES[name]

    def total(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        return (write(x * 1, y, z) ** 2).sum()

    each = [torch.func.grad(total, (0, 1, 2))(*given) for given in zip(X, Y, Z, strict=True)]
    expected = tuple(torch.stack(parts) for parts in zip(*each, strict=True))
    inside = tl.vmap(tl.grad(total, (0, 1, 2)))(X, Y, Z)
    around = tl.grad(lambda *given: tl.vmap(total)(*given).sum(), (0, 1, 2))(X, Y, Z)
    for found in (inside, around):
        for ours, theirs in zip(found, expected, strict=True):
            assert_close(ours, theirs)


def test_mismatched_shapes_are_rejected() -> None:
    x = torch.ones(4, 3, dtype=torch.int64)
    with pytest.raises(RuntimeError, match="can't be cast"):
        tl.vmap(lambda x, y: x.fmod_(y))(x, torch.ones(4, 3))
    with pytest.raises(RuntimeError):
        tl.vmap(lambda x, y: x.fmod_(y))(torch.ones(4, 3), torch.ones(4, 2, 3))
    with pytest.raises(RuntimeError, match="can't write a batched value"):
        tl.vmap(lambda y: Z.fmod_(y))(torch.ones(4, 4, 3))
    assert tl.current_stack() == ()


@pytest.mark.filterwarnings("ignore:There is a performance drop", "ignore:index_reduce")
def test_an_operator_that_is_looped_over_is_differentiated() -> None:
    """In a loop, autograd takes the write to a sample for one to what other samples have saved."""

    def total(x: Tensor, y: Tensor) -> Tensor:
        return ((x * 1).index_reduce_(1, torch.tensor([0, 2]), y[:, :2], "prod") ** 2).sum()

    def of_all(x: Tensor, y: Tensor) -> Tensor:
        return tl.vmap(total)(x, y).sum()

    each = [torch.func.grad(total, (0, 1))(*given) for given in zip(X, Y, strict=True)]
    expected = tuple(torch.stack(parts) for parts in zip(*each, strict=True))
    assert_close(tl.grad(of_all, (0, 1))(X, Y), expected)


# By strides of a contiguous sample, and the batch dimensions with which these would show other
# samples.
CONTIGUOUS: dict[str, tuple[Callable[[Tensor], Tensor], set[int]]] = {
    "as_strided": (lambda x: x.as_strided((3, 2), (2, 1)), {1, 2}),
    "as_strided_": (lambda x: x.as_strided_((3, 2), (2, 1)), {1, 2}),
    "as_strided_copy": (lambda x: torch.as_strided_copy(x, (3, 2), (2, 1)), {1, 2}),
    "of a row": (lambda x: x[1].as_strided((2,), (1,)), {2}),
    "from an offset": (lambda x: x.as_strided((2,), (1,), x.storage_offset() + 1), {2}),
    "of one element": (lambda x: x.as_strided((1, 1), (3, 1)), set()),
    "of none": (lambda x: x.as_strided((0, 2), (3, 1)), set()),
    "resize_": (tl.functionalize(lambda x: x.clone().resize_(3, 2)), {1, 2}),
}


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("name", CONTIGUOUS)
def test_a_view_shows_no_other_sample(name: str, dim: int) -> None:
    f, refused = CONTIGUOUS[name]
    expected = torch.stack([f(x.clone()) for x in X])
    x = X.movedim(0, dim).contiguous()
    if dim in refused:
        with pytest.raises(BatchedOperatorError, match=r"show elements of several.*x\.stride"):
            tl.vmap(f, in_dims=dim)(x.clone())
        assert_close(tl.vmap(lambda x: f(x.contiguous()), in_dims=dim)(x), expected)
    else:
        assert_close(tl.vmap(f, in_dims=dim)(x.clone()), expected)


def test_a_batch_of_one_sample_has_no_others() -> None:
    x = X[:1].movedim(0, -1).contiguous()
    found = tl.vmap(lambda x: x[:, ::2].as_strided((2,), (1,)), in_dims=-1)(x)
    assert_close(found[0], X[0, 0, :2])


def test_a_view_does_not_exceed_its_sample() -> None:
    with pytest.raises(BatchedOperatorError, match="the view exceeds the sample"):
        tl.vmap(lambda x: x.as_strided((7,), (1,)))(X)


def test_a_window_is_viewed_by_its_own_strides() -> None:
    windows = values(6).unfold(0, 4, 1)
    viewed = tl.vmap(lambda x: x.as_strided((3, 2), (1, 1)))(windows)
    assert_close(viewed, torch.stack([x.unfold(0, 2, 1) for x in windows]))
    columns = values(6, 5).unfold(0, 3, 1)[..., ::2, :]  # with gaps
    viewed = tl.vmap(lambda x: x.as_strided((2, 3, 2), (0, *x.stride())))(columns)
    assert_close(viewed, torch.stack([columns[..., :2]] * 2, 1))
