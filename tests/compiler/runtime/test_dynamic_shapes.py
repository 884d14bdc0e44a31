"""Sizes that change from call to call and share one captured graph."""

import warnings

import pytest
import torch
import torch.nn.functional as F

import torchlayers as tl
from tests.compiler.hidden_runs import counted
from torchlayers.compiler.inductor import compile as inductor

W = torch.linspace(-1, 1, 12).reshape(3, 4)


def layer(x):
    return (x @ W).tanh()


def batch(size):
    return torch.linspace(-1, 2, 3 * size).reshape(size, 3)


@pytest.fixture(autouse=True)
def nothing_is_said():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def energy(x):
    return layer(x).square().sum()


def of_pairs(x):
    """Returns an energy summed over all pairs of a sample's entries."""
    apart = (x[:, None] - x[None]).square() + 1
    return (apart**-6 - apart**-3).sum()


def columns(func):
    """Returns the Jacobian with respect to three numbers that all samples share."""
    return lambda x: tl.jacfwd(lambda w: func(w * x))(torch.ones(3))


PICKED = torch.tensor([2, 0, 2])
KERNEL = torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(2, 1, 3)

# Each takes one sample or a batch of them.
OF_SAMPLES = {
    "an index": lambda x: x[..., PICKED].square() * x[..., :1],
    "a part of several": lambda x: torch.mul(*x[..., :2].split(1, -1)),
    "several together": lambda x: torch.cat([x, x.square()], -1).sin(),
    "padding": lambda x: F.pad(x, (1, 2)).square(),
    "less than nothing of padding": lambda x: F.pad(x, (-1, 1), value=2.0).square(),
    # In double precision: in single, torch chooses the algorithm by the number of images.
    "a convolution": lambda x: F.conv1d(x.double().reshape(-1, 1, 3), KERNEL, padding=1).tanh(),
    "layer norm": lambda x: F.layer_norm(x, (3,)).pow(3),
    "the largest": lambda x: x.max(-1).values * x.sum(-1),
    "the largest two": lambda x: x.topk(2, -1).values.square(),
    "words": lambda x: x.sin() @ F.embedding(PICKED, W.t()).t(),
    "products of all": lambda x: x.prod(-1),
    "a triangle": lambda x: (x[..., :, None] * x[..., None, :]).tril().sin(),
}


def summed(func):
    return lambda x: func(x).sum() + func(x).square().mean()


FUNCTIONS = {
    **{f"gradients of {name}": tl.vmap(tl.grad(summed(f))) for name, f in OF_SAMPLES.items()},
    **{f"Hessians of {name}": tl.vmap(tl.hessian(summed(f))) for name, f in OF_SAMPLES.items()},
    **{f"columns of {name}": columns(f) for name, f in OF_SAMPLES.items()},
    "Hessians": tl.vmap(tl.hessian(energy)),
    "Hessians of pairs": tl.vmap(tl.hessian(of_pairs)),
    "Jacobians": tl.vmap(tl.jacrev(layer)),
    "Jacobians by columns": tl.vmap(tl.jacfwd(layer)),
    "a Jacobian with a row for each number": lambda x: tl.jacrev(lambda w: layer(w * x))(
        torch.ones(3)
    ),
    "cond": lambda x: tl.cond(
        x.sum() > 9, lambda x: x.sin() * x.shape[0], lambda x: x + x.new_ones(x.shape[0], 1), x
    ),
    "cond of a sample": tl.vmap(lambda x: tl.cond(x.sum() > 1, torch.sin, torch.cos, x)),
    "cond in cond": lambda x: tl.cond(
        x.sum() > 9,
        lambda x: tl.cond(x[0, 0] < 0, torch.sin, lambda x: x * x.shape[0], x),
        torch.cos,
        x,
    ),
    "while_loop": lambda x: tl.while_loop(
        lambda carry: carry[0].sum() < 3,
        lambda carry: (carry[0] + 1, carry[1].tanh() * x.shape[0]),
        (torch.zeros(()), x),
    ),
    "fori_loop": tl.vmap(tl.grad(lambda x: tl.fori_loop(0, 3, lambda i, c: c.tanh(), x).sum())),
    "scan": tl.vmap(tl.grad(lambda x: tl.scan(lambda c, w: (c * w[:3], c), x, W.t())[0].sum())),
    "a function": lambda x: layer(x).sum(0),
    "grad": tl.grad(lambda x: layer(x).square().mean()),
    "grad of captured weights": lambda x: tl.grad(lambda w: (x @ w).tanh().mean())(W),
    "vmap": tl.vmap(layer),
    "per-sample gradients": lambda x: tl.vmap(
        tl.grad(lambda w, x: (x @ w).tanh().mean()), in_dims=(None, 0)
    )(W, x),
    "jvp": lambda x: tl.jvp(layer, (x,), (x.cos(),)),
    "Hessian-vector product": lambda x: tl.jvp(tl.grad(lambda x: layer(x).sum()), (x,), (x,)),
    "jacrev": lambda x: tl.jacrev(lambda w: (x @ w).tanh().mean(0))(W),
    "softmax": tl.grad(lambda x: (x.softmax(-1) * x).sum()),
    "layer norm": tl.grad(lambda x: F.layer_norm(x, (3,)).pow(3).sum()),
    "batch norm": tl.grad(lambda x: F.batch_norm(x, None, None, training=True).pow(3).sum()),
    "attention": tl.grad(lambda x: F.scaled_dot_product_attention(*[x[None]] * 3).sum()),
    "a slice and an entry": tl.grad(lambda x: x[1:].sum() + x[0].prod()),
    "two of them together": tl.grad(lambda x: torch.cat([x, 2 * x]).square().sum()),
    "other strides": lambda x: tl.vmap(torch.sin)(x.t()).t() + x.t().contiguous().t(),
}


