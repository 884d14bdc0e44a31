"""while_loop in compiled functions: one operator, under every layer."""

import concurrent.futures
import functools

import pytest
import torch

import torchlayers as tl
from torchlayers.control_flow.traced import while_loop_vjp

replayed = functools.partial(tl.compile, backend="replay")

W = torch.tensor([2.0, 3.0], dtype=torch.float64)
X = torch.tensor([1.0, 0.5], dtype=torch.float64)


def grow(x):
    return tl.while_loop(lambda y: y.square().sum() < 30, lambda y: 1.5 * y + x.sin() + W, x)


def trips(graph):
    return [str(node.target) for node in graph.graph.nodes].count("while_loop")


def test_a_loop_is_one_operator_and_takes_as_many_trips_as_the_data_says():
    compiled = replayed(grow)
    for x in (X, X / 8, 9 * X):  # the last takes no trip
        torch.testing.assert_close(compiled(x), grow(x))
    assert len(compiled.report().signatures) == 1
    assert trips(tl.make_graph(grow)(X)) == 1


def test_loop_without_trips_returns_a_copy():
    x = 9 * X
    assert replayed(grow)(x).data_ptr() != x.data_ptr()


def test_a_compiled_scan_leaves_its_start_as_it_was():
    def scan(start, xs):
        return tl.scan(lambda c, x: (c * x + 1, c.sin()), start, xs)

    start, xs = torch.ones(3), torch.linspace(0, 1, 60).reshape(20, 3)  # fewer steps are unrolled
    compiled = tl.compile(scan, wait=True)  # kernels in a loop write to what is carried
    for _ in range(2):
        torch.testing.assert_close(compiled(start, xs), scan(torch.ones(3), xs))
    torch.testing.assert_close(start, torch.ones(3))


@pytest.mark.sweep
def test_inductor_compiles_a_loop():
    compiled = tl.compile(tl.grad(lambda x: grow(x).sum()))
    for x in (X, -X):
        torch.testing.assert_close(compiled(x), tl.grad(lambda x: grow(x).sum())(x))
    assert compiled.report().signatures[0].how == "inductor"


def test_torchs_while_loop_is_recorded_as_ours_is():
    from torch._higher_order_ops import while_loop

    def f(x):
        count = torch.zeros((), dtype=torch.int64)
        return while_loop(lambda i, y: i < 4, lambda i, y: (i + 1, y * W), (count, x))[1]

    torch.testing.assert_close(replayed(f)(X), X * W**4)
    torch.testing.assert_close(replayed(tl.grad(lambda x: f(x).sum()))(X), W**4)


def test_numbers_that_are_carried_become_tensors():
    def f(x):
        return tl.while_loop(
            lambda c: c[1].sum() < 9, lambda c: (c[0] + 1, 2 * c[1], None), (0, x, None)
        )

    count, y, nothing = replayed(f)(X)
    assert (int(count), nothing) == (3, None)
    torch.testing.assert_close(y, 8 * X)


def test_carries_of_different_strides_may_be_swapped():
    def f(x):
        def swap(c):
            i, a, b = c
            return i + 1, b, a.t().contiguous().t()

        start = torch.zeros((), dtype=torch.int64), x, x.t()
        return tl.while_loop(lambda c: c[0] < x.sum(), swap, start)[1]

    x = torch.tensor([[1.0, 2.0], [0.0, 0.5]])
    torch.testing.assert_close(replayed(f)(x), x)
    torch.testing.assert_close(replayed(f)(x / 2), (x / 2))


def test_reverse_mode_runs_any_number_of_trips_backward():
    """With fewer and with more trips than carries are saved."""
    assert while_loop_vjp.MAX_CHECKPOINTS == 16

    def f(x, n):
        return tl.fori_loop(0, n, lambda i, y: (y * x).sin() + i / 8, x).sum()

    compiled = replayed(tl.grad(f))
    for n in map(torch.tensor, (0, 1, 15, 16, 17, 40)):
        torch.testing.assert_close(compiled(X, n), tl.grad(f)(X, n))
    assert len(compiled.report().signatures) == 1


