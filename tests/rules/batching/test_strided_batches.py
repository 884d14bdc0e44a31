"""Derivatives of linear algebra over batches with any memory layout.

Some operators return factors of the transpose if their matrix is laid out that way, and the strides
of a batched matrix do not determine the layout of every sample.
"""

from collections.abc import Callable
from types import ModuleType

import pytest
import torch
import torch.func
from torch import Tensor, linalg
from torch.testing import assert_close

import torchlayers as tl

Function = Callable[[Tensor], Tensor]


def random(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.rand(*shape, generator=generator, dtype=torch.float64)


EYE = torch.eye(3, dtype=torch.float64)
BATCH = random(4, 3, 3) + EYE
WEIGHT = random(3, 3)
RIGHT = random(3, 2)

FUNCTIONS: dict[str, Function] = {
    "det": linalg.det,
    "slogdet": lambda x: linalg.slogdet(x)[1],
    "logdet": lambda x: torch.logdet(x @ x.mT),
    "solve": lambda x: (linalg.solve(x, RIGHT) ** 2).sum(),
    "solve, right": lambda x: (linalg.solve(x, RIGHT.mT, left=False) ** 2).sum(),
    "inv": lambda x: (linalg.inv(x) * WEIGHT).sum(),
    "pinv": lambda x: (linalg.pinv(x) * WEIGHT).sum(),
    "cholesky": lambda x: (linalg.cholesky(x @ x.mT + EYE) * WEIGHT).sum(),
    "cholesky, upper": lambda x: (linalg.cholesky(x @ x.mT + EYE, upper=True) * WEIGHT).sum(),
    "lu_factor": lambda x: (linalg.lu_factor(x)[0] * WEIGHT).sum(),
    "qr": lambda x: (linalg.qr(x)[1] * WEIGHT).sum(),
    "svdvals": lambda x: (linalg.svdvals(x) ** 3).sum(),
    "eigvalsh": lambda x: (linalg.eigvalsh(x @ x.mT) ** 2).sum(),
    "lstsq": lambda x: (linalg.lstsq(x, RIGHT)[0] ** 2).sum(),
    "matrix_exp": lambda x: (linalg.matrix_exp(x) * WEIGHT).sum(),
}
LAYOUTS = {
    "every other": BATCH[::2],
    "expanded": BATCH[0].expand(2, 3, 3),
    "batch last": BATCH.permute(1, 2, 0).contiguous().permute(2, 0, 1),
    "batch in the middle": BATCH.transpose(0, 1).contiguous().transpose(0, 1),
    "by columns": BATCH.mT,
    "every other row": random(4, 6, 3)[:, ::2] + EYE,
}


def gradient(library: ModuleType, f: Function) -> Function:
    return library.grad(f)


def slope(library: ModuleType, f: Function) -> Function:
    return lambda x: library.jvp(f, (x,), (x * WEIGHT,))[1]


def curvature(library: ModuleType, f: Function) -> Function:
    return library.grad(lambda x: (library.grad(f)(x) * WEIGHT).sum())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("derivative", [gradient, slope, curvature], ids=lambda d: d.__name__)
def test_as_sample_by_sample(derivative, name: str, layout: str) -> None:
    f, batch = FUNCTIONS[name], LAYOUTS[layout]
    expected = torch.stack([derivative(torch.func, f)(sample.clone()) for sample in batch])
    assert_close(tl.vmap(derivative(tl, f))(batch), expected, rtol=1e-7, atol=1e-8)


def test_an_expanded_batch_has_a_tangent_of_its_own() -> None:
    x = BATCH[0].expand(2, 3, 3)
    tangents = tl.vmap(lambda x: tl.jvp(torch.sin, (x,), (WEIGHT,))[1])(x)
    assert_close(tangents, x.cos() * WEIGHT)


def test_attention_of_samples_whose_rows_are_parted() -> None:
    batches = [random(1, 2, 3, 4, 5), random(1, 2, 3, 4, 5).sin(), random(1, 2, 3, 4, 5).exp()]

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        result: Tensor = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)[0]
        return result

    samples = zip(*(x.movedim(-1, 0).contiguous() for x in batches), strict=True)
    expected = torch.stack([attention(*sample) for sample in samples])
    assert_close(tl.vmap(attention, in_dims=-1)(*batches), expected)
