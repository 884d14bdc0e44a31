"""Captured control flow: torchlayers.compile, make_graph, torch.compile, torch.export."""

import pytest
import torch

import torchlayers as tl

W = torch.tensor([2.0, 3.0])
X = torch.tensor([1.0, 0.5])


def of_operands(x):
    return tl.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), x)


def of_what_it_captures(x):
    y = x.exp()
    return tl.cond(x.sum() > 0, lambda: y * W, lambda: y.cos() + x)


def of_a_pytree(x):
    got = tl.cond(
        x.prod() > 0, lambda x: {"a": (x["b"], W)}, lambda x: {"a": (W, x["b"])}, {"b": x}
    )
    return got["a"][0] - 2 * got["a"][1]


def by_number(x):
    index = (x.sum() > 0).long() + (x[0] > 0.7).long()
    return tl.switch(index, [torch.sin, lambda x: x * W, torch.exp], x)


def fixed(x):
    """A loop whose number of trips does not depend on data."""
    last, ys = tl.scan(lambda c, y: (c * y, c + W), x, torch.stack([x, x + 1]))
    total = tl.associative_scan(torch.mul, ys).sum(0) + tl.map(torch.sin, last)
    return tl.fori_loop(0, 3, lambda i, x: x * i + W, total)


def root(x):
    return tl.cond(x.sum() > 0, lambda: x.sqrt(), lambda: x * W)


BRANCHES = [of_operands, of_what_it_captures, of_a_pytree, by_number, root]


def doublings(x):
    return tl.while_loop(lambda x: x.sum() < 10, lambda x: 2 * x + 1, x)


FUNCTIONS = [*BRANCHES, fixed, doublings]


def total(f):
    return lambda x: f(x).sum()


NESTS = {
    "plain": lambda f: f,
    "vmap": lambda f: lambda x: tl.vmap(f)(torch.stack([x, -x, x / 2])),
    "grad": lambda f: tl.grad(total(f)),
    "jvp": lambda f: lambda x: tl.jvp(f, (x,), (x.cos(),))[1],
    "vmap(grad)": lambda f: lambda x: tl.vmap(tl.grad(total(f)))(torch.stack([x, -x, x / 2])),
}


@pytest.mark.sweep
@pytest.mark.parametrize("nest", NESTS)
@pytest.mark.parametrize("f", FUNCTIONS)
def test_one_capture_runs_either_branch(f, nest):
    """At the third input, the branch not taken would compute the root of a negative number."""
    nested = NESTS[nest](f)
    compiled = tl.compile(nested, backend="replay")
    for x in (X, -X, torch.tensor([-1.0, 0.0])):
        torch.testing.assert_close(compiled(x), nested(x))
    assert len(compiled.report().signatures) == 1


@pytest.mark.parametrize("f", [of_what_it_captures])
def test_inductor_compiles_it(f):
    compiled = tl.compile(f)
    for x in (X, -X):
        torch.testing.assert_close(compiled(x), f(x))


def test_autograd_differentiates_what_was_captured():
    w = W.clone().requires_grad_()
    f = tl.compile(lambda x: tl.cond(x.sum() > 0, lambda: x * w, lambda: x.cos()), backend="replay")
    torch.testing.assert_close(torch.autograd.grad(f(X).sum(), w), (X,))


@pytest.mark.sweep
@pytest.mark.parametrize("f", [of_what_it_captures, by_number, fixed])
def test_dynamo_traces_control_flow(f):
    compiled = torch.compile(f, backend="aot_eager", fullgraph=True)
    for x in (X, -X):
        torch.testing.assert_close(compiled(x), f(x))


def test_dynamo_traces_while_loop():
    compiled = torch.compile(doublings, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(X), doublings(X))


class Calls(torch.nn.Module):
    def __init__(self, f):
        super().__init__()
        self.f = f

    def forward(self, x):
        return self.f(x)


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore:Exporting a model while:UserWarning")
@pytest.mark.parametrize("f", [of_what_it_captures, by_number, doublings])
def test_export_supports_control_flow(f):
    exported = torch.export.export(Calls(f), (X,)).module()
    for x in (X, -X):
        torch.testing.assert_close(exported(x), f(x))


