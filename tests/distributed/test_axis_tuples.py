"""Collectives along a tuple of axes, beside the same on all samples at once."""

import pytest
import torch

import torchlayers as tl
from torchlayers.distributed import (
    all_gather,
    all_to_all,
    axis_index,
    axis_size,
    pmax,
    pmean,
    pmin,
    ppermute,
    psum,
    psum_invariant,
    psum_scatter,
    pvary,
)
from torchlayers.errors import AxisError

X = torch.randn(2, 3, 6, dtype=torch.float64)
AXES = ("i", "j")


def along(function):
    """The function of a sample, for samples along the axes i and j."""
    return tl.vmap(tl.vmap(function, axis_name="j"), axis_name="i")


def every(x):
    """What is the same for all samples, for each of them."""
    return x.expand(2, 3, *x.shape)


CASES = {
    "psum": (lambda x: psum(x, AXES), lambda x: every(x.sum((0, 1)))),
    "psum of a tree": (
        lambda x: psum({"x": x, "one": 1}, AXES)["x"] + psum((1, x), AXES)[0],
        lambda x: every(x.sum((0, 1))) + 6,
    ),
    "psum of one": (lambda x: psum(x, ("j",)), lambda x: x.sum(1, keepdim=True).expand_as(x)),
    "pmean": (lambda x: pmean(x, AXES), lambda x: every(x.mean((0, 1)))),
    "pmax": (lambda x: pmax(x, AXES), lambda x: every(x.amax((0, 1)))),
    "pmin": (lambda x: pmin(x, AXES), lambda x: every(x.amin((0, 1)))),
    "all_gather": (lambda x: all_gather(x, AXES), lambda x: every(x.flatten(0, 1))),
    "all_gather behind": (
        lambda x: all_gather(x, AXES, -1),
        lambda x: every(x.flatten(0, 1).movedim(0, -1)),
    ),
    "all_gather, tiled": (
        lambda x: all_gather(x, AXES, tiled=True),
        lambda x: every(x.flatten()),
    ),
    "psum_scatter": (lambda x: psum_scatter(x, AXES), lambda x: x.sum((0, 1)).view(2, 3)),
    "psum_scatter, tiled": (
        lambda x: psum_scatter(torch.cat([x, 2 * x]).view(2, 6).mT.flatten(), AXES, tiled=True),
        lambda x: x.sum((0, 1)).view(2, 3, 1) * torch.tensor([1.0, 2.0], dtype=torch.float64),
    ),
    "axis_index": (
        lambda x: x * axis_index(AXES),
        lambda x: x * torch.arange(6).view(2, 3, 1),
    ),
    "axis_size": (lambda x: x / axis_size(AXES), lambda x: x / 6),
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name):
    function, of_all = CASES[name]
    torch.testing.assert_close(along(function)(X), of_all(X))

    def loss(f):
        return lambda x: (f(x).sin() * torch.linspace(0, 1, f(x).numel()).view(f(x).shape)).sum()

    torch.testing.assert_close(tl.grad(loss(along(function)))(X), torch.func.grad(loss(of_all))(X))


def test_invariant_sums_and_varied_values():
    def loss(weight, x):
        return psum_invariant((pvary(weight, AXES) * x).sum(), AXES)

    one = tl.vmap(tl.grad(loss), (None, 0), axis_name="j")
    gradients = tl.vmap(one, (None, 0), axis_name="i")(torch.tensor(2.0).double(), X)
    torch.testing.assert_close(gradients, X.sum().expand(2, 3))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int64, torch.bool, torch.float32])
def test_minimum_of_every_dtype(dtype):
    least = torch.iinfo(dtype).min if dtype in (torch.int8, torch.int64) else 0
    x = torch.tensor([3, least, 1]).to(dtype)
    assert torch.equal(tl.vmap(lambda x: pmin(x, "i"), axis_name="i")(x), x.amin().expand(3))


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: psum(x, ("i", "k")), "no axis named 'k' is bound"),
        (lambda x: psum(x, ("i", "i")), r"each of them once, got \('i', 'i'\)"),
        (lambda x: psum(x, ()), r"has at least one"),
        (lambda x: psum(x, ("i", 3)), "a tuple of these, got int"),
        (lambda x: ppermute(x, AXES, [(0, 1)]), "ppermute: an axis is a name .* not a tuple"),
        (lambda x: all_to_all(x, AXES, 0, 0), "all_to_all: an axis is a name .* not a tuple"),
    ],
)
def test_wrong_axes_are_refused(function, words):
    with pytest.raises(AxisError, match=words):
        along(function)(X)
