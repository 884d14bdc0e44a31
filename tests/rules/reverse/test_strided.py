"""as_strided_scatter's gradients for any location of the part in memory, by finite differences."""

import pytest
import torch
from torch import Tensor

import torchlayers as tl
from tests.rules.batching.samples import values

# The sizes, strides and storage offset of a tensor, and of the part that is written.
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