@pytest.mark.sweep(one_in=8)
@pytest.mark.parametrize("loops", [False, True], ids=["cond", "while_loop"])
@pytest.mark.parametrize("derivative", [tl.jacfwd, tl.jacrev, tl.hessian])
def test_tensors_without_tangent_have_none_inside_branches(derivative, loops):
    """A tangent of zeros for w would give nan when multiplied by inf."""
    w = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)

    def f(x):
        if loops:
            begin = torch.full_like(x, 0.25)
            return tl.while_loop(lambda y: y.sum() < 1, lambda y: y + x @ w, begin).sum()
        return sum(each.sum() for each in tl.cond(x[0] > 0, lambda x: (x @ w, x), _both, x))

    def _both(x):
        return x @ w * 2, x.cos()

    x = torch.tensor([1.0, torch.inf], dtype=torch.float64)
    compiled = tl.compile(derivative(f), backend="replay", check=False)
    torch.testing.assert_close(compiled(x), derivative(f)(x), equal_nan=True)


def test_captured_cond_has_both_branches():
    graph = tl.make_graph(of_what_it_captures)(X)
    assert [str(node.target) for node in graph.graph.nodes].count("cond") == 1
    assert not tl.current_stack()


@pytest.mark.parametrize("nest", ["plain", "grad", "vmap"])
@pytest.mark.parametrize("other", [lambda x: x[0], lambda x: x.double()], ids=["shape", "dtype"])
def test_branches_of_different_shape_or_dtype_are_rejected(nest, other):
    def f(x):
        return tl.cond(x.sum() > 0, lambda: x, lambda: other(x))

    captured = pytest.warns(UserWarning, match="the same shapes.* it runs uncompiled")
    if nest == "vmap":  # which has both branches in every call
        captured = pytest.raises(tl.errors.StructureError, match="the same shapes")
    with captured:
        tl.compile(NESTS[nest](f), backend="replay")(X)
    assert tl.current_stack() == ()


def test_differentiated_branch_may_draw_random_numbers():
    def f(x):
        return tl.cond(x.sum() > 0, lambda: x * torch.rand(2), lambda: x).sum()

    compiled = tl.compile(tl.grad(f, has_aux=False), backend="replay")
    torch.manual_seed(0)
    slopes = compiled(X)
    torch.manual_seed(0)
    torch.testing.assert_close(slopes, torch.rand(2))


def gradient_inside(x):
    """Transforms in a branch: of its operands, and of captured tensors."""
    y = 2 * x

    def slope(z):
        return tl.grad(lambda z: (z * z * y).sum())(z) + tl.vmap(torch.sin)(y)

    return tl.cond(x.sum() > 0, slope, lambda z: tl.jvp(torch.exp, (y,), (z,))[1], x)


def torchs_gradient_inside(x):
    y = 2 * x
    return tl.cond(x.sum() > 0, lambda: torch.func.grad(lambda z: z.sin().sum())(y), lambda: x)


@pytest.mark.parametrize("nest", ["grad", "jvp", "vmap(grad)"])
def test_torch_func_transform_of_a_captured_tensor_is_rejected_under_a_layer(nest):
    with pytest.raises(tl.errors.TransformError, match=r"a transform of torch\.func on a tensor"):
        tl.make_graph(NESTS[nest](torchs_gradient_inside))(X)
    assert tl.current_stack() == ()


def torchs_gradient_of_an_operand(x):
    return tl.cond(
        x.sum() > 0, torch.func.grad(lambda z: z.sin().sum()), lambda x: x.clone(), 2 * x
    )


@pytest.mark.sweep(one_in=16)
@pytest.mark.parametrize(
    ("f", "nest"),
    [
        *((gradient_inside, nest) for nest in NESTS),
        (torchs_gradient_inside, "plain"),
        (torchs_gradient_of_an_operand, "vmap(grad)"),
    ],
)
def test_branches_may_call_transforms(f, nest):
    nested = NESTS[nest](f)
    compiled = tl.compile(nested, backend="replay")
    for x in (X, -X):
        torch.testing.assert_close(compiled(x), nested(x))
