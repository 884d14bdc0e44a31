"""Captured control flow whose bodies index by a tensor, x[i], stays one operator in every layer."""

import pytest
import torch
from torch.fx import GraphModule

import torchlayers as tl
from tests.control_flow.rolled_programs import NESTS

X = torch.linspace(0.2, 1.5, 12, dtype=torch.float64)
PLACES = torch.tensor([7, 3, 3, 0, 11, 5, 2, 9, 10, 1])


def in_map(x):
    return tl.map(lambda i: x[i].sin() * x[i % 3], PLACES)


def in_map_of_places_from_the_input(x):
    return tl.map(lambda i: x[i].sin(), (x * 7).long())


def in_scan(x):
    return tl.scan(lambda c, i: (c * x[i], c.sin()), x[0], torch.arange(12))[1]


def written(x):
    def step(i):
        y = x.clone()
        y[i] = y[i] * 2
        return y.sin().prod()

    return tl.map(step, torch.arange(12))


def in_while_loop(x):
    def step(carry):
        return carry[0] + 1, carry[1] * 1.1 + x[carry[0]].sin()

    start = (torch.zeros((), dtype=torch.int64), x[0])
    return tl.while_loop(lambda carry: carry[0] < 12, step, start)[1].reshape(1)


def in_cond(x):
    i = (x[1] * 3).long()
    return tl.cond(x.sum() > 0, lambda: x[i].sin(), lambda: x[i].cos()).reshape(1)


def along(f):
    return lambda x: tl.jet(f, (x,), ((torch.ones_like(x), x),))[1]


LAYERS = {
    **{name: NESTS[name] for name in ("plain", "grad", "jvp", "vmap(grad)", "grad(jvp)")},
    "functionalize": tl.functionalize,
    "jet": along,
    "laplacian": tl.laplacian,
    "jet(laplacian)": lambda f: along(tl.laplacian(f)),
    "grad(jet)": lambda f: NESTS["grad"](lambda x: along(f)(x)[1]),
}


def rolled(graph):
    names = ("scan", "while_loop", "cond")
    return any(str(node.target) in names for node in graph.graph.nodes)


@pytest.mark.sweep
@pytest.mark.parametrize("nest", LAYERS)
@pytest.mark.parametrize(
    "f", [in_map, in_map_of_places_from_the_input, in_scan, written, in_while_loop, in_cond]
)
def test_a_body_that_indexes_by_a_tensor_is_one_operator(f, nest):
    nested = LAYERS[nest](f)
    graph = tl.make_graph(nested)(X)
    assert rolled(graph) or (f is in_cond and nest == "vmap(grad)")  # a batched predicate
    compiled = tl.compile(nested, backend="replay")
    for x in (X, X.flip(0)):
        torch.testing.assert_close(compiled(x), nested(x))


def test_a_loop_that_indexes_is_rolled_in_jet_of_laplacian():
    nested = along(tl.laplacian(in_map))
    assert rolled(tl.make_graph(nested)(X))
    torch.testing.assert_close(tl.compile(nested, backend="replay")(X), nested(X))


def test_a_short_unrolled_loop_still_knows_its_literal_places():
    graph = tl.make_graph(lambda x: tl.map(lambda i: x[i] * 2, torch.arange(4)))(X)
    assert "index_select" not in graph.code


def read_through_a_view(x):
    def step(i):
        y = x * 2
        before = y[i]
        y[i] = x.sum()
        return (y * before).sum()

    return tl.map(step, torch.arange(12))


@pytest.mark.parametrize("nest", ["plain", "grad", "vmap(grad)", "jet"])
def test_a_loop_that_reads_a_view_after_a_write_is_unrolled(nest):
    nested = LAYERS[nest](read_through_a_view)
    compiled = tl.compile(nested, backend="replay")
    for x in (X, X.flip(0)):
        torch.testing.assert_close(compiled(x), nested(x))


class OneHot(torch.autograd.Function):
    @staticmethod
    def forward(x, i):
        return torch.nn.functional.one_hot(i, 4) * x[i]

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx, g):
        (i,) = ctx.saved_tensors
        of_place = g.index_select(0, i.reshape(1)).reshape(())
        return g.new_zeros(12).index_put((i,), of_place), None


def test_capture_replaces_functions_inside_a_function_under_a_transform():
    f = tl.grad(lambda x, i: OneHot.apply(x.sin(), i).sum())
    args = X, torch.tensor(2)
    torch.testing.assert_close(tl.compile(f, backend="replay")(*args), f(*args))


def node_count(f, size):
    graph: GraphModule = tl.make_graph(f)(torch.linspace(0.5, 1.0, size, dtype=torch.float64))
    return len(graph.graph.nodes)


@pytest.mark.parametrize("nest", ["jvp", "jet", "laplacian"])
def test_an_associative_scan_in_a_layer_has_logarithmic_depth(nest):
    nested = LAYERS[nest](lambda x: tl.associative_scan(torch.mul, x))
    assert node_count(nested, 128) < 2.5 * node_count(nested, 16)
