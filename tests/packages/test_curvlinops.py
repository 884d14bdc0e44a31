"""curvlinops' linear operators, which use torch.func's grad, jvp, vjp and jacrev."""

import pytest
import torch
from torch import nn

from tests.packages import agree_in, package

curvlinops = package("curvlinops")

torch.manual_seed(0)
MODEL = nn.Sequential(nn.Linear(3, 4), nn.Sigmoid(), nn.Linear(4, 2)).double()
DATA = [(torch.rand(5, 3).double(), torch.rand(5, 2).double()) for _ in range(2)]
LABELS = [(x, torch.randint(2, (len(x),))) for x, _ in DATA]

OPERATORS = {
    "Hessian": curvlinops.HessianLinearOperator,
    "generalised Gauss-Newton": curvlinops.GGNLinearOperator,
    "empirical Fisher": curvlinops.EFLinearOperator,
}


def columns(operator):
    matrix = operator @ torch.eye(operator.shape[1], dtype=torch.float64)
    return torch.as_tensor(matrix).detach()


@pytest.mark.parametrize("kind", OPERATORS)
@pytest.mark.parametrize(
    ("loss", "data"),
    [(nn.MSELoss(), DATA), (nn.CrossEntropyLoss(), LABELS)],
    ids=["squares", "cross entropy"],
)
def test_a_curvature_matrix(kind, loss, data):
    params = list(MODEL.parameters())
    agree_in(curvlinops)(lambda: columns(OPERATORS[kind](MODEL, loss, params, data)))


@pytest.mark.parametrize("kind", ["JacobianLinearOperator", "TransposedJacobianLinearOperator"])
def test_a_jacobian(kind):
    params = list(MODEL.parameters())
    agree_in(curvlinops)(lambda: columns(getattr(curvlinops, kind)(MODEL, params, DATA)))
