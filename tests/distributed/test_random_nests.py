"""Random nests of transforms around random functions with a named axis, against one process.

A function is a few shape-preserving steps; a nest is a few transforms of it (nests.py). The result
on every rank equals that of torch.func for the function of all ranks' tensors at once, and that of
each sample of a vmap over as many samples.
"""

import random

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import torchlayers as tl
from tests.distributed.nests import NESTS, everybodys, weighted
from tests.distributed.processes import case, over_ranks
from tests.distributed.test_vmap import mesh, numbers
from torchlayers.distributed import (
    all_gather,
    all_to_all,
    axis_index,
    axis_size,
    pmean,
    ppermute,
    psum,
    psum_invariant,
    psum_scatter,
)

F = torch.func
SEEDS = 12


def close(found, expected):
    """Compares relative to the largest element, since third derivatives are large."""
    scale = expected.abs().max().clamp(min=1)
    torch.testing.assert_close(found / scale, expected / scale, rtol=1e-9, atol=1e-9)


def ring(x):
    size = axis_size("i")
    return ppermute(x, "i", [(i, (i + 1) % size) for i in range(size)])


def there_and_back(x):
    """Scatters the sum over the ranks, and gathers it again."""
    tiled = torch.cat([x.flatten()] * axis_size("i"))
    return all_gather(psum_scatter(tiled, "i", tiled=True), "i")[0].view(x.shape)


def exchanged(x):
    parts = torch.stack([x * (i + 1) for i in range(axis_size("i"))])
    return all_to_all(parts, "i", 0, 0).sum(0)


def exchanged_by_all(x):
    return torch.stack([x.sum(0) * (i + 1) for i in range(x.shape[0])])


# Each step for one rank or sample, and for all of them at once.
STEPS = {
    "sin": (torch.sin, torch.sin),
    "times a sum": (lambda x: x * psum(x.tanh(), "i"), lambda x: x * x.tanh().sum(0)),
    "centred": (lambda x: x - pmean(x, "i"), lambda x: x - x.mean(0)),
    "ring": (lambda x: ring(x) * x, lambda x: x.roll(1, 0) * x),
    "contrast": (
        lambda x: x * (all_gather(x.sin(), "i") * x).flatten(1).sum(1).softmax(0)[0],
        lambda x: (
            x
            * torch.stack([(x.sin() * each).flatten(1).sum(1).softmax(0)[0] for each in x]).view(
                -1, *[1] * (x.dim() - 1)
            )
        ),
    ),
    "part of a sum": (there_and_back, lambda x: x.sum(0).expand_as(x)),
    "exchanged": (exchanged, exchanged_by_all),
    "place": (
        lambda x: x * (1 + axis_index("i")),
        lambda x: x * torch.arange(1, x.shape[0] + 1).view(-1, *[1] * (x.dim() - 1)),
    ),
}


def vmapped(f):
    """Returns f mapped over two samples and summed."""
    return lambda x: tl.vmap(f)(torch.stack([x, x.cos()])).sum(0)


TRANSFORMS = {
    **{name: NESTS[name] for name in ("grad", "jvp", "hvp", "linearize")},
    "vmap": (vmapped, lambda of_all: lambda x: of_all(x) + of_all(x.cos())),
}


def composed(steps, which):
    def f(x):
        for step in steps:
            x = STEPS[step][which](x)
        return x

    return f


def drawn(seed):
    choose = random.Random(seed)
    steps = [choose.choice([*STEPS]) for _ in range(choose.randint(1, 3))]
    transforms = [choose.choice([*TRANSFORMS]) for _ in range(choose.randint(1, 3))]
    while sum(each in ("grad", "hvp") for each in transforms) > 2:
        transforms.pop()
    return steps, transforms


def nested(seed):
    steps, transforms = drawn(seed)
    of_rank, of_all = composed(steps, 0), composed(steps, 1)
    for name in transforms:
        of_rank, of_all = TRANSFORMS[name][0](of_rank), TRANSFORMS[name][1](of_all)
    return of_rank, of_all


@pytest.mark.parametrize("seed", range(SEEDS))
def test_nest_over_samples_equals_one_function_of_all(seed):
    of_rank, of_all = nested(seed)
    x = everybodys((2, 2), 2, "value")
    close(tl.vmap(of_rank, axis_name="i")(x), of_all(x))


