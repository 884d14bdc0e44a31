"""directional_derivatives and biharmonic."""

import pytest
import torch

import torchlayers as tl
from tests.transforms.laplacian.models import models
from tests.transforms.laplacian.reference import trace_of_hessian
from torchlayers.errors import StructureError, TransformError
from torchlayers.transforms.laplacian import seeds

close = torch.testing.assert_close
F, X = models()["MLP, GELU(approximate='none')"]
DIRECTIONS = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def scalar(x):
    return F(x).squeeze()


def along(f, v, order):
    if not order:
        return f
    return lambda x: tl.jvp(along(f, v, order - 1), (x,), (v,))[1]


@pytest.mark.parametrize("order", [1, 2, 3, 4, 5])
def test_orders_are_those_of_nested_jvps(order):
    found = tl.directional_derivatives(scalar, X, DIRECTIONS, order)
    assert len(found) == order + 1
    close(found[0], scalar(X))
    for each in range(1, order + 1):
        close(found[each], torch.stack([along(scalar, v, each)(X) for v in DIRECTIONS]))


def test_pytrees_and_several_primals():
    def f(x, y):
        return {"a": x.sin() * y["w"], "b": (x * y["w"]).prod()}

    y = {"w": X + 1}
    directions = DIRECTIONS, {"w": DIRECTIONS.flip(0)}
    found = tl.directional_derivatives(f, (X, y), directions, 2)
    v = DIRECTIONS[0], {"w": DIRECTIONS[2]}

    def second(x, y):
        return tl.jvp(lambda x, y: tl.jvp(f, (x, y), v)[1], (x, y), v)[1]

    close({key: value[0] for key, value in found[2].items()}, second(X, y))


def test_in_vmap_and_grad():
    def third(x):
        return tl.directional_derivatives(scalar, x, DIRECTIONS, 3)[3].sum()

    def expected(x):
        return sum(along(scalar, v, 3)(x) for v in DIRECTIONS)

    batch = torch.stack([X, X + 0.5])
    close(tl.vmap(tl.grad(third))(batch), tl.vmap(tl.grad(expected))(batch))


def test_biharmonic_is_the_laplacian_of_the_laplacian():
    expected = trace_of_hessian(trace_of_hessian(scalar))
    close(tl.biharmonic(scalar)(X), expected(X))
    batch = torch.stack([X, X + 0.5])
    close(tl.vmap(tl.biharmonic(scalar))(batch), tl.vmap(expected)(batch))


# Three-point Gauss-Hermite quadrature has the moments of a normal distribution up to the fifth.
NODES = torch.tensor([-(3**0.5), 0.0, 3**0.5], dtype=torch.float64)
MASSES = torch.tensor([1 / 6, 2 / 3, 1 / 6], dtype=torch.float64)


def test_random_directions_are_unbiased(monkeypatch):
    """The mean over the nodes of a quadrature that is exact for fourth moments."""
    nodes = torch.cartesian_prod(NODES, NODES)
    masses = torch.cartesian_prod(MASSES, MASSES).prod(1)

    def f(x):
        return torch.exp(x[0].sin() * x[1]) + (x**4).sum()

    x = torch.tensor([0.5, -0.3], dtype=torch.float64)
    found = []
    for node in nodes:
        monkeypatch.setattr(seeds.Randomness, "draw", lambda self, like, v=node: [v[None]])
        found.append(tl.biharmonic(f, samples=1)(x))
    close(torch.stack(found) @ masses, tl.biharmonic(f)(x))


def test_samples_are_averaged_and_drawn_by_key():
    key = tl.random.key(2)
    (drawn,) = seeds.Randomness(3, "normal", None, key).draw([X])
    fourth = torch.stack([along(scalar, v, 4)(X) for v in drawn])
    close(tl.biharmonic(scalar, samples=3, key=key)(X), fourth.mean() / 3)


@pytest.mark.parametrize(
    ("run", "kind", "text"),
    [
        (
            lambda: tl.directional_derivatives(scalar, X, DIRECTIONS, 0),
            TransformError,
            "directional_derivatives: order must be a positive int, got 0",
        ),
        (
            lambda: tl.directional_derivatives(scalar, X, DIRECTIONS[0], 1),
            StructureError,
            "directional_derivatives: directions of shape",
        ),
        (
            lambda: tl.biharmonic(scalar, samples=-1),
            TransformError,
            "biharmonic: samples must be a positive int, got -1",
        ),
    ],
)
def test_errors(run, kind, text):
    with pytest.raises(kind, match=text):
        run()
