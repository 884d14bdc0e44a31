"""Random programs of factories, views and writes, against a loop over the samples."""

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import torchlayers as tl
from tests.in_place_under_vmap.reference import gradient, loop, same, total

A = torch.tensor([[0.5, -1.0, 0.25], [1.5, 0.75, -0.5]], dtype=torch.float64)
B = torch.tensor([[1.0, -0.5, 2.0], [0.1, 0.2, -0.3], [-1.0, 1.0, 0.5]], dtype=torch.float64)
CAPTURED = torch.linspace(-1, 1, 6, dtype=torch.float64)

Values = list[Tensor]
Step = Callable[[Values, Values], Tensor | None]  # takes the tensors so far, and the samples

FACTORIES: list[Callable[[], Tensor]] = [
    lambda: torch.zeros(3, dtype=torch.float64),
    lambda: torch.ones(2, 3, dtype=torch.float64),
    lambda: torch.arange(6, dtype=torch.float64).view(3, 2),
    lambda: torch.full((2, 2, 3), 0.5, dtype=torch.float64),
    lambda: CAPTURED.clone(),
    lambda: CAPTURED[::2] * 2,
    lambda: torch.zeros((), dtype=torch.float64),
    lambda: torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64),
]
VIEWS: list[Callable[[Tensor], Tensor]] = [
    lambda y: y[0],
    lambda y: y[1:],
    lambda y: y[..., -1],
    lambda y: y[..., ::2],
    lambda y: y.t(),
    lambda y: y.unsqueeze(0),
    lambda y: y.transpose(0, -1),
    lambda y: y.view(-1),
    lambda y: y.diagonal(),
    lambda y: y.narrow(-1, 1, 2),
    lambda y: y.movedim(0, -1).squeeze(),
]
WRITES: list[Callable[[Tensor, Tensor], object]] = [
    lambda y, value: y.copy_(value),
    lambda y, value: y.add_(value, alpha=0.5),
    lambda y, value: y.mul_(value),
    lambda y, value: y.__setitem__(0, value[0] if value.dim() else value),
    lambda y, value: y.__setitem__((..., -1), value.sum()),
    lambda y, value: y.fill_(value.sum()),
    lambda y, value: y.lerp_(value, 0.25),
    lambda y, value: y.index_add_(0, torch.tensor([0]), value[:1]),
    lambda y, value: y.masked_fill_(value > 0.3, 0.5),
    lambda y, value: y.zero_(),
]
SOURCES: list[Callable[[Tensor], Tensor]] = [
    lambda value: value,
    lambda value: value[0],
    lambda value: value.tanh(),
    lambda value: value.sum() * 0.3,
    lambda value: value[:2].cos(),
]


def step(draw: random.Random, made: Values, samples: Values) -> Step:
    kind = draw.choice(["make", "view", "view", "write", "write", "write", "compute"])
    if kind == "make" or not made:
        factory = draw.choice(FACTORIES)
        return lambda made, samples: factory()
    i, j = draw.randrange(len(made)), draw.randrange(len(made))
    if kind == "view":
        view = draw.choice(VIEWS)
        return lambda made, samples: view(made[i])
    source, write = draw.choice(SOURCES), draw.choice(WRITES)
    k = draw.randrange(-len(samples), max(1, len(made)))
    if kind == "compute":
        return lambda made, samples: torch.sin(made[i]) + 0.5 * made[j].sum()

    def writes(made: Values, samples: Values) -> None:
        value = source(samples[k]) if k < 0 else source(made[k].clone())
        write(made[i], value)

    return writes


def program(seed: int, length: int = 14) -> Callable[..., Values]:
    """A random function of the outer and the inner sample; its steps were tried out on one
    sample."""
    draw = random.Random(seed)
    steps: list[Step] = []

    def run(*samples: Tensor) -> Values:
        made: Values = []
        for each in steps:
            result = each(made, list(samples))
            made += [] if result is None else [result]
        return made

    samples = [A[0], B[0]]
    while len(steps) < length:
        steps.append(step(draw, run(*samples), samples))
        try:
            run(*samples)
        except (RuntimeError, IndexError):  # the shapes do not fit
            steps.pop()
    return run


