"""Inside torch.func's transforms, layers in Python, linearize, checkpoints, and dual numbers."""

import pytest
import torch
from torch.autograd import forward_ad

import torchlayers as tl
from tests.implicit.problems import PROBLEMS
from tests.implicit.test_nests import A
from torchlayers.errors import TransformError


def number(f):
    return lambda a: f(a).square().sum()


def by_dual_numbers(f):
    def of(a):
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(f(forward_ad.make_dual(a, a.cos()))).tangent.clone()

    return of


TRANSFORMED = {
    "torch.func.grad": lambda f: torch.func.grad(number(f)),
    "torch.func.jvp": lambda f: lambda a: torch.func.jvp(f, (a,), (a.cos(),))[1],
    "torch.func.hessian": lambda f: torch.func.hessian(number(f)),
    "torch.func.vmap(grad)": lambda f: (
        lambda a: torch.func.vmap(torch.func.grad(number(f)))(torch.stack([a, 2 * a]))
    ),
    "mixed": lambda f: torch.func.grad(lambda a: tl.grad(number(f))(a).sum()),
    "linearize": lambda f: lambda a: tl.linearize(f, a)[1](a.cos()),
    "checkpoint": lambda f: tl.grad(tl.checkpoint(number(f))),
    "dual numbers": by_dual_numbers,
    "jet": lambda f: lambda a: tl.jet(f, (a,), ([a.cos(), 0.3 * a, a.sin()],))[1],
    "laplacian": lambda f: tl.laplacian(number(f)),
    "grad(laplacian)": lambda f: tl.grad(tl.laplacian(number(f))),
}


@pytest.mark.sweep(one_in=16)
@pytest.mark.parametrize("transform", TRANSFORMED)
@pytest.mark.parametrize("problem", ["root", "fixed_point", "of_trees", "linear", "minimizer"])
def test_other_transforms(problem, transform):
    implicit, unrolled = PROBLEMS[problem]
    expected = TRANSFORMED[transform](unrolled)(A)
    torch.testing.assert_close(TRANSFORMED[transform](implicit)(A), expected, rtol=1e-6, atol=1e-8)


def test_a_jet_of_many_unknowns_is_refused():
    def f(a):
        return tl.custom_root(lambda x: x**3 + x - a, torch.zeros_like(a))

    with pytest.raises(TransformError, match="up to 128 unknowns"):
        tl.jet(f, (torch.ones(200),), ([torch.ones(200)],))


def test_forward_mode_may_be_disabled_in_any_nest():
    """A tangent is then not propagated, and branches on batched predicates work all the same."""

    def f(a):
        with forward_ad._set_fwd_grad_enabled(False):

            def body(c):
                return tl.jvp(lambda y: 0.5 * y * a.sin() * a, (c,), (c,))[0]

            return tl.while_loop(lambda c: c > 0.1, body, a) + 0

    a = torch.tensor([0.5, 1.0, 1.5], dtype=torch.float64)
    value, tangent = tl.vmap(lambda a: tl.jvp(lambda a: f(a) + a, (a,), (a,)))(a)
    torch.testing.assert_close(value, tl.vmap(f)(a) + a)
    torch.testing.assert_close(tangent, a)
