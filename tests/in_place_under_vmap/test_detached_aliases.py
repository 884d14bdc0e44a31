"""A tensor and its detached alias: shared memory, separate autograd histories."""

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.func
from torch import Tensor
from torch.testing import assert_close

import torchlayers as tl

X = torch.tensor([[1.0, 2.0, 3.0], [-1.0, 0.5, 2.0]], dtype=torch.float64)
W = torch.tensor([0.5, 1.0, -1.0], dtype=torch.float64)

Detach = Callable[[Tensor], Tensor]
Program = Callable[[Detach, Tensor, Tensor], Tensor]


def before_the_write(detach: Detach, w: Tensor, x: Tensor) -> Tensor:
    y = w * 2
    other = detach(y)
    y[0] = x[0]
    return (other * w).sum() + y.sum()


def after_the_write(detach: Detach, w: Tensor, x: Tensor) -> Tensor:
    y = w * 2
    y[0] = x[0] * w[1]
    return (detach(y) * w).sum() + y.sum()


def of_a_constant(detach: Detach, w: Tensor, x: Tensor) -> Tensor:
    y = torch.zeros(3, dtype=w.dtype)
    y[0] = x[0] * w[0]
    return (detach(y) * w).sum() + y.sum()


def written_itself(detach: Detach, w: Tensor, x: Tensor) -> Tensor:
    y = w * 2
    other = detach(y)
    other[0] = x[0]
    return (other * w).sum() + (y * 3).sum()


def written_through_its_view(detach: Detach, w: Tensor, x: Tensor) -> Tensor:
    y = w * 2
    other = detach(y)
    view = other[1:]
    view[0] = x[0]
    return (other * w).sum() + (y * 3).sum() + view.sum()


def its_view_written_through_it(detach: Detach, w: Tensor, x: Tensor) -> Tensor:
    y = w * 2
    other = detach(y)
    view = other[1:]
    other[1] = x[0]
    return (other * w).sum() + (y * 3).sum() + view.sum()


def with_a_history_of_its_own(detach: Detach, w: Tensor, x: Tensor) -> Tensor:
    y = w * 2
    other = detach(y)
    other *= w
    y[0] = x[0]
    return other.sum() + (y * 2).sum()


def with_the_only_history(detach: Detach, w: Tensor, x: Tensor) -> Tensor:
    y = torch.zeros(3, dtype=w.dtype)
    other = detach(y)
    other += w
    y[0] = x[0]
    return (other * other.detach()).sum() + (y * 2).sum()


def its_view(detach: Detach, w: Tensor, x: Tensor) -> Tensor:
    y = w * 2
    y[0] = x[0]
    other = detach(y)[1:]
    return (other * w[1:]).sum() + y.sum()


def of_a_view(detach: Detach, w: Tensor, x: Tensor) -> Tensor:
    y = w * 2
    view = y[1:]
    other = detach(view)
    y[1] = x[0]
    return (other * w[1:]).sum() + view.sum()


def of_a_product(detach: Detach, w: Tensor, x: Tensor) -> Tensor:
    y = torch.eye(3, dtype=w.dtype).expand(2, 3, 3) @ w
    y[0] = x
    return (detach(y) * w).sum() + y.sum()


def in_the_place_of_the_other(detach: Detach, w: Tensor, x: Tensor) -> Tensor:
    y = detach(w * 2)
    y[0] = x[0]
    return (y * w).sum()


def one_of_the_other(detach: Detach, w: Tensor, x: Tensor) -> Tensor:
    y = w * 2
    first = detach(y)
    second = detach(first)
    first[0] = x[0]
    second[1] = x[1]
    return (y * 2).sum() + (first * w).sum() + (second * w**2).sum()


PROGRAMS = [
    before_the_write,
    after_the_write,
    of_a_constant,
    written_itself,
    written_through_its_view,
    its_view_written_through_it,
    with_a_history_of_its_own,
    with_the_only_history,
    its_view,
    of_a_view,
    of_a_product,
    in_the_place_of_the_other,
    one_of_the_other,
]


@pytest.fixture(params=PROGRAMS, ids=lambda program: program.__name__)
def program(request: pytest.FixtureRequest) -> Program:
    written: Program = request.param
    return written


@pytest.fixture(params=[torch.detach, operator.attrgetter("data")], ids=["detach", "data"])
def detach(request: pytest.FixtureRequest) -> Detach:
    either: Detach = request.param
    return either


def by_vmap(program: Program, detach: Detach) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda w, batch: tl.vmap(lambda x: program(detach, w, x))(batch).sum()


def by_loop(program: Program, detach: Detach) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda w, batch: torch.stack([program(detach, w, x) for x in batch]).sum()


def test_gradients(program: Program, detach: Detach) -> None:
    expected = torch.func.grad(by_loop(program, detach), (0, 1))(W, X)
    assert_close(tl.grad(by_vmap(program, detach), (0, 1))(W, X), expected)
    w, batch = W.clone().requires_grad_(), X.clone().requires_grad_()
    by_autograd = torch.autograd.grad(by_vmap(program, detach)(w, batch), (w, batch))
    assert_close(by_autograd, expected)


def test_gradients_inside(program: Program, detach: Detach) -> None:
    per_sample = tl.vmap(lambda x: tl.grad(lambda w: program(detach, w, x))(W))(X)
    expected = [torch.func.grad(lambda w, x=x: program(detach, w, x))(W) for x in X]
    assert_close(per_sample, torch.stack(expected))