@pytest.mark.sweep
def test_plain_autograd_differentiates_a_loop_twice():
    x = X.clone().requires_grad_()
    found, expected = [], []
    for f, into in ((replayed(grow), found), (grow, expected)):
        (slope,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
        into += [slope, *torch.autograd.grad(slope.sum(), x)]
    torch.testing.assert_close(found, expected)


INSIDE = {
    "vmap": tl.vmap,
    "jvp": lambda f: lambda x: tl.jvp(f, (x,), (x.cos(),))[1],
    "jvp, a tangent alone": lambda f: lambda x: tl.jvp(f, (x.detach(),), (x.cos(),))[1],
    "jvp(vmap)": lambda f: lambda x: tl.jvp(tl.vmap(f), (x,), (x.cos(),))[1],
    "vmap(jvp)": lambda f: tl.vmap(lambda x: tl.jvp(f, (x,), (x.cos(),))[1]),
}


def of_some_trips(x):
    return tl.while_loop(lambda y: y.abs().sum() > 1, lambda y: 0.5 * y.sin(), x)


def of_twelve_steps(x):
    return tl.fori_loop(0, 12, lambda i, y: (y * x).sin() + i / 8, x)


@pytest.mark.sweep(one_in=8)
@pytest.mark.parametrize("f", [of_some_trips, of_twelve_steps])
@pytest.mark.parametrize("name", INSIDE)
def test_plain_autograd_differentiates_a_loop_inside_layers(name, f):
    nested = INSIDE[name](f)
    x = torch.tensor([[0.3, 0.2], [1.5, 4.0], [2.0, -9.0]], dtype=torch.float64, requires_grad=True)
    found, expected = (torch.autograd.grad(g(x).sum(), x) for g in (replayed(nested), nested))
    torch.testing.assert_close(found, expected)


def test_a_carry_with_one_row_may_have_any_strides_between_rows():
    def f(x):
        return torch.einsum("ij,kj->ik", x, of_twelve_steps(x)).sum()

    nested = functools.partial(tl.hvp, f)
    x = X[None]
    torch.testing.assert_close(replayed(nested)((x,), (x,)), nested((x,), (x,)))


def test_captured_parameters_have_gradients():
    w = W.clone().requires_grad_()

    def f(x):
        return tl.while_loop(lambda y: y.sum() < 50, lambda y: y * w, x).sum()

    expected = torch.autograd.grad(f(X), w)
    torch.testing.assert_close(torch.autograd.grad(replayed(f)(X), w), expected)


def test_finished_samples_give_no_nan():
    """One more trip would take the root of a negative number."""

    def f(x):
        return tl.while_loop(lambda y: y.min() > 1, lambda y: (y - 1).sqrt(), 5 * x.square() + 2)

    batch = torch.stack([X, 5 * X, X / 9])
    nested = tl.vmap(tl.grad(lambda x: f(x).sum()))
    torch.testing.assert_close(replayed(nested)(batch), nested(batch))


def test_reassigned_captured_variables_keep_their_earlier_values():
    def f(x):
        y = x
        y = tl.while_loop(lambda z: z.sum() < 20, lambda z: z + y * W, y)
        y = tl.cond(y.sum() > 0, lambda: y.sin() * x, lambda: y)
        y = y * 2
        return y.sum()

    torch.testing.assert_close(replayed(tl.grad(f))(X), tl.grad(f)(X))


@pytest.mark.parametrize(
    ("body", "message"),
    [(lambda y: y[:1], "keep the shape"), (lambda y: y.float(), "keep the shape and dtype")],
    ids=["shape", "dtype"],
)
@pytest.mark.parametrize("transform", [None, tl.vmap])
def test_a_carry_that_changes_is_refused(body, message, transform):
    def f(x):
        return tl.while_loop(lambda y: y.sum() < 9, body, x)

    with pytest.raises(tl.errors.StructureError, match=message):
        replayed(f if transform is None else transform(f))(torch.stack([X, X]))
    assert tl.current_stack() == ()
    torch.testing.assert_close(replayed(grow)(X), grow(X))


def test_a_loop_that_draws_is_not_differentiated():
    def f(x):
        return tl.while_loop(lambda y: y.sum() < 9, lambda y: y + torch.rand(2), x).sum()

    assert replayed(f)(X) > 9
    with pytest.raises(tl.errors.TransformError, match="Draw with keys"):
        replayed(tl.grad(f))(X)


@pytest.mark.parametrize("transform", [None, tl.vmap])
def test_body_that_writes_to_an_outside_tensor_is_rejected(transform):
    def f(x):
        return tl.while_loop(lambda y: y.sum() < 9, lambda y: y + x[0].add_(1), x)

    def g(x):
        return tl.cond(x.sum() > 0, lambda x: x.mul_(2), lambda x: x, x)

    for program in (f, g):
        with pytest.raises(tl.errors.TransformError, match="to a tensor from outside"):
            replayed(program if transform is None else transform(program))(torch.stack([X, X]))


def test_body_may_write_to_its_own_tensors():
    def f(x):
        def body(y):
            z = torch.zeros(2, dtype=torch.float64)
            z[0] = y.sum()
            return z.add_(x)

        return tl.while_loop(lambda y: y.sum() < 20, body, x)

    batch = torch.stack([X, 2 * X])
    torch.testing.assert_close(replayed(tl.vmap(f))(batch), tl.vmap(f)(batch))


@pytest.mark.sweep
def test_threads_record_a_loop_at_once():
    nested = tl.vmap(tl.grad(lambda x: grow(x).sum()))
    compiled = replayed(nested)
    batch = torch.stack([X, X / 3])
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for found in pool.map(compiled, [batch] * 4):
            torch.testing.assert_close(found, nested(batch))


def test_error_during_capture_leaves_the_stack_empty():
    def f(x):
        return tl.while_loop(lambda y: y.sum() < 9, lambda y: tl.grad(lambda z: 1 / 0)(y), x)

    with pytest.raises(ZeroDivisionError):
        replayed(tl.vmap(f))(torch.stack([X, X]))
    assert tl.current_stack() == ()
    assert torch.is_grad_enabled()
    torch.testing.assert_close(replayed(grow)(X), grow(X))
