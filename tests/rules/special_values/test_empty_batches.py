"""Gradients of operators whose kernels in torch divide by the number of samples."""

import pytest
import torch

import torchlayers as tl


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 3, 2, 2), (2, 3, 0)])
def test_native_batch_norm(shape: tuple[int, ...]) -> None:
    """torch's own gradient ends the process."""
    x = torch.zeros(shape, dtype=torch.float64)
    zeros = torch.zeros(shape[1], dtype=torch.float64)

    def f(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        result = torch.native_batch_norm(x, weight, None, zeros, zeros + 1, False, 0.1, 1e-5)
        return result[0].sum()

    by_x, by_weight = tl.grad(f, argnums=(0, 1))(x, zeros + 2)
    assert by_x.shape == shape
    assert torch.equal(by_weight, zeros)
    assert tl.vmap(tl.grad(f), in_dims=(0, None))(x[None], zeros + 2).shape == (1, *shape)