@pytest.fixture(params=range(60))
def f(request: pytest.FixtureRequest) -> Callable[..., Values]:
    return program(request.param)


def test_vmap_of_vmap(f: Callable[..., Values]) -> None:
    expected = loop(lambda a: loop(lambda b: f(a, b), B), A)
    same(tl.vmap(lambda a: tl.vmap(lambda b: f(a, b))(B))(A), expected)
    swapped = loop(lambda b: loop(lambda a: f(a, b), A), B)
    same(tl.vmap(lambda b: tl.vmap(lambda a: f(a, b), in_dims=1)(A.t()))(B), swapped)


def test_under_grad(f: Callable[..., Values]) -> None:
    def number(pair: Tensor) -> Tensor:
        value: Tensor = total(lambda p: f(p[0], p[1]))(pair)
        return value

    pairs = torch.stack([torch.stack([a, b]) for a in A for b in B])
    try:
        expected = loop(gradient(number), pairs)
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error) or "leaf" in str(error)
        return
    same(tl.vmap(tl.grad(number))(pairs), expected)
    same(tl.grad(lambda batch: tl.vmap(number)(batch).sum())(pairs), expected)
    tangents = pairs.flip(0)
    slopes = (expected * tangents).sum((1, 2))
    same(tl.vmap(lambda p, t: tl.jvp(number, (p,), (t,))[1])(pairs, tangents), slopes)
    same(tl.jvp(tl.vmap(number), (pairs,), (tangents,))[1], slopes)

    def of_both(a: Tensor, batch: Tensor) -> Tensor:
        return tl.vmap(lambda b: number(torch.stack([a, b])))(batch).sum()

    by_a, by_b = tl.vmap(tl.grad(of_both, (0, 1)), in_dims=(0, None))(A, B)
    same(by_a, expected[:, 0].view(2, 3, 3).sum(1))
    same(by_b, expected[:, 1].view(2, 3, 3))


def test_under_grad_in_nested_vmaps(f: Callable[..., Values]) -> None:
    def weighed(*samples: Tensor) -> Tensor:
        numbers = torch.cat([each.flatten() for each in f(*samples)] + [samples[0] * 0])
        return (numbers * torch.arange(1.0, numbers.numel() + 1)).sum()

    def by_loop(a: Tensor, b: Tensor) -> Tensor:
        return torch.stack([weighed(x, y) for x in a for y in b]).sin().sum()

    def by_vmap(a: Tensor, b: Tensor) -> Tensor:
        return tl.vmap(lambda x: tl.vmap(lambda y: weighed(x, y))(b))(a).sin().sum()

    def swapped(a: Tensor, b: Tensor) -> Tensor:
        return tl.vmap(lambda y: tl.vmap(lambda x: weighed(x, y))(a))(b).sin().sum()

    a, b = A.clone().requires_grad_(), B.clone().requires_grad_()
    try:
        expected = torch.autograd.grad(by_loop(a, b), (a, b), materialize_grads=True)
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error) or "leaf" in str(error)
        return
    same(tl.grad(by_vmap, (0, 1))(A, B), expected)
    same(tl.grad(swapped, (0, 1))(A, B), expected)
    same(torch.autograd.grad(by_vmap(a, b), (a, b), materialize_grads=True), expected)
    tangents = (A.flip(0), B.flip(0))
    slope = sum((g * t).sum() for g, t in zip(expected, tangents, strict=True))
    same(tl.jvp(by_vmap, (A, B), tangents)[1], slope)


def test_the_programs_write() -> None:
    """Most of them write values that depend on the samples."""
    runs = [program(seed)(A[0], B[0]) for seed in range(60)]
    others = [program(seed)(A[1], B[1]) for seed in range(60)]
    differ = [
        any(not torch.equal(one, other) for one, other in zip(*pair, strict=True))
        for pair in zip(runs, others, strict=True)
    ]
    assert sum(differ) > 40
