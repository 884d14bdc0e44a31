"""Random programs under random stacks of transforms, against plain loops and plain autograd."""

from collections.abc import Callable

import hypothesis
import pytest
import torch
import torch.func
from hypothesis import strategies as st
from torch import Tensor

import torchlayers as tl
from tests.helpers import ambient
from tests.programs import Case, cases

# Some operators have no batching rule in torch and go through its fallback.
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")

Function = Callable[[Tensor], Tensor]
OVERWRITTEN = "modified by an inplace operation"


class Plain:
    """The transforms by loops and plain autograd. They nest, too."""

    @staticmethod
    def vmap(func: Function, in_dims: int, out_dims: int) -> Function:
        return lambda x: torch.stack([func(sample) for sample in x.unbind(in_dims)], out_dims)

    @staticmethod
    def grad(func: Function) -> Function:
        def gradient(x: Tensor) -> Tensor:
            y = variable(x)
            value = func(y)
            return pull_back(value, y, torch.ones_like(value))

        return gradient

    @staticmethod
    def vjp(func: Function, x: Tensor) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor]]]:
        y = variable(x)
        value = func(y)
        return value, lambda cotangent: (pull_back(value, y, cotangent),)

    @staticmethod
    def jvp(
        func: Function, primals: tuple[Tensor], tangents: tuple[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """By two backwards: the cotangents' derivative is the Jacobian, transposed twice."""
        y = variable(*primals)
        value = func(y)
        cotangent = torch.zeros_like(value).requires_grad_()
        return value, pull_back(pull_back(value, y, cotangent), cotangent, *tangents)


def variable(x: Tensor) -> Tensor:
    """x as a tensor of its own to differentiate by, on which plain autograd still records x."""
    return x.view_as(x) if x.requires_grad else x.clone().requires_grad_()


def pull_back(value: Tensor, x: Tensor, cotangent: Tensor) -> Tensor:
    if not value.requires_grad:
        return torch.zeros_like(x)
    (gradient,) = torch.autograd.grad(
        value, x, cotangent, create_graph=True, materialize_grads=True
    )
    return gradient


def check(case: Case) -> None:
    before = ambient()
    try:
        result = case.run(tl=tl, func=torch.func)
    except RuntimeError as error:
        if OVERWRITTEN not in str(error):
            raise
        result = None
    assert tl.current_stack() == ()
    assert ambient() == before
    if result is None:
        # Tangents are written in place, by in-place operators and by some of torch's formulas
        # (std, norm), even where outer derivatives need them. torch.func refuses the same cases.
        with pytest.raises(RuntimeError, match=OVERWRITTEN):
            case.in_torch_func().run(func=torch.func)
        return
    expected = case.run(tl=Plain, func=Plain).detach()
    assert expected.isfinite().all()
    # Elements that cancel out are no more exact than the largest is.
    scale = max(1.0, expected.abs().max().item())
    torch.testing.assert_close(result, expected, rtol=1e-7, atol=1e-9 * scale)


def check_many(strategy: st.SearchStrategy[Case], count: int) -> None:
    def check_one(case: Case) -> None:
        hypothesis.note(case.script)
        check(case)

    settings = hypothesis.settings(
        max_examples=count,
        derandomize=True,
        deadline=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
    settings(hypothesis.given(strategy)(check_one))()


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_random_programs(depth: int, full: bool) -> None:
    check_many(cases(depth, ("tl",)), 1250 if full else 25)


@pytest.mark.parametrize("depth", [2, 3, 4])
def test_random_programs_mixed_with_torch_func(depth: int, full: bool) -> None:
    check_many(cases(depth, ("tl", "func")), 1250 if full else 25)
