"""Views of samples, with the batch anywhere in memory: values as in a loop, and writes through
them."""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import torchlayers as tl
from tests.rules.batching.samples import values

VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "view, parted": lambda x: x.view(2, 1, 2, 2, 3),
    "view of a part": lambda x: x[:, 0].view(-1, 1, 3),
    "view as another dtype": lambda x: x.view(torch.int64),
    "view_as": lambda x: x.view_as(x),
    "view_as_complex": lambda x: torch.view_as_complex(x[..., :2]),
    "unflatten": lambda x: x.unflatten(1, (2, 2)),
    "unfold": lambda x: x.unfold(1, 2, 1),
    "as_strided": lambda x: x.as_strided((2, 3), (x.stride(0), x.stride(2))),
    "expand": lambda x: x.expand(5, 2, 4, 3),
    "expand_as": lambda x: x[:, :1].expand_as(x),
    "diagonal": lambda x: x.diagonal(0, 1, 2),
    "squeeze": lambda x: x[:1].squeeze(),
    "squeeze of one": lambda x: x[:1].squeeze(0),
    "unsqueeze": lambda x: x.unsqueeze(-2),
    "movedim": lambda x: x.movedim(0, -1),
    "permute": lambda x: x.permute(2, 0, 1),
    "swapaxes": lambda x: x.swapaxes(0, 2),
    "mT": lambda x: x.mT,
    "select": lambda x: x.select(1, -1),
    "narrow": lambda x: x.narrow(1, 1, 2),
    "slice": lambda x: x[:, ::2],
    "slice backwards": lambda x: x[..., None, 1:],
    "split": lambda x: x.split(3, 1)[1],
    "chunk": lambda x: x.chunk(2, 1)[1],
    "unbind": lambda x: x.unbind(1)[2],
    "tensor_split": lambda x: x.tensor_split((1, 2), 1)[1],
    "hsplit": lambda x: x.hsplit(2)[1],
    "real": lambda x: x.real,
    "detach": lambda x: x.detach(),
}
# Operators that accept any memory layout and copy if necessary.
ARRANGED: dict[str, Callable[[Tensor], Tensor]] = {
    "reshape": lambda x: x.reshape(-1),
    "reshape, parted": lambda x: x.reshape(4, 6),
    "flatten": lambda x: x.flatten(1),
    "ravel": torch.ravel,
    "unsafe view": lambda x: torch.ops.aten._unsafe_view(x * 1, [6, 4]),
    "contiguous and view": lambda x: x.contiguous().view(24),
    "kron": lambda x: torch.kron(x[0], x[1]),
    "kron with one sample": lambda x: torch.kron(x[0], torch.ones(2, 2, dtype=x.dtype)),
    "tensordot": lambda x: torch.tensordot(x, x, ((0, 2), (0, 2))),
    "repeat": lambda x: x.repeat(2, 1, 1),
    "pixel_shuffle": lambda x: torch.pixel_shuffle(x.movedim(1, 0), 2),
}
DIMS = (0, 1, 2, -1)


def batch(dim: int) -> Tensor:
    """Three different samples of shape (2, 4, 3)."""
    sizes = [2, 4, 3]
    sizes.insert(dim if dim >= 0 else 3, 3)
    return values(*sizes)


def by_loop(f: Callable[[Tensor], Tensor], x: Tensor, dim: int) -> Tensor:
    return torch.stack([f(sample) for sample in x.unbind(dim)])


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("name", VIEWS)
def test_a_view_is_a_samples_and_is_written_through(name: str, dim: int) -> None:
    f = VIEWS[name]
    x = batch(dim)
    if not all(map(_takes(f), x.unbind(dim))):
        pytest.skip("the samples' own layout has no such view")
    assert_close(tl.vmap(f, in_dims=dim)(x), by_loop(f, x, dim))
    if name in ("as_strided", "expand", "expand_as", "unfold"):
        return  # elements share memory

    def write(sample: Tensor) -> Tensor:
        f(sample).zero_()
        return sample * 1

    expected = by_loop(write, x.clone(), dim)
    written = x.clone()
    assert_close(tl.vmap(write, in_dims=dim)(written), expected)
    assert_close(written.movedim(dim, 0), expected)


def _takes(f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], bool]:
    def takes(sample: Tensor) -> bool:
        try:
            f(sample)
        except RuntimeError:
            return False
        return True

    return takes


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("name", ARRANGED)
def test_arranged_anew_as_by_a_loop(name: str, dim: int) -> None:
    f = ARRANGED[name]
    x = batch(dim)
    assert_close(tl.vmap(f, in_dims=dim)(x), by_loop(f, x, dim))
    twice = tl.vmap(tl.vmap(f, in_dims=dim), in_dims=-1)(torch.stack([x, x + 1], -1))
    assert_close(twice, torch.stack([by_loop(f, x, dim), by_loop(f, x + 1, dim)]))


@pytest.mark.parametrize(("left", "right"), list(itertools.product((None, *DIMS), repeat=2))[1:])
def test_kron_of_batches_anywhere_in_memory(left: int | None, right: int | None) -> None:
    x, y = (values(2, 4, 3) if dim is None else batch(dim) for dim in (left, right))

    def of(tensor: Tensor, dim: int | None, i: int) -> Tensor:
        return tensor if dim is None else tensor.select(dim, i)

    expected = torch.stack([torch.kron(of(x, left, i), of(y, right, i)) for i in range(3)])
    assert_close(tl.vmap(torch.kron, in_dims=(left, right))(x, y), expected)
