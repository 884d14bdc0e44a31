"""Sparse tensors, captured and as arguments: same results as dense, or a clear error."""

import functools

import pytest
import torch
from torch import Tensor

import torchlayers as tl

DENSE = torch.tensor(
    [[1.0, 0.0, 2.0, 0.0], [0.0, 0.0, -1.0, 0.5], [0.0, 3.0, 0.0, 0.0], [-0.5, 0.0, 0.0, 1.5]],
    dtype=torch.float64,
)
X = torch.linspace(-1, 2, 12, dtype=torch.float64).reshape(4, 3)

pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse:UserWarning"),
    pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning"),
]


def with_repeated_places(dense: Tensor) -> Tensor:
    once = dense.to_sparse()
    places = torch.cat((once.indices(), once.indices()), 1)
    values = torch.cat((once.values() * 0.25, once.values() * 0.75))
    return torch.sparse_coo_tensor(places, values, dense.shape)


LAYOUTS = {
    "COO": Tensor.to_sparse,
    "COO with repeated places": with_repeated_places,
    "CSR": Tensor.to_sparse_csr,
    "CSC": Tensor.to_sparse_csc,
    "BSR": lambda dense: dense.to_sparse_bsr((2, 2)),
    "BSC": lambda dense: dense.to_sparse_bsc((2, 2)),
}
PRODUCTS = {
    "a matrix": lambda s, x: s @ x,
    "a vector": lambda s, x: s @ x[:, 0],
    "from the right": lambda s, x: x.mT @ s,
    "mm": torch.mm,
    "mv": lambda s, x: torch.mv(s, x[:, 1]),
    "addmm": lambda s, x: torch.addmm(x, s, x.sin(), beta=2, alpha=0.5),
    "transposed": lambda s, x: s.t() @ x,
    "times a number": lambda s, x: (s * 2) @ x,
    "the sum of two": lambda s, x: (s + s) @ x,
}
# The second is the function for the dense matrix, where it differs.
OTHERS = {
    "sparse.mm": (torch.sparse.mm, torch.mm),
    "sparse.addmm": (lambda s, x: torch.sparse.addmm(x, s, x), lambda s, x: x + s @ x),
    "sparse.sum": (lambda s, x: torch.sparse.sum(s) * x, lambda s, x: s.sum() * x),
    "sparse.softmax": (
        lambda s, x: torch.sparse.softmax(s, 1) @ x,
        lambda s, x: s.masked_fill(s == 0, -torch.inf).softmax(1) @ x,
    ),
    "sampled_addmm": (
        lambda s, x: torch.sparse.sampled_addmm(s, x, x.mT),
        lambda s, x: s + (x @ x.mT) * (s != 0),
    ),
    "to_dense": (lambda s, x: s.to_dense() @ x,) * 2,
    "elementwise": (lambda s, x: s.sin() @ x,) * 2,
    "times a dense matrix": (lambda s, x: s * (x @ x.mT),) * 2,
    "plus a dense matrix": (lambda s, x: x @ x.mT + s,) * 2,
    "by itself": (lambda s, x: (s @ s) @ x,) * 2,
    "negative": (lambda s, x: (-s) @ x,) * 2,
}
# Functions of x, evaluated at X.
TRANSFORMS = {
    "grad": lambda f: tl.grad(lambda x: f(x).sin().sum())(X),
    "vjp": lambda f: tl.vjp(f, X)[1](f(X).detach())[0],
    "jvp": lambda f: tl.jvp(f, (X,), (X.cos(),))[1],
    "jacrev": lambda f: tl.jacrev(f)(X),
    "jacfwd": lambda f: tl.jacfwd(f)(X),
    "hessian": lambda f: tl.hessian(lambda x: f(x).sin().sum())(X),
    "linearize": lambda f: tl.linearize(f, X)[1](X.cos()),
    "vmap": lambda f: tl.vmap(f)(torch.stack((X, 2 * X))),
    "vmap along columns": lambda f: tl.vmap(f, in_dims=2, out_dims=-1)(torch.stack((X, 2 * X), 2)),
    "functionalize": lambda f: tl.functionalize(f)(X),
    "functionalize(grad)": lambda f: tl.functionalize(tl.grad(lambda x: f(x).sin().sum()))(X),
    "vmap(grad)": lambda f: tl.vmap(tl.grad(lambda x: f(x).sin().sum()))(torch.stack((X, 2 * X))),
    "jvp(grad)": lambda f: tl.jvp(tl.grad(lambda x: f(x).sin().sum()), (X,), (X.cos(),))[1],
    "grad(jvp)": lambda f: tl.grad(lambda x: tl.jvp(f, (x,), (x.cos(),))[1].sin().sum())(X),
    "vmap(jvp)": lambda f: tl.vmap(lambda t: tl.jvp(f, (X,), (t,))[1])(torch.stack((X, 2 * X))),
}


