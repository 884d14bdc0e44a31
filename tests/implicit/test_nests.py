"""Every problem in every nest of transforms, against the same nest around unrolled iterations."""

import pytest
import torch

import torchlayers as tl
from tests.implicit.problems import PROBLEMS, N


def a_sum(f):
    weights = torch.tensor([1.0, -0.5, 2.0], dtype=torch.float64)
    return lambda a: (weights * f(a)).sum()


def a_jvp(f):
    v = torch.tensor([0.3, 1.0, -0.7], dtype=torch.float64)
    return lambda a: tl.jvp(f, (a,), (v,))[1]


def a_grad(f):
    return tl.grad(a_sum(f))


def batched(f):
    """f on a batch made of the argument, and reduced."""
    scales = torch.tensor([0.5, 1.0, -1.5, 2.0], dtype=torch.float64)
    return lambda a: tl.vmap(lambda s: f(s * a))(scales).sum(0)


def by_autograd(f):
    """The gradient by plain autograd, twice."""

    def of(a):
        a = a.detach().requires_grad_()
        (g,) = torch.autograd.grad(a_sum(f)(a), a, create_graph=True)
        (h,) = torch.autograd.grad((g * g).sum(), a, create_graph=True)
        return g.detach() + h.detach()

    return of


NESTS = {
    "value": lambda f: f,
    "jvp": a_jvp,
    "grad": a_grad,
    "jacrev": tl.jacrev,
    "jacfwd": tl.jacfwd,
    "hessian": lambda f: tl.hessian(a_sum(f)),
    "jacrev_jacrev": lambda f: tl.jacrev(tl.jacrev(f)),
    "jvp_jvp": lambda f: a_jvp(a_jvp(f)),
    "jvp_grad": lambda f: a_jvp(a_grad(f)),
    "grad_jvp": lambda f: a_grad(a_jvp(f)),
    "grad_grad": lambda f: a_grad(a_grad(f)),
    "grad_grad_grad": lambda f: a_grad(a_grad(a_grad(f))),
    "jvp_jvp_jvp": lambda f: a_jvp(a_jvp(a_jvp(f))),
    "jvp_grad_jvp": lambda f: a_jvp(a_grad(a_jvp(f))),
    "vmap_value": batched,
    "vmap_grad": lambda f: batched(a_grad(f)),
    "grad_vmap": lambda f: a_grad(batched(f)),
    "vmap_jvp": lambda f: batched(a_jvp(f)),
    "jvp_vmap": lambda f: a_jvp(batched(f)),
    "grad_vmap_grad": lambda f: a_grad(batched(a_grad(f))),
    "vmap_vmap_grad": lambda f: batched(batched(a_grad(f))),
    "vmap_grad_vmap": lambda f: batched(a_grad(batched(f))),
    "functionalize_grad": lambda f: tl.functionalize(a_grad(f)),
    "grad_functionalize": lambda f: a_grad(tl.functionalize(f)),
    "autograd": by_autograd,
    "autograd_vmap": lambda f: by_autograd(batched(f)),
}
A = torch.tensor([0.4, -0.8, 1.1], dtype=torch.float64)
assert len(A) == N


@pytest.mark.sweep
@pytest.mark.parametrize("nest", NESTS)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_derivatives_are_those_of_unrolled_iterations(problem, nest):
    implicit, unrolled = PROBLEMS[problem]
    torch.testing.assert_close(
        NESTS[nest](implicit)(A), NESTS[nest](unrolled)(A), rtol=1e-7, atol=1e-8
    )