def test_tangents(program: Program, detach: Detach) -> None:
    primals, tangents = (W, X), (W.flip(0), X.flip(1))
    expected = torch.func.jvp(by_loop(program, detach), primals, tangents)
    assert_close(tl.jvp(by_vmap(program, detach), primals, tangents), expected)


def test_gradients_of_gradients(program: Program, detach: Detach) -> None:
    def second(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda w: torch.func.grad(lambda v: function(v, X * v).cos() * v[0])(w).sin().sum()

    # In torch.func the data of a tensor of two levels keeps the derivative of the outer one.
    theirs, ours = second(by_loop(program, torch.detach)), second(by_vmap(program, detach))
    assert_close(tl.grad(ours)(W), torch.func.grad(theirs)(W))


def test_in_nested_vmaps(program: Program, detach: Detach) -> None:
    def each(x: Tensor) -> Tensor:
        return tl.vmap(lambda scale: program(torch.detach, W * x[0], x * scale))(W)

    expected = [torch.stack([program(torch.detach, W * x[0], x * s) for s in W]) for x in X]
    assert_close(tl.vmap(each)(X), torch.stack(expected))
    by_batch = tl.grad(lambda batch: tl.vmap(each)(batch).sum())(X)

    def looped(batch: Tensor) -> Tensor:
        return sum(program(torch.detach, W * x[0], x * s) for x in batch for s in W)  # type: ignore[return-value]

    assert_close(by_batch, torch.func.grad(looped)(X))


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch loops over detach_copy
@pytest.mark.parametrize("remove", ["mutations", "mutations_and_views"])
def test_under_functionalize(program: Program, detach: Detach, remove: str) -> None:
    def plain(w: Tensor) -> Tensor:
        return program(torch.detach, w, X[0])

    functional = tl.functionalize(lambda w: program(detach, w, X[0]), remove=remove)
    assert_close(tl.grad(functional)(W), torch.func.grad(plain)(W))
    tangents = (W.flip(0),)
    assert_close(tl.jvp(functional, (W,), tangents), torch.func.jvp(plain, (W,), tangents))
    second = torch.func.grad(lambda w: torch.func.grad(plain)(w).sin().sum())(W)
    assert_close(tl.grad(lambda w: tl.grad(functional)(w).sin().sum())(W), second)
    by_vmap = tl.vmap(tl.functionalize(lambda x: program(detach, W, x), remove=remove))
    assert_close(
        tl.grad(lambda batch: by_vmap(batch).sum())(X),
        torch.func.grad(lambda batch: by_loop(program, torch.detach)(W, batch))(X),
    )


def product_with_constant(detach: Detach, x: Tensor) -> Tensor:
    return (detach(x) * x).sum()


def slope(f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: tl.jvp(f, (x,), (torch.ones_like(x),))[1]


LEVELS = {
    "grad(grad)": lambda f: tl.grad(lambda x: tl.grad(f)(x).sum()),
    "grad(jvp)": lambda f: tl.grad(slope(f)),
    "jvp(grad)": lambda f: slope(lambda x: tl.grad(f)(x).sum()),
    "jvp(jvp)": lambda f: slope(slope(f)),
    "grad(vmap(grad))": lambda f: tl.grad(lambda x: tl.vmap(tl.grad(f))(x[None]).sum()),
    "grad(functionalize(grad))": lambda f: tl.grad(lambda x: tl.functionalize(tl.grad(f))(x).sum()),
    "grad(torch.func.grad)": lambda f: tl.grad(lambda x: torch.func.grad(f)(x).sum()),
}


@pytest.mark.parametrize("nest", LEVELS.values(), ids=LEVELS)
def test_is_a_constant_at_all_levels(detach: Detach, nest: Callable[..., Any]) -> None:
    result = nest(lambda x: product_with_constant(detach, x))(W)
    assert_close(result, torch.zeros_like(result))


def test_writes_to_the_data_are_not_noticed() -> None:
    def f(x: Tensor) -> Tensor:
        y = x.sin()
        z = y * y
        y.data.mul_(2)
        return z.sum()

    plain = W.clone().requires_grad_()
    f(plain).backward()
    assert plain.grad is not None
    assert_close(tl.grad(f)(W), plain.grad)
    assert_close(tl.grad(tl.functionalize(f))(W), 2 * W.sin() * W.cos())


def written_by_both(x: Tensor, y: Tensor) -> Tensor:
    made = torch.zeros(3, dtype=x.dtype)
    made += x
    made[0] = y[0]
    return made.sum()


def two_views_left(x: Tensor, y: Tensor) -> Tensor:
    made = x * 2
    low, high = made[:2], made[1:]
    del made
    low *= y[0]
    return low.sum() + (high * y[:2]).sum()


def two_views_left_of_a_constant(x: Tensor, y: Tensor) -> Tensor:
    made = torch.zeros(3, dtype=x.dtype)
    made += x
    low, high = made[:2], made[1:]
    del made
    low *= y[0]
    return low.sum() + (high * y[:2]).sum()


@pytest.mark.parametrize("program", [written_by_both, two_views_left, two_views_left_of_a_constant])
def test_writes_of_the_outer_vmap_keep_their_history(
    program: Callable[[Tensor, Tensor], Tensor],
) -> None:
    def nested(a: Tensor, b: Tensor) -> Tensor:
        return tl.vmap(lambda x: tl.vmap(lambda y: program(x, y))(b))(a).sum()

    def looped(a: Tensor, b: Tensor) -> Tensor:
        return torch.stack([program(x, y) for x in a for y in b]).sum()

    expected = torch.func.grad(looped, (0, 1))(X, W.expand(2, 3) * X)
    assert_close(tl.grad(nested, (0, 1))(X, W.expand(2, 3) * X), expected)