def dense(tensor: Tensor) -> Tensor:
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("layout", ["COO", "COO with repeated places", "CSR", "CSC"])
def test_products_with_a_captured_matrix(layout, transform):
    s = LAYOUTS[layout](DENSE)
    for f in PRODUCTS.values():
        expected = TRANSFORMS[transform](functools.partial(f, DENSE))
        torch.testing.assert_close(TRANSFORMS[transform](functools.partial(f, s)), expected)


@pytest.mark.sweep
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_captured_matrix_gives_what_the_dense_one_gives_or_is_refused(layout, transform):
    s = LAYOUTS[layout](DENSE)
    for f, of_dense in [*OTHERS.values(), *((f, f) for f in PRODUCTS.values())]:
        try:
            f(s, X)
        except (RuntimeError, ValueError):  # torch has no such function for this layout
            continue
        try:
            result = TRANSFORMS[transform](lambda x, f=f: dense(f(s, x)))
        except (RuntimeError, NotImplementedError) as error:
            # A reverse pass of the engine, which no layer sees: torch's message.
            assert (
                str(error).startswith("torchlayers: ")
                or "not supported" in str(error)
                or ("not implemented" in str(error))
            )
            continue
        expected = TRANSFORMS[transform](lambda x, of_dense=of_dense: of_dense(DENSE, x))
        torch.testing.assert_close(result, expected)


