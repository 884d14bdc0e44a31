"""Gradients of as_strided and as_strided_scatter, for any location of the part in memory."""

import pytest
import torch
from torch import Tensor

import torchlayers as tl
from tests.rules.batching.samples import values

# The sizes, strides and storage offset of a tensor, and of the part that is viewed or written.
PARTS = {
    "inside": (((4, 5), (5, 1), 0), ((2, 3), (5, 1), 2)),
    "at the end": (((6,), (1,), 0), ((3,), (2,), 1)),
    "of a transposed tensor": (((4, 5), (1, 4), 0), ((2, 3), (1, 4), 2)),
    "in front": (((6,), (1,), 4), ((3,), (1,), 2)),
    "past the end": (((6,), (1,), 2), ((3,), (2,), 4)),
    "beyond the end": (((6,), (1,), 2), ((3,), (1,), 9)),
    "between the elements": (((4,), (2,), 0), ((3,), (2,), 1)),
    "around an expanded tensor": (((3, 2), (1, 0), 1), ((5,), (1,), 0)),
}


@pytest.mark.parametrize("name", PARTS)
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    (sizes, strides, offset), part = PARTS[name]
    memory, source = values(24), values(*part[0]) + 3
    weights = values(*sizes).cos()

    def of_memory(memory: Tensor, source: Tensor) -> Tensor:
        x = memory.as_strided(sizes, strides, offset)
        return (torch.as_strided_scatter(x, source, *part) * weights).sum()

    def difference(place: int, x: Tensor) -> Tensor:
        steps = 1e-6 * torch.eye(x.numel(), dtype=x.dtype).reshape(-1, *x.shape)
        given = [memory, source]

        def at(moved: Tensor) -> Tensor:
            return of_memory(*given[:place], moved, *given[place + 1 :])

        return torch.stack([(at(x + step) - at(x - step)) / 2e-6 for step in steps]).view_as(x)

    def of_tensor(x: Tensor, source: Tensor) -> Tensor:
        return (torch.as_strided_scatter(x, source, *part) * weights).sum()

    x = memory.as_strided(sizes, strides, offset)
    by_x, by_source = tl.grad(of_tensor, (0, 1))(x, source)
    spread = torch.zeros_like(memory)
    index = torch.arange(24).as_strided(sizes, strides, offset)
    spread.index_add_(0, index.flatten(), by_x.flatten())
    torch.testing.assert_close(spread, difference(0, memory), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(by_source, difference(1, source), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", PARTS)
def test_a_view_of_a_view_has_the_gradient_of_their_memory(name: str) -> None:
    (sizes, strides, offset), part = PARTS[name]
    memory = values(24)
    index = torch.arange(24).as_strided(*part)

    def by_strides(memory: Tensor) -> Tensor:
        x = (memory * memory).as_strided(sizes, strides, offset)
        return (x.as_strided(*part) ** 2).sum()

    def by_index(memory: Tensor) -> Tensor:
        return ((memory * memory)[index] ** 2).sum()

    torch.testing.assert_close(tl.grad(by_strides)(memory), tl.grad(by_index)(memory))
    torch.testing.assert_close(tl.hessian(by_strides)(memory), tl.hessian(by_index)(memory))
    samples = torch.stack([memory, memory + 1])
    each = tl.vmap(tl.grad(by_strides))(samples)
    torch.testing.assert_close(each, tl.vmap(tl.grad(by_index))(samples))


def test_a_view_of_conjugated_memory() -> None:
    def total(x: Tensor) -> Tensor:
        z = torch.complex(x, 2 * x).conj()[1:]
        return z.as_strided((2,), (1,)).imag.sum()

    x = values(4)
    expected = torch.tensor([0.0, -2.0, -2.0, 0.0], dtype=x.dtype)
    torch.testing.assert_close(tl.grad(total)(x), expected)