@pytest.mark.sweep(one_in=16)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_changed_size_does_not_run_python_again(name):
    f = counted(FUNCTIONS[name])
    compiled = tl.compile(f, dynamic=True, backend="replay")
    for size in (5, 6, 7):  # alone, with a symbolic size, and checked against a capture of its own
        torch.testing.assert_close(compiled(batch(size)), FUNCTIONS[name](batch(size)))
    assert f.count == 3
    for size in (4, 100, 6, 5, 31):
        torch.testing.assert_close(compiled(batch(size)), FUNCTIONS[name](batch(size)))
    assert f.count == 3
    alone, many = compiled.report().signatures
    assert (alone.arguments, alone.calls) == ("f32[5, 3]", 1)
    assert (many.arguments, many.calls, many.how) == ("f32[*, 3]", 7, "replay")
    assert many.why == "argument 0 has shape (6, 3), was (5, 3)"


def test_sizes_0_and_1_are_captured_separately():
    f = counted(layer)
    compiled = tl.compile(f, dynamic=True, backend="replay")
    for size in (5, 6, 7, 1, 0, 8, 1, 0):
        torch.testing.assert_close(compiled(batch(size)), layer(batch(size)))
    assert f.count == 5


def test_several_sizes_of_several_arguments():
    f = counted(lambda x, y, scale: tl.vmap(torch.outer)(x, y) * scale)
    compiled = tl.compile(f, dynamic=True, backend="replay")
    for size, m, n in ((4, 2, 3), (5, 3, 2), (6, 4, 5), (7, 8, 9), (3, 7, 7)):
        x, y = torch.rand(size, m), torch.rand(size, n)
        torch.testing.assert_close(compiled(x, y, 2.0), tl.vmap(torch.outer)(x, y) * 2)
    assert f.count == 3


@pytest.mark.sweep
@pytest.mark.parametrize(
    "part",
    [
        lambda x: x[:, ::2],
        lambda x: x[..., 1:],
        lambda x: x.transpose(0, 1)[::2].transpose(0, 1),
        lambda x: x[:, :1].expand(-1, 5, -1),
    ],
    ids=["rows", "columns", "rows, transposed", "expanded"],
)
def test_memory_with_holes(part):
    """Strides that are not products of sizes."""
    slopes = tl.vmap(tl.grad(lambda x: (x.sin() @ x.mT).sum()))
    f = counted(slopes)
    compiled = tl.compile(f, dynamic=True, backend="replay")
    for size in (3, 4, 6, 9, 4):
        x = part(torch.rand(size, 8, 4))
        torch.testing.assert_close(compiled(x), slopes(x))
    assert f.count == 3


def test_sizes_in_results_and_arithmetic():
    f = lambda x: (x.sum(0) / x.shape[0], x.shape[0], [2 * x.shape[0] + 1])  # noqa: E731
    compiled = tl.compile(f, dynamic=True, backend="replay")
    for size in (5, 6, 7, 8, 9):
        torch.testing.assert_close(compiled(batch(size)), f(batch(size)))
    assert len(compiled.report().signatures) == 2