def compare(first: int, last: int) -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    x = everybodys((2, 2), size, "value")
    for seed in range(first, last):
        of_rank, of_all = nested(seed)
        with init_device_mesh("cpu", (size,), mesh_dim_names=("i",)):
            found = of_rank(x[rank])
        try:
            close(found, of_all(x)[rank])
            close(tl.vmap(of_rank, axis_name="i")(x)[rank], found)
        except AssertionError as error:
            raise AssertionError(f"{drawn(seed)}: {error}") from error


@pytest.mark.parametrize(
    "first, last", [(0, SEEDS), pytest.param(SEEDS, 10 * SEEDS, marks=pytest.mark.full)]
)
def test_a_nest_over_ranks_is_that_of_all(ranks, first, last):
    ranks.run(__name__, "compare", first, last, seconds=200)


# ---- a batch over ranks, with transforms inside and outside


def of_one(w, x):
    return (w.T @ x).tanh() * x[0]


INSIDE = {
    "value": (lambda f: f, lambda f: f),
    "grad": (
        lambda f: tl.grad(lambda w, x: weighted(f(w, x))),
        lambda f: F.grad(lambda w, x: weighted(f(w, x))),
    ),
    "jvp": (
        lambda f: lambda w, x: tl.jvp(lambda x: f(w, x), (x,), (x.cos(),))[1],
        lambda f: lambda w, x: F.jvp(lambda x: f(w, x), (x,), (x.cos(),))[1],
    ),
    "vmap": (
        lambda f: lambda w, x: tl.vmap(f, (None, 0))(w, torch.stack([x, x.cos()])).sum(0),
        lambda f: lambda w, x: F.vmap(f, (None, 0))(w, torch.stack([x, x.cos()])).sum(0),
    ),
}
# Transforms of a function of w whose result has w's shape.
OUTSIDE = {
    "jvp": (
        lambda g: lambda w: tl.jvp(g, (w,), (w.cos(),))[1],
        lambda g: lambda w: F.jvp(g, (w,), (w.cos(),))[1],
    ),
    "grad": (
        lambda g: tl.grad(lambda w: weighted(g(w.sin()))),
        lambda g: F.grad(lambda w: weighted(g(w.sin()))),
    ),
    "vmap": (
        lambda g: lambda w: tl.vmap(g)(torch.stack([w, w.cos()])).sum(0),
        lambda g: lambda w: F.vmap(g)(torch.stack([w, w.cos()])).sum(0),
    ),
}


@case
def a_batch_over_ranks_inside_and_outside_others():
    for seed in range(SEEDS):
        choose = random.Random(seed)
        inside = choose.choice([*INSIDE])
        outside = [choose.choice([*OUTSIDE]) for _ in range(choose.randint(0, 2))]
        x = numbers(choose.choice([1, 3, 4, 7]), 3)
        chunks = choose.choice([None, 2])
        is_whole = choose.random() < 0.5
        ours, theirs = (each(of_one) for each in INSIDE[inside])
        spread = tl.vmap(
            ours,
            (None, 0),
            mesh=mesh(),
            chunk_size=chunks,
            out="full" if is_whole else "local",
        )

        def gradient(w, spread=spread, x=x, is_whole=is_whole):
            """Returns the gradient of a loss that is equal on all ranks."""

            def loss(w):
                own = spread(w, x)
                if is_whole:
                    return (own**2).sum()
                return psum_invariant((own**2).sum(), mesh())

            return tl.grad(loss)(w)

        def expected(w, theirs=theirs, x=x):
            return F.grad(lambda w: (F.vmap(theirs, (None, 0))(w, x) ** 2).sum())(w)

        ours, theirs = gradient, expected
        for name in outside:
            ours, theirs = OUTSIDE[name][0](ours), OUTSIDE[name][1](theirs)
        w = numbers(3, 2, seed=3)
        try:
            close(ours(w), theirs(w))
        except Exception as error:
            raise AssertionError(f"{inside}, {outside}, {len(x)}, {is_whole}: {error}") from error


test_over_ranks = over_ranks(__name__)
