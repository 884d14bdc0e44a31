"""User-defined pytrees that drop or reject non-tensors only ever receive tensors."""

import pytest
import torch
import torch.func
from torch import Tensor
from torch.utils import _pytree as pytree

import torchlayers as tl
from torchlayers.graph import differentiate


class Output(dict):
    """Like the outputs of the transformers library's models: an entry that is None is dropped."""


def _to_output(values, keys):
    return Output(
        {key: value for key, value in zip(keys, values, strict=True) if value is not None}
    )


class State:
    """Inspects its leaves, as users' classes do."""

    def __init__(self, x, y):
        assert isinstance(x, Tensor) and isinstance(y, Tensor)
        self.x, self.y, self.size = x, y, x.numel() + y.numel()


pytree.register_pytree_node(Output, lambda o: (list(o.values()), list(o)), _to_output)
pytree.register_pytree_node(
    State,
    lambda s: ([s.x, s.y], None),
    lambda leaves, _: State(*leaves),
    serialized_type_name="tests.State",
    flatten_with_keys_fn=lambda s: (
        [(pytree.GetAttrKey("x"), s.x), (pytree.GetAttrKey("y"), s.y)],
        None,
    ),
)

X = torch.tensor([0.5, 1.0, 2.0])
SIZES = [1, 3, 256, 300]  # from 512 elements on, Jacobians are computed one tensor at a time
CHUNKS = [{}, {"chunk_size": 1}, {"chunk_size": 7}, {"chunk_size": "auto"}]
chunks = pytest.mark.parametrize("options", CHUNKS, ids=str)
# Three large tensors take long in chunks of one.
sizes_and_chunks = pytest.mark.parametrize(
    ("size", "options"),
    [(n, options) for n in SIZES for options in CHUNKS if n < 4 or options.get("chunk_size") != 1],
)


def points(size):
    return torch.linspace(0.5, 1.5, size).double(), torch.linspace(-1, 1, size).double()


@pytest.mark.parametrize("api", ["jacrev", "jacfwd"])
@sizes_and_chunks
def test_an_output_that_drops_none(api, size, options):
    x, _ = points(size)
    jacobian = getattr(tl, api)(lambda x: Output(a=x**2, b=x.sin(), c=x.sum()), **options)(x)
    assert type(jacobian) is Output
    torch.testing.assert_close(jacobian["a"], torch.diag(2 * x))
    torch.testing.assert_close(jacobian["b"], torch.diag(x.cos()))
    torch.testing.assert_close(jacobian["c"], torch.ones_like(x))


@pytest.mark.parametrize("api", ["jacrev", "jacfwd"])
@sizes_and_chunks
def test_an_output_that_looks_at_its_leaves(api, size, options):
    x, _ = points(size)
    jacobian = getattr(tl, api)(lambda x: State(x**2, x.sin()), **options)(x)
    torch.testing.assert_close(jacobian.x, torch.diag(2 * x))
    torch.testing.assert_close(jacobian.y, torch.diag(x.cos()))


@pytest.mark.parametrize("api", ["jacrev", "jacfwd"])
@sizes_and_chunks
def test_an_argument_that_drops_none(api, size, options):
    x, y = points(size)
    jacobian = getattr(tl, api)(lambda o: o["a"] * o["b"], **options)(Output(a=x, b=y))
    assert type(jacobian) is Output
    torch.testing.assert_close(jacobian["a"], torch.diag(y))
    torch.testing.assert_close(jacobian["b"], torch.diag(x))


@pytest.mark.parametrize("api", ["jacrev", "jacfwd"])
@sizes_and_chunks
def test_an_argument_that_looks_at_its_leaves(api, size, options):
    x, y = points(size)
    jacobian = getattr(tl, api)(lambda s, z: s.x * s.y * z, (0, 1), **options)(State(x, y), x)
    torch.testing.assert_close(jacobian[0].x, torch.diag(x * y))
    torch.testing.assert_close(jacobian[0].y, torch.diag(x * x))
    torch.testing.assert_close(jacobian[1], torch.diag(x * y))


@pytest.mark.parametrize("size", SIZES)
@chunks
def test_hessian_of_an_argument_that_drops_none(size, options):
    if size > 3 and options:
        options = {"chunk_size": 150}
    x, y = points(size)
    hessian = tl.hessian(lambda o: (o["a"] ** 2 * o["b"]).sum(), **options)(Output(a=x, b=y))
    torch.testing.assert_close(hessian["a"]["a"], torch.diag(2 * y))
    torch.testing.assert_close(hessian["a"]["b"], torch.diag(2 * x))
    torch.testing.assert_close(hessian["b"]["b"], torch.diag(0 * x))


def total(state):
    return (state.x**2 * state.y).sum()


def pulled_back(s):
    output, vjp_fn = tl.vjp(lambda s: State(s.x * s.y, s.x.sin()), s)
    return vjp_fn(output), vjp_fn(State(torch.ones_like(s.x), torch.ones_like(s.y)))


def linearized(s):
    output, jvp_fn = tl.linearize(lambda s: State(s.x * s.y, s.x.sin()), s)
    return output, jvp_fn(s)