# Each gives its argument's elements. torch has no derivative for values in compressed layouts.
CONVERSIONS = {
    "strided": Tensor.to_dense,
    "twice": lambda x: x.to_dense().to_dense(),
    "to float64": lambda x: x.to_dense(torch.float64),
    "COO": lambda x: x.to_sparse().to_dense(),
    "CSR": lambda x: x.to_sparse_csr().to_dense(),
    "MKL-DNN's": lambda x: x.float().to_mkldnn().to_dense().double(),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("conversion", CONVERSIONS)
def test_conversions_to_dense_change_nothing_or_are_refused(conversion, transform):
    def f(x):
        return CONVERSIONS[conversion](x.exp()) * x

    expected = TRANSFORMS[transform](lambda x: x.exp() * x)
    try:
        result = TRANSFORMS[transform](f)
    except (RuntimeError, NotImplementedError) as error:
        assert str(error).startswith("torchlayers: ")
        assert conversion in ("COO", "CSR", "MKL-DNN's")
    else:
        narrow = {"rtol": 1e-5, "atol": 1e-5} if conversion == "MKL-DNN's" else {}
        torch.testing.assert_close(dense(result), expected, **narrow)


ONCE = DENSE.to_sparse()
VALUES = ONCE.values()
MADE = {
    "COO": lambda v: torch.sparse_coo_tensor(ONCE.indices(), v, (4, 4)),
    "to_sparse": lambda v: of_values(v).to_sparse(),
    "CSR": lambda v: torch.sparse_csr_tensor(
        DENSE.to_sparse_csr().crow_indices(), DENSE.to_sparse_csr().col_indices(), v, (4, 4)
    ),
}
USES = {
    "a matrix": lambda s: s @ X,
    "a vector": lambda s: s @ X[:, 0],
    "to_dense": lambda s: s.to_dense(),
    "sum": lambda s: s.sum(),
    "times a number": lambda s: (s * 2).to_dense(),
}
BY_VALUES = {
    "grad": lambda f: tl.grad(lambda v: f(v).sin().sum())(VALUES),
    "jvp": lambda f: tl.jvp(f, (VALUES,), (VALUES.cos(),))[1],
    "linearize": lambda f: tl.linearize(f, VALUES)[1](VALUES.cos()),
    "jvp(grad)": lambda f: tl.jvp(tl.grad(lambda v: f(v).sin().sum()), (VALUES,), (VALUES.cos(),))[
        1
    ],
    "grad(jvp)": lambda f: tl.grad(lambda v: tl.jvp(f, (v,), (v.cos(),))[1].sin().sum())(VALUES),
    "grad(grad)": lambda f: tl.grad(lambda v: tl.grad(lambda v: f(v).sin().sum())(v).sin().sum())(
        VALUES
    ),
}


def of_values(values: Tensor) -> Tensor:
    return values.new_zeros(4, 4).index_put(tuple(ONCE.indices()), values)


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("transform", BY_VALUES)
def test_derivatives_by_values_are_right_or_refused(transform, made, use):
    expected = BY_VALUES[transform](lambda v: USES[use](of_values(v)))
    try:
        result = BY_VALUES[transform](lambda v: USES[use](MADE[made](v)))
    except (RuntimeError, NotImplementedError) as error:
        assert str(error).startswith("torchlayers: ")
        assert transform not in ("grad", "jvp") or made == "to_sparse"
    else:
        torch.testing.assert_close(dense(result), expected)


def test_a_second_derivative_that_torch_would_take_for_zero_is_refused():
    places = DENSE.to_sparse().indices()

    def inner(v):
        # Not torch.sparse_coo_tensor, whose entries are differentiated to any order.
        made = torch.ops.aten.sparse_coo_tensor.indices_size(places, v, DENSE.shape)
        return (made @ X).sin().sum()

    with pytest.raises(RuntimeError, match="aten::_values of a sparse tensor"):
        tl.grad(lambda v: tl.grad(inner)(v).sum())(VALUES)


def test_a_sparse_primal_of_jvp_is_refused():
    with pytest.raises(
        tl.errors.StructureError, match="construct the sparse tensor from them inside"
    ):
        tl.jvp(lambda s: s.to_dense(), (ONCE,), (ONCE,))


@pytest.mark.parametrize("reduce", ["sum", "mean", "amax", "amin"])
@pytest.mark.parametrize("transform", ["grad", "vjp", "jacrev", "vmap(grad)"])
def test_products_that_reduce_are_differentiated_or_refused(transform, reduce):
    s = DENSE.to_sparse_csr()

    def f(x):
        return torch.sparse.mm(s, x, reduce)

    if reduce in ("amax", "amin"):
        with pytest.raises(NotImplementedError, match=f"sparse.mm with reduce '{reduce}'"):
            TRANSFORMS[transform](f)
    else:
        counts = (DENSE != 0).sum(1, keepdim=True) if reduce == "mean" else 1
        expected = TRANSFORMS[transform](lambda x: DENSE @ x / counts)
        torch.testing.assert_close(TRANSFORMS[transform](f), expected)


def test_a_strided_nested_tensor_is_refused():
    nested = torch.nested.as_nested_tensor([X, X[:1]])
    with pytest.raises(RuntimeError, match=r"Pad it \(to_padded_tensor\)"):
        tl.grad(
            lambda x: (
                (torch.nested.to_padded_tensor(nested, 0.0) * x.sum()).sum()
                + (nested * 2).to_padded_tensor(0.0).sum()
            )
        )(X)
