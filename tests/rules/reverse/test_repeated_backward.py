"""Second derivatives that plain autograd lacks, or that op_db's samples don't cover."""

import pytest
import torch
import torch.nn.functional as F

import torchlayers as tl
from tests.rules.forward.samples import values
from tests.support.derivatives import central_difference, cotangents_of, ours, pairing, tangents_of

ZEROS = torch.tensor([0.0, 2.0, 3.0, 0.0, 0.0, 1.5], dtype=torch.float64)
LENGTHS = torch.tensor([3, 3])
REDUCTIONS = ("sum", "mean", "max", "min", "prod")
ORDERS = (0.5, 1.0, 1.5, 2.0, 3.0, torch.inf)


def least_squares(u, v, b):
    """A least-squares problem with a matrix of rank two."""
    return torch.linalg.lstsq(u @ v, b, rcond=1e-6, driver="gelsd").solution


CASES = {
    f"segment_reduce, {reduce}": (
        lambda x, reduce=reduce: torch.segment_reduce(x, reduce, lengths=LENGTHS, initial=0.5),
        [values(6, 2)],
    )
    for reduce in REDUCTIONS
}
CASES |= {
    "segment_reduce, zeros": (lambda x: torch.segment_reduce(x, "prod", lengths=LENGTHS), [ZEROS]),
    "segment_reduce, offsets": (
        lambda x: torch.segment_reduce(x, "prod", offsets=torch.tensor([1, 3, 5])),
        [values(6, 2)],
    ),
    "lstsq, rank two": (least_squares, [values(5, 2), values(2, 3), values(5, 2)]),
    "householder_product, a tau of zero": (
        torch.linalg.householder_product,
        [values(4, 3), torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64)],
    ),
}
CASES |= {
    f"cdist, p={p}": (lambda x, y, p=p: torch.cdist(x, y, p), [values(3, 2), values(4, 2) * 1.1])
    for p in ORDERS
}
CASES |= {f"pdist, p={p}": (lambda x, p=p: F.pdist(x, p), [values(4, 3)]) for p in ORDERS}


@pytest.mark.parametrize(("f", "primals"), CASES.values(), ids=CASES.keys())
def test_second_derivatives_are_differences_of_the_first(f, primals):
    cotangents = cotangents_of([f(*primals)])
    tangents = tangents_of(*primals)

    def gradients(*primals):
        return ours(lambda *inputs: [f(*inputs)], primals, cotangents)

    expected = central_difference(gradients, primals, tangents, 1e-6)
    _, pushed = tl.jvp(gradients, tuple(primals), tuple(tangents))
    torch.testing.assert_close(list(pushed), list(expected), rtol=1e-5, atol=1e-5)
    weights = cotangents_of(primals, seed=6)
    pulled = ours(gradients, primals, weights)
    torch.testing.assert_close(
        pairing(pulled, tangents), pairing(weights, expected), rtol=1e-5, atol=1e-5
    )


def test_logcumsumexp_of_nothing_has_a_gradient_of_zero():
    """torch gives nan."""
    x = torch.tensor([-torch.inf, -torch.inf, 1.0, 2.0], dtype=torch.float64)

    def f(x):
        return x.logcumsumexp(0)[1:].exp().sum()

    expected = torch.tensor([0.0, 0.0, 2 * torch.e, torch.e**2], dtype=torch.float64)
    torch.testing.assert_close(tl.grad(f)(x), expected)
    torch.testing.assert_close(tl.hessian(f)(x), expected.diag())