CALLS = {
    "grad": lambda s: tl.grad(total)(s),
    "grad by another argument": lambda s: tl.grad(lambda z, s: (z * s.x).sum())(s.x, s),
    "grad_and_value": lambda s: tl.grad_and_value(total)(s),
    "aux": lambda s: tl.grad(lambda s: (total(s), s), has_aux=True)(s),
    "vjp": pulled_back,
    "vjp of one element": lambda s: tl.vjp(lambda s: s.x.sum(), s)[1](None),
    "jvp": lambda s: tl.jvp(lambda s: State(s.x * s.y, s.y.sin()), (s,), (s,)),
    "jvp with aux": lambda s: tl.jvp(lambda s: (s.x * s.y, s), (s,), (s,), has_aux=True),
    "jacfwd by another argument": lambda s: tl.jacfwd(lambda z, s: z * s.x)(s.x, s),
    "jacrev with aux": lambda s: tl.jacrev(lambda x: (x * s.x, State(x, x)), has_aux=True)(s.y),
    "jacfwd with aux": lambda s: tl.jacfwd(lambda x: (x * s.x, State(x, x)), has_aux=True)(s.y),
    "hvp": lambda s: tl.hvp(total, (s,), (s,)),
    "vmap": lambda s: tl.vmap(lambda s: State(s.x * s.y, s.y.sin()))(s),
    "vmap of some": lambda s: tl.vmap(lambda s, x: (s, x), (0, None), (0, None))(s, s.x),
    "vmap in chunks": lambda s: tl.vmap(lambda s: State(s.x * s.y, s.x), chunk_size=2)(s),
    "vmap of grad": lambda s: tl.vmap(tl.grad(total))(s),
    "functionalize": lambda s: tl.functionalize(lambda s: State(s.x.mul(2).add_(1), s.y))(s),
    "linearize": linearized,
}


@pytest.mark.parametrize("size", [3, 256])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_pytree_only_receives_tensors(call, size):
    x, y = points(size)
    leaves = pytree.tree_leaves(call(State(x, y)))
    assert leaves and all(isinstance(leaf, Tensor) for leaf in leaves)


def test_in_dims_of_a_dict_go_by_its_keys():
    x, y = points(3)
    by_key = tl.vmap(lambda d: d["x"] * d["y"], in_dims=({"y": None, "x": 0},))({"x": x, "y": y})
    torch.testing.assert_close(by_key, x[:, None] * y)


IN_DIMS = {
    "for all of it": (0, True),
    "for each": ({"a": 0, "b": (0, None)}, True),
    "in another order": ({"b": (0, None), "a": 0}, True),
    "for a part": ({"a": 0, "b": 0}, True),
    "another key": ({"a": 0, "c": 0}, False),
    "too few": ({"a": 0}, False),
    "another container": ([0, 0], False),
    "too many in a part": ({"a": 0, "b": (0, 0, 0)}, False),
}


@pytest.mark.parametrize(("in_dims", "fits"), IN_DIMS.values(), ids=IN_DIMS)
def test_in_dims_fit_or_are_refused(in_dims, fits):
    x, _ = points(3)
    argument = {"a": x, "b": (x, x)}
    call = tl.vmap(lambda d: d["a"] * d["b"][0], in_dims=(in_dims,))
    if fits:
        torch.testing.assert_close(call(argument), x * x)
    else:
        with pytest.raises(ValueError, match="in_dims don't match"):
            call(argument)


def test_old_style_function_may_store_pytrees_on_ctx():
    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.state = State(x, y)
            return x * y

        @staticmethod
        def backward(ctx, g):
            return g * ctx.state.y, g * ctx.state.x

    x, y = points(3)
    torch.testing.assert_close(tl.grad(lambda x: Product.apply(x, y).sum())(x), y)


def test_an_argument_of_an_exported_graph():
    class Module(torch.nn.Module):
        def forward(self, s):
            return (s.x**2 * s.y).sum()

    x, y = points(3)
    exported = torch.export.export(Module(), (State(x, y),), strict=False)
    differentiated = differentiate(exported.module())
    torch.testing.assert_close(tl.grad(differentiated)(State(x, y)).x, 2 * x * y)


ERRORS = {
    "jacrev": lambda f: tl.jacrev(f)(torch.ones(300)),
    "jacfwd": lambda f: tl.jacfwd(f)(torch.ones(300)),
    "hessian": lambda f: tl.hessian(f)(torch.ones(300)),
    "jacrev in chunks": lambda f: tl.jacrev(f, chunk_size=7)(torch.ones(300)),
    "linearize": lambda f: tl.linearize(f, torch.ones(300)),
    "vjp": lambda f: tl.vjp(f, torch.ones(300)),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_name_what_the_user_called(name):
    with pytest.raises(RuntimeError, match=f"^torchlayers: {name.split()[0]}: the function must"):
        ERRORS[name](lambda x: (x, "no tensor"))


# torch.func rejects an aux of None.
WITH_AUX = {
    "grad": lambda f: tl.grad(lambda x: (f(x).sum(), None), has_aux=True)(X)[1],
    "grad_and_value": lambda f: tl.grad_and_value(lambda x: (f(x).sum(), None), has_aux=True)(X)[1][
        1
    ],
    "vjp": lambda f: tl.vjp(lambda x: (f(x), None), X, has_aux=True)[2],
    "jvp": lambda f: tl.jvp(lambda x: (f(x), None), (X,), (X,), has_aux=True)[2],
    "jacrev": lambda f: tl.jacrev(lambda x: (f(x), None), has_aux=True)(X)[1],
    "jacfwd": lambda f: tl.jacfwd(lambda x: (f(x), None), has_aux=True)(X)[1],
    "hvp": lambda f: tl.hvp(lambda x: (f(x).sum(), None), (X,), (X,), has_aux=True)[1],
}


@pytest.mark.parametrize("name", WITH_AUX)
def test_an_aux_of_none_is_none(name):
    assert WITH_AUX[name](torch.sin) is None
