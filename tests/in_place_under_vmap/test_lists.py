"""torch._foreach_add and the other list operators, member by member under every transform."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd
from torch.testing import assert_close

import torchlayers as tl
from tests.in_place_under_vmap.reference import gradient, loop, same

X = torch.tensor([[0.31, 0.52, 0.77], [0.64, 0.33, 0.45]], dtype=torch.float64)
NAMES = sorted(
    name
    for name in torch._C._dispatch_get_all_op_names()
    if name.startswith("aten::_foreach_") and not name.endswith("out")
)
STEP = 1e-6


def argument(op: torch._ops.OpOverload, i: int, x: Tensor) -> object:
    """A list of tensors of several shapes, a tensor, or numbers, as the schema requires."""
    schema = op._schema.arguments[i]
    kind = str(schema.type)
    if kind == "List[Tensor]":
        value = x * (0.3 + 0.1 * i) + 0.2 + 0.05 * i
        if "_mm" in op._schema.name:
            return [torch.stack([value, value + 1, value**2])] * 2
        return [value * 1, torch.stack([value, value * 0.7]), (value * 0.8).sin()]
    if kind == "Tensor":
        numbers = "addc" in op._schema.name
        return torch.stack([x[0], x[1] * 2, x.sum()]) if numbers else x.sum() * 0.3 + 0.1
    if "List" in kind:
        return [0.4, 0.6, 0.8]
    return schema.default_value if schema.has_default_value() else 0.4


def of_sample(name: str) -> Callable[[Tensor], Tensor]:
    packet, _, overload = name.removeprefix("aten::").partition(".")
    op = getattr(getattr(torch.ops.aten, packet), overload or "default")
    schema = op._schema

    def f(x: Tensor) -> Tensor:
        given = [argument(op, i, x) for i in range(len(schema.arguments))]
        named = {a.name: v for a, v in zip(schema.arguments, given, strict=True) if a.kwarg_only}
        result = op(*given[: len(given) - len(named)], **named)
        members = given[0] if schema.is_mutable else result
        return torch.cat([member.flatten() for member in members])

    return f


def slope(number: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    steps = torch.eye(3, dtype=x.dtype) * STEP
    return torch.stack([(number(x + step) - number(x - step)) / (2 * STEP) for step in steps])


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", NAMES)
def test_operator(name: str) -> None:
    f = of_sample(name)

    def number(x: Tensor) -> Tensor:
        return (f(x) ** 2).sum() + 0 * x.sum()

    same(tl.vmap(f)(X), loop(f, X))
    same(tl.vmap(tl.vmap(f))(X[None]), loop(f, X)[None])
    if "powsum" in name:  # torch has no derivative of an operator in its decomposition
        return
    expected = torch.stack([slope(number, x) for x in X])
    tolerance = {"rtol": 1e-5, "atol": 1e-7}
    assert_close(torch.stack([tl.grad(number)(x) for x in X]), expected, **tolerance)
    assert_close(tl.vmap(tl.grad(number))(X), expected, **tolerance)
    assert_close(tl.grad(lambda b: tl.vmap(number)(b).sum())(X), expected, **tolerance)
    tangents = X.flip(0)
    by_tangents = tl.vmap(lambda x, t: tl.jvp(number, (x,), (t,))[1])(X, tangents)
    assert_close(by_tangents, (expected * tangents).sum(1), **tolerance)
    outside = tl.jvp(tl.vmap(number), (X,), (tangents,))[1]
    assert_close(outside, by_tangents)


def test_out() -> None:
    def f(x: Tensor) -> list[Tensor]:
        out = [torch.zeros(3, dtype=x.dtype), torch.zeros(2, 3, dtype=x.dtype)]
        torch.ops.aten._foreach_mul.Scalar_out([x, torch.stack([x, x])], 2.0, out=out)
        return out

    same(tl.vmap(f)(X), loop(f, X))


def test_members_that_the_function_made_take_batched_ones() -> None:
    def f(x: Tensor) -> list[Tensor]:
        made = [torch.zeros(3, dtype=x.dtype), torch.ones(2, 3, dtype=x.dtype)]
        torch._foreach_add_(made, [x, x * 2], alpha=0.5)
        torch._foreach_mul_(made, 3.0)
        torch._foreach_copy_([made[1][0]], [x])
        return made

    def by_hand(x: Tensor) -> list[Tensor]:  # torch can't differentiate _foreach_copy_
        return [1.5 * x, torch.stack([x, 3 + 3 * x])]

    same(tl.vmap(f)(X), loop(f, X))
    same(tl.vmap(tl.jacrev(f))(X), loop(torch.func.jacrev(by_hand), X))
    same(tl.vmap(tl.jacfwd(f))(X), loop(torch.func.jacrev(by_hand), X))


def test_captured_members_stay_as_they_are() -> None:
    captured = [torch.zeros(3, dtype=torch.float64)]
    with pytest.raises(RuntimeError, match="captured"):
        tl.vmap(lambda x: torch._foreach_add_(captured, [x]))(X)
    assert_close(captured[0], torch.zeros_like(captured[0]))


def steps_of_sgd(x: Tensor, foreach: bool) -> list[Tensor]:
    params = [torch.ones(3, dtype=x.dtype), torch.full((2, 3), 0.5, dtype=x.dtype)]
    momenta: list[Tensor | None] = [None, None]
    for _ in range(3):
        sgd(
            params,
            [x * params[0], x * params[1].sin()],
            momenta,
            foreach=foreach,
            weight_decay=0.1,
            momentum=0.9,
            lr=0.1,
            dampening=0.0,
            nesterov=True,
            maximize=False,
        )
    return params


def steps_of_adam(x: Tensor, foreach: bool) -> list[Tensor]:
    params = [torch.ones(3, dtype=x.dtype), torch.full((2, 3), 0.5, dtype=x.dtype)]
    means, squares, most = ([torch.zeros_like(p) for p in params] for _ in range(3))
    counts = [torch.tensor(0.0) for _ in params]
    for _ in range(3):
        adam(
            params,
            [x * params[0], x * params[1].sin()],
            means,
            squares,
            most,
            counts,
            foreach=foreach,
            amsgrad=True,
            beta1=0.9,
            beta2=0.99,
            lr=0.1,
            weight_decay=0.1,
            eps=1e-8,
            maximize=False,
        )
    return params


@pytest.mark.parametrize("foreach", [False, True], ids=["one at a time", "lists"])
@pytest.mark.parametrize("optimizer", [steps_of_sgd, steps_of_adam])
def test_an_optimizer_inside(
    optimizer: Callable[[Tensor, bool], list[Tensor]], foreach: bool
) -> None:
    expected = loop(lambda x: optimizer(x, False), X)
    same(tl.vmap(lambda x: optimizer(x, foreach))(X), expected)
    same(tl.vmap(tl.vmap(lambda x: optimizer(x, foreach)))(X[None])[0][0], expected[0])


def test_the_gradient_of_a_step_of_sgd() -> None:
    def loss(x: Tensor) -> Tensor:
        params = [x * 2]
        sgd(params, [x.sin()], [None], foreach=True, weight_decay=0.0, momentum=0.0, lr=0.1,
            dampening=0.0, nesterov=False, maximize=False)  # fmt: skip
        return (params[0] ** 2).sum()

    expected = loop(gradient(lambda x: ((2 * x - 0.1 * x.sin()) ** 2).sum()), X)
    assert_close(tl.vmap(tl.grad(loss))(X), expected)
    assert_close(tl.grad(lambda batch: tl.vmap(loss)(batch).sum())(X), expected)
