"""The survey: 60 operators one by one, on tensors so small that only overhead is timed.

Operands other than the input are constants. The input has 4 elements: a vector, or a matrix of
2 x 2; images are of 1 x 2 x 6 x 6.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.chains import BATCH, Workload

CALLS = 8


Random = Callable[..., Tensor]
Operators = dict[str, Callable[[Tensor], Any]]
Repeat = Callable[[Callable[[Tensor], Tensor]], Callable[[Tensor], Any]]


def last(operator: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Calls the operator eight times, and returns the last result."""
    return lambda x: every(operator)(x)[-1]


def every(operator: Callable[[Tensor], Tensor]) -> Callable[[Tensor], tuple[Tensor, ...]]:
    """Calls the operator eight times, and returns all results."""
    return lambda x: tuple(operator(x) for _ in range(CALLS))


def survey(repeat: Repeat = last) -> list[Workload]:
    """Each of the operators, called eight times in one transform."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return 0.2 + 0.6 * torch.rand(*shape, generator=generator)

    vector, matrix, image = random(4), random(2, 2) + torch.eye(2), random(1, 2, 6, 6)
    of_kind = [
        (vector, _of_vectors(random)),
        (matrix, _of_matrices(random)),
        (matrix + matrix.mT, _of_symmetric_matrices()),
        (matrix.unsqueeze(0), _of_batches(random)),
        (image, _of_images(random)),
    ]
    return [
        Workload(name, repeat(operator), _batch(x), divided_by=CALLS)
        for x, operators in of_kind
        for name, operator in operators.items()
    ]


def _of_vectors(random: Random) -> Operators:
    other, matrix, bias = random(4), random(4, 4), random(4)
    mask = torch.tensor([True, False, True, False])
    places = torch.tensor([2, 0, 3, 1])
    return {
        "x + 0.5": lambda x: x + 0.5,
        "x / 2": lambda x: x / 2,
        "x * w": lambda x: x * other,
        "x * x": lambda x: x * x,
        "pow": lambda x: x**3,
        "sin": torch.sin,
        "relu": torch.relu,
        "gelu": F.gelu,
        "softplus": F.softplus,
        "softmax": lambda x: x.softmax(-1),
        "logsumexp": lambda x: x.logsumexp(-1),
        "layer_norm": lambda x: F.layer_norm(x, (4,)),
        "sum": torch.sum,
        "mean": torch.mean,
        "var": torch.var,
        "std": torch.std,
        "norm": lambda x: torch.linalg.vector_norm(x),
        "max": torch.max,
        "cumsum": lambda x: x.cumsum(-1),
        "sort": lambda x: x.sort().values,
        "dot": lambda x: torch.dot(x, other),
        "outer": lambda x: torch.outer(x, other),
        "mv": lambda x: torch.mv(matrix, x),
        "vector @ matrix": lambda x: x @ matrix,
        "linear": lambda x: F.linear(x, matrix, bias),
        "einsum i,ij->j": lambda x: torch.einsum("i,ij->j", x, matrix),
        "where": lambda x: torch.where(mask, x, other),
        "cat": lambda x: torch.cat((x, other)),
        "stack": lambda x: torch.stack((x, other)),
        "reshape": lambda x: x.reshape(2, 2),
        "clone": torch.clone,
        "flip": lambda x: x.flip(0),
        "roll": lambda x: x.roll(1),
        "pad": lambda x: F.pad(x, (1, 1)),
        "x[1:3]": lambda x: x[1:3],
        "x[2]": lambda x: x[2],
        "x[places]": lambda x: x[places],
        "gather": lambda x: x.gather(0, places),
        "scatter": lambda x: other.scatter(0, places, x),
        "mse_loss": lambda x: F.mse_loss(x, other),
        "binary_cross_entropy": lambda x: F.binary_cross_entropy(x, other),
    }


def _of_matrices(random: Random) -> Operators:
    other, system = random(2, 2), random(2, 2) + torch.eye(2)
    classes = torch.tensor([1, 0])
    return {
        "triu": torch.triu,
        "einsum ij,jk->ik": lambda x: torch.einsum("ij,jk->ik", x, other),
        "embedding": lambda x: F.embedding(classes, x),
        "cross_entropy": lambda x: F.cross_entropy(x, classes),
        "attention": lambda x: F.scaled_dot_product_attention(x, other, other),
        "cdist": lambda x: torch.cdist(x, other),
        "det": torch.linalg.det,
        "inverse": torch.linalg.inv,
        "solve": lambda x: torch.linalg.solve(system, x),
        "svd": torch.linalg.svdvals,
        "matrix_exp": torch.linalg.matrix_exp,
    }


def _of_symmetric_matrices() -> Operators:
    return {
        "cholesky": torch.linalg.cholesky,
        "eigh": torch.linalg.eigvalsh,
    }


def _of_batches(random: Random) -> Operators:
    other = random(1, 2, 2)
    return {"bmm": lambda x: torch.bmm(x, other)}


def _of_images(random: Random) -> Operators:
    kernel, weight, bias = random(2, 2, 3, 3), random(2), random(2)
    return {
        "conv2d": lambda x: F.conv2d(x, kernel, bias),
        "max_pool2d": lambda x: F.max_pool2d(x, 2),
        "interpolate": lambda x: F.interpolate(x, scale_factor=2),
        "batch_norm": lambda x: F.batch_norm(x, None, None, weight, bias, training=True),
        "group_norm": lambda x: F.group_norm(x, 2, weight, bias),
    }


def _batch(x: Tensor) -> Tensor:
    return x.expand(BATCH, *x.shape).contiguous()