def test_writes_and_random_draws_at_many_sizes():
    def f(x):
        x.add_(torch.rand(x.shape[0], 1))
        return x[1:], x * 2

    compiled = tl.compile(f, dynamic=True, backend="replay")
    for size in (5, 6, 7, 8):
        x, y = batch(size), batch(size)
        found = []
        for func, given in ((f, x), (compiled, y)):
            torch.manual_seed(size)
            found.append((func(given), torch.rand(1)))
        torch.testing.assert_close(*found)
        torch.testing.assert_close(x, y)
        assert found[1][0][0].data_ptr() == y[1:].data_ptr()


def test_other_outcome_of_a_size_condition_is_another_capture():
    f = lambda x: x.sin() if x.shape[0] > 10 else x.cos()  # noqa: E731
    compiled = tl.compile(f, dynamic=True, backend="replay")
    for size in (5, 6, 7, 11, 12, 13, 8, 20):
        torch.testing.assert_close(compiled(batch(size)), f(batch(size)))
    assert len(compiled.report().signatures) <= 4


NUMBERS = {
    "range": lambda x: sum(x[i] for i in range(x.shape[0])),
    "len": lambda x: x * len(x),
    "int": lambda x: x * int(x.shape[0]),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_size_used_as_a_number_warns_once(name):
    compiled = tl.compile(NUMBERS[name], dynamic=True, backend="replay")
    torch.testing.assert_close(compiled(batch(5)), NUMBERS[name](batch(5)))
    with pytest.warns(
        UserWarning, match="can't be captured with symbolic sizes: a size is used as"
    ):
        torch.testing.assert_close(compiled(batch(6)), NUMBERS[name](batch(6)))
    for size in (7, 8):
        torch.testing.assert_close(compiled(batch(size)), NUMBERS[name](batch(size)))
    assert len(compiled.report().signatures) == 4


def test_unguarded_size_is_found_at_the_second_size():
    """Such as a size in a C++ list of ints, which has no guard. NOTE [A size that is a number]."""

    def f(x):
        return x * float(str(6 if isinstance(x.shape[0], torch.SymInt) else x.shape[0]))

    compiled = tl.compile(f, dynamic=True, backend="replay")
    for size in (5, 6):
        torch.testing.assert_close(compiled(batch(size)), size * batch(size))
    with pytest.warns(UserWarning, match="is wrong: result 0 is off"):
        torch.testing.assert_close(compiled(batch(7)), 7 * batch(7))
    for size in (8, 7, 9):
        torch.testing.assert_close(compiled(batch(size)), size * batch(size))


def test_calls_under_autograd_are_captured_per_shape():
    compiled = tl.compile(layer, dynamic=True, backend="replay")
    for size in (5, 6, 7):
        x = batch(size).requires_grad_()
        if size == 6:
            with pytest.warns(UserWarning, match="it is differentiated by plain autograd"):
                y = compiled(x)
        else:
            y = compiled(x)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        torch.testing.assert_close(gradient, tl.grad(lambda x: layer(x).sum())(batch(size)))


def test_a_captured_tensor_of_another_shape():
    weights = [torch.ones(3, 4)]
    parameter = torch.nn.Parameter(weights[0], requires_grad=False)
    compiled = tl.compile(lambda x: x @ parameter, dynamic=True, backend="replay")
    for size in (5, 6, 7):
        compiled(batch(size))
    parameter.data = torch.ones(3, 2)
    for size in (5, 6, 7, 8):
        torch.testing.assert_close(compiled(batch(size)), batch(size) @ torch.ones(3, 2))


def test_more_sizes_than_captures_are_stored():
    f = counted(layer)
    compiled = tl.compile(f, dynamic=True, backend="replay")
    for size in (*range(2, 140), *range(2, 140)):
        torch.testing.assert_close(compiled(batch(size)), layer(batch(size)))
    assert f.count == 3
    assert sum(entry.calls for entry in compiled.report().signatures) == 2 * 138


def test_inductor_compiles_once_for_many_sizes(monkeypatch):
    compile_graph = inductor.compile_graph
    compiled_graphs = []

    def counted_compile(graph, *rest):
        compiled_graphs.append(graph)
        return compile_graph(graph, *rest)

    monkeypatch.setattr(inductor, "compile_graph", counted_compile)
    f = tl.vmap(tl.grad(lambda x: layer(x).square().sum()))
    compiled = tl.compile(f, dynamic=True)
    for size in (5, 6, 7, 8, 64, 5000):
        torch.testing.assert_close(compiled(batch(size)), f(batch(size)))
    assert len(compiled_graphs) == 2
    assert [entry.how for entry in compiled.report().signatures] == ["inductor", "inductor"]
