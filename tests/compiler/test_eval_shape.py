"""eval_shape: shapes, dtypes and devices of results, through every layer, without values."""

import pytest
import torch
from torch import nn

import torchlayers as tl
from torchlayers import ShapeDtypeStruct
from torchlayers.errors import DataDependentError, TransformError

F64 = torch.float64
X = torch.ones(3, 4, dtype=F64)


def cubes(x):
    return (x**3).sum()


def described(x):
    return ShapeDtypeStruct(x.shape, x.dtype, x.device)


FUNCTIONS = {
    "grad": lambda x, y: tl.grad(cubes)(x),
    "vmap": tl.vmap(torch.outer, (0, None)),
    "hessian": lambda x, y: tl.hessian(cubes)(x),
    "jet": lambda x, y: tl.jet(torch.sin, (x,), ((x, x),)),
    "laplacian": lambda x, y: tl.laplacian(cubes)(x),
    "cond": lambda x, y: tl.cond(x.sum() > 0, torch.sin, torch.cos, x),
    "while_loop": lambda x, y: tl.while_loop(lambda x: x.sum() < 0, torch.exp, x),
    "vmap of while_loop": lambda x, y: tl.vmap(
        lambda x: tl.while_loop(lambda x: x.sum() < 0, torch.exp, x)
    )(x),
    "scan": lambda x, y: tl.scan(lambda c, x: (c + x, x.float()), y, x),
    "custom_root": lambda x, y: tl.grad(lambda y: tl.custom_root(lambda z: z**3 - y, y).sum())(y),
    "cg": lambda x, y: tl.implicit.solvers.cg(lambda v: 2 * v, y),
    "a sparse Jacobian": lambda x, y: tl.jacfwd(torch.square, sparse=True)(y),
    "random numbers": lambda x, y: torch.randn_like(x),
    "plain autograd": lambda x, y: torch.autograd.grad(cubes(z := x.requires_grad_()), z),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_shapes_are_those_of_the_results(name):
    def f(x, y):
        return FUNCTIONS[name](x, y)

    y = torch.ones(4, dtype=F64)
    expected = tl.tree.map_tensors(described, f(X.clone(), y))
    assert tl.eval_shape(f, X, y) == expected
    assert tl.eval_shape(f, described(X), described(y)) == expected


def test_terabytes_take_no_memory():
    x = ShapeDtypeStruct((500_000, 500_000), F64)
    assert tl.eval_shape(lambda x: (x @ x).sum(0), x).shape == (500_000,)


def test_devices_are_followed_whether_they_exist_or_not():
    assert tl.eval_shape(torch.sin, torch.ones(2, device="meta")).device.type == "meta"
    there = ShapeDtypeStruct((2,), device="cuda")
    assert tl.eval_shape(lambda x: (x + 1, x.cpu()), there) == (
        ShapeDtypeStruct((2,), device="cuda:0"),
        ShapeDtypeStruct((2,)),
    )


def test_other_arguments_and_results_stay_as_they_are():
    got = tl.eval_shape(lambda d, n, *, k: {"a": d["x"].tile(n), "k": k}, {"x": X}, 2, k="name")
    assert got == {"a": ShapeDtypeStruct((3, 8), F64), "k": "name"}


def test_nothing_is_written():
    module, total = nn.BatchNorm1d(4, dtype=F64), torch.zeros(4, dtype=F64)
    tl.eval_shape(lambda x: total.add_(module(x.add_(1)).sum(0).detach()), X)
    assert module.num_batches_tracked == 0
    assert not total.any()
    assert (X == 1).all()


@pytest.mark.parametrize("transform", [tl.vmap, lambda f: tl.grad(lambda x: f(x).sum())])
def test_inside_a_transform_shapes_are_those_that_the_function_sees(transform):
    shapes = []

    def f(x):
        shapes.append(tl.eval_shape(lambda y: torch.outer(x.flatten(), y.flatten()), x).shape)
        return x

    transform(f)(X)
    assert shapes in ([(4, 4)], [(12, 12)])


def test_inside_a_capture():
    def f(x):
        return x.new_zeros(tl.eval_shape(torch.outer, x, x).shape) + x

    assert torch.equal(tl.compile(f, backend="replay")(X[0]), f(X[0]))
    assert tl.eval_shape(f, X[0]).shape == (4, 4)


@pytest.mark.parametrize(
    ("f", "words"),
    [
        (lambda x: x.sum().item(), r"<lambda> asks for the value of a tensor .*test_eval_shape"),
        (torch.nonzero, r"nonzero has a result whose shape depends on data"),
    ],
)
def test_shapes_that_depend_on_values_are_refused(f, words):
    with pytest.raises(DataDependentError, match=f"^torchlayers: eval_shape: {words}") as error:
        tl.eval_shape(f, X)
    assert "but no values are computed." in str(error.value)
    assert "compile" not in str(error.value)


def test_solutions_inside_solutions():
    """Operators in place of others are called below the modes that look for captured tensors."""

    def root(x):
        inner = lambda: tl.custom_root(lambda y: y * y - 1 - x * x, torch.ones_like(x))  # noqa: E731
        return tl.custom_root(lambda z: z * z - inner(), torch.ones_like(x)).sum()

    assert tl.eval_shape(tl.vmap(tl.grad(root)), X).shape == X.shape


def test_errors_of_the_function_are_its_own():
    with pytest.raises(ZeroDivisionError):
        tl.eval_shape(lambda x: x * (1 / 0), X)
    with pytest.raises(TransformError, match=r"^torchlayers: vmap: randomness"):
        tl.eval_shape(lambda x: tl.vmap(torch.sin, randomness="never")(x), X)
    assert tl.current_stack() == ()
