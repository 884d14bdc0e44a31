"""torchlayers.checkpoint."""

import functools
import gc
import threading
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint as torch_checkpoint

import torchlayers as tl
from tests.remat.functions import Cube, functions, layers, written
from tests.remat.nests import NESTS, ONE, V, W, X, assert_same, compare, nests
from torchlayers.errors import CallError, RecomputationError
from torchlayers.memory import PeakMemory


def by_argument(f):
    return tl.checkpoint(f)


def by_closure(f):
    return lambda x: tl.checkpoint(lambda: f(x))()


def twice(f):
    return tl.checkpoint(lambda x: tl.checkpoint(f)(x))


def in_the_middle(f):
    return tl.checkpoint(lambda x: tl.checkpoint(f)(x * 1) * 1)


@pytest.mark.sweep
@pytest.mark.parametrize("way", [by_argument, by_closure, twice, in_the_middle])
@functions
@nests
def test_checkpoint_does_not_change_results(nest, function, way):
    compare(nest, way(function), function)


def test_under_plain_autograd():
    x = X.clone().requires_grad_()
    (found,) = torch.autograd.grad(tl.checkpoint(layers)(x), x)
    (wanted,) = torch.autograd.grad(layers(x), x)
    assert_same(found, wanted)


def counted(f):
    def counting(*args):
        counting.calls += 1
        return f(*args)

    counting.calls = 0
    return counting


@pytest.mark.parametrize(
    ("nest", "count"),
    [
        ("grad", 2),
        ("vmap(grad)", 2),
        ("grad(vmap)", 2),
        ("jvp(grad)", 2),
        ("grad(jvp)", 2),
        ("hessian", 2),
        ("jvp(jvp)", 1),
        ("grad(grad)", 3),
        ("jacrev(grad), in chunks", 4),
    ],
)
def test_function_runs_once_more_per_pass(nest, count):
    f = counted(layers)
    NESTS[nest](tl.checkpoint(f))
    assert f.calls == count


def test_nothing_is_recomputed_without_a_derivative():
    f = counted(layers)
    with torch.no_grad():
        tl.checkpoint(f)(X)
    tl.checkpoint(f)(X)
    assert f.calls == 2


def test_recomputation_stops_when_all_residuals_are_there():
    after = []

    def f(x):
        y = x.sin().exp()
        after.append(1)
        return y.sum()

    tl.grad(tl.checkpoint(f))(X)
    assert len(after) == 1


def test_users_except_does_not_catch_the_early_stop():
    def f(x):
        try:
            return layers(x)
        except Exception:
            return x.sum()

    compare(NESTS["grad"], tl.checkpoint(f), layers)


def test_recomputation_of_a_script_stops_early_too():
    script = torch.jit.script(product_of_sine)
    gradient = tl.grad(lambda x: tl.checkpoint(script)(x).sum())
    x = torch.ones(3)
    torch.testing.assert_close(gradient(x), tl.grad(lambda x: product_of_sine(x).sum())(x))


def product_of_sine(x):
    return x.sin() * x


@pytest.mark.parametrize("randomness", ["same", "different"])
def test_random_numbers_are_drawn_again(randomness):
    def f(x):
        return F.dropout(x.exp(), 0.5).sum() * torch.rand(())

    def call(f):
        torch.manual_seed(0)
        result = tl.vmap(tl.grad(f), randomness=randomness)(torch.ones(64, 3))
        return result, torch.rand(3)  # the state afterwards

    assert_same(call(tl.checkpoint(f)), call(f))


def test_recomputation_uses_the_forwards_default_device():
    def f(x):
        return (x * torch.ones(3)).sin().sum()

    with torch.device("meta"):
        output, vjp_fn = tl.vjp(tl.checkpoint(f), torch.ones(3))
    assert vjp_fn(torch.ones_like(output))[0].device.type == "meta"


@pytest.mark.parametrize("name", NESTS)
def test_recomputation_uses_the_default_device_in_every_nest(name, device):
    """Modes are off in a reverse pass, but must be active for recomputation."""

    def f(x):
        return layers(x * torch.ones(3, dtype=x.dtype))

    with device:
        compare(NESTS[name], tl.checkpoint(f), f)


def test_default_device_of_the_backward_is_not_used():
    output, vjp_fn = tl.vjp(tl.checkpoint(lambda x: (x * torch.ones(3)).sin().sum()), torch.ones(3))
    with torch.device("meta"):
        vjp_fn(torch.ones_like(output, device=output.device))


def test_recomputation_uses_the_forwards_autocast():
    def f(x):
        return F.linear(x, W.float()).sin().sum()

    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, vjp_fn = tl.vjp(tl.checkpoint(f), X.float())
        wanted = tl.vjp(f, X.float())[1](torch.ones_like(output))
    assert_same(vjp_fn(torch.ones_like(output)), wanted)


def test_pytrees_and_keywords():
    def f(tensors, *, scale):
        return {"y": (tensors["x"] * scale).sin().sum()}

    found = tl.grad(lambda x: tl.checkpoint(f)({"x": x}, scale=V)["y"])(X)
    assert_same(found, tl.grad(lambda x: f({"x": x}, scale=V)["y"])(X))


@pytest.mark.parametrize("size", [3, 256, 257])
def test_offloaded_inside_and_around(size):
    x = torch.linspace(-1, 1, size, dtype=torch.float64)

    def offloaded(x):
        with save_on_cpu():
            return tl.checkpoint(lambda x: x.sin().exp().sum())(x * 2)

    wanted = tl.hessian(lambda x: (x * 2).sin().exp().sum())(x)
    assert_same(tl.hessian(offloaded)(x), wanted)
    with save_on_cpu():
        assert_same(tl.hessian(tl.checkpoint(lambda x: (x * 2).sin().exp().sum()))(x), wanted)


def test_a_gradient_by_torch_autograd_inside():
    def f(x):
        y = x.sin().exp()
        (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return (g * y).sum()

    compare(NESTS["grad"], tl.checkpoint(f), f)


def test_many_threads_at_once():
    results = [None] * 4
    f = tl.checkpoint(lambda x: tl.checkpoint(layers)(x * 1) * 1)

    def work(i):
        for _ in range(20):
            results[i] = tl.hessian(f)(X * i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, result in enumerate(results):
        assert_same(result, tl.hessian(layers)(X * i))


def test_two_backward_passes_over_one_graph():
    _, vjp_fn = tl.vjp(tl.checkpoint(written), X)
    assert_same(vjp_fn(ONE), vjp_fn(ONE))


def test_checkpoint_keeps_name_and_docstring():
    def f(x):
        """What f does."""

    assert tl.checkpoint(f).__name__ == "f"
    assert tl.checkpoint(f).__doc__ == "What f does."


# Errors


def test_recomputation_with_fewer_tensors_is_an_error():
    f = counted(lambda x: x.sin().exp().sum() if f.calls == 1 else x.sin().sum())
    with pytest.raises(RecomputationError, match=r"saved 2 tensors .*, but 1 when"):
        tl.grad(tl.checkpoint(f))(X)
    assert tl.current_stack() == ()


def test_recomputation_with_other_tensors_is_an_error():
    f = counted(lambda x: x.sin().sum() if f.calls == 1 else x[:2].sin().sum())
    with pytest.raises(RecomputationError, match=r"of shape \(3,\) .*, but of shape \(2,\)"):
        tl.grad(tl.checkpoint(f))(X)


def test_an_argument_that_was_written_to():
    def f(x):
        y = x * 1
        result = tl.checkpoint(torch.sin)(y)
        y.mul_(2)
        return result.sum()

    with pytest.raises(
        RecomputationError, match="an argument of sin has since been modified in place"
    ):
        tl.grad(f)(X)


def writes_to_what_it_saved(x):
    y = x * 2
    z = y.sin()
    y.mul_(2)
    return (y.cos() + z).sum()


WRITING = {
    "grad": lambda f: tl.grad(f)(X),
    "vmap of grad": lambda f: tl.vmap(tl.grad(f))(torch.stack([X, 2 * X])),
    "grad of vmap": lambda f: tl.grad(lambda xs: tl.vmap(f)(xs).sum())(torch.stack([X, 2 * X])),
    "jvp of grad": lambda f: tl.jvp(tl.grad(f), (X,), (X,)),
    "grad of grad": lambda f: tl.grad(lambda x: tl.grad(f)(x).sum())(X),
    "jacrev": lambda f: tl.jacrev(f)(X),
}


def by_torch(f):
    return lambda x: torch.utils.checkpoint.checkpoint(f, x, use_reentrant=False)


@pytest.mark.parametrize("nest", WRITING)
@pytest.mark.parametrize("checkpoint", [tl.checkpoint, by_torch], ids=["ours", "torch's"])
def test_a_write_to_what_was_saved_is_an_error_in_the_recomputation_too(checkpoint, nest):
    with pytest.raises(RuntimeError, match="has been modified by an inplace operation"):
        WRITING[nest](writes_to_what_it_saved)
    with pytest.raises(RecomputationError, match="has been modified by an inplace operation"):
        WRITING[nest](checkpoint(writes_to_what_it_saved))
    assert tl.current_stack() == ()


def overwrites_tangent(x):
    y = x.sin()
    z = y.tanh()  # its tangent is linear in that of y, which sin_ overwrites
    y.sin_()
    return (y.cos() + z).sum()


def slope_of_overwritten_tangent(f):
    return tl.grad(lambda x: tl.jvp(f, (x,), (x.cos(),))[1])(X)


INSIDE = {
    **{name: functools.partial(nest, writes_to_what_it_saved) for name, nest in WRITING.items()},
    "grad of jvp": lambda: slope_of_overwritten_tangent(overwrites_tangent),
}


@pytest.mark.parametrize("nest", INSIDE)
@pytest.mark.parametrize("checkpoint", [tl.checkpoint, by_torch], ids=["ours", "torch's"])
def test_a_write_to_what_was_saved_is_an_error_inside_a_checkpoint_too(checkpoint, nest):
    f = checkpoint(lambda _: INSIDE[nest]())
    with pytest.raises(RuntimeError, match="has been modified by an inplace operation"):
        f(X.clone().requires_grad_())
    with pytest.raises(RuntimeError, match="has been modified by an inplace operation"):
        tl.grad(lambda x: f(x).sum() + x.sum())(X)
    assert tl.current_stack() == ()


def test_a_write_to_a_tangent_that_was_saved():
    for error, f in (
        (RuntimeError, overwrites_tangent),
        (RecomputationError, tl.checkpoint(overwrites_tangent)),
    ):
        with pytest.raises(error, match="has been modified by an inplace operation"):
            slope_of_overwritten_tangent(f)
    assert tl.current_stack() == ()


def test_a_write_after_the_last_tensor_was_saved():
    def f(x):
        y = x * 2
        z = y.sin()
        return (z + y.mul_(2)).sum()

    torch.testing.assert_close(tl.grad(tl.checkpoint(f))(X), 2 * (2 * X).cos() + 4)


def test_error_during_recomputation_is_raised_unchanged():
    f = counted(lambda x: x.sin().sum() / (1 if f.calls == 1 else 1 // 0))
    f_first = counted(lambda x: (1 // (2 - f_first.calls)) * x.sin().sum())
    with pytest.raises(ZeroDivisionError):
        tl.grad(tl.checkpoint(f_first))(X)
    tl.grad(tl.checkpoint(f))(X)  # stops recomputing before the error
    assert tl.current_stack() == ()


# Memory


def chain(step, count):
    def f(x):
        for _ in range(count):
            x = step(x)
        return x.sum()

    return f


def step(x):
    return x.sin().exp().tanh().cos()


@pytest.mark.parametrize("transform", ["grad", "vmap(grad)", "grad(vmap)"])
def test_chain_saves_its_arguments_and_one_step(transform):
    """Measures peak memory in tensors of the argument's size."""
    x = torch.linspace(-1, 1, 4096).reshape(4, 1024)
    call = {
        "grad": lambda f: tl.grad(f)(x),
        "vmap(grad)": lambda f: tl.vmap(tl.grad(f))(x),
        "grad(vmap)": lambda f: tl.grad(lambda x: tl.vmap(f)(x).sum())(x),
    }[transform]

    def peak(f):
        call(f)  # warm-up
        with PeakMemory() as memory:
            call(f)
        return memory.peak / x.nbytes

    assert peak(chain(step, 16)) >= 3 * 16
    assert peak(chain(tl.checkpoint(step), 16)) < 16 + 8
    assert peak(tl.checkpoint(chain(tl.checkpoint(step), 16))) < 16 + 8

    def nested(x):
        return chain(tl.checkpoint(chain_of_four), 4)(x)

    def chain_of_four(x):
        for _ in range(4):
            x = tl.checkpoint(step)(x)
        return x

    assert peak(nested) < 4 + 4 + 8


def test_memory_is_freed_after_the_gradient():
    seen = []

    def f(x):
        y = x * 2
        seen.append(weakref.ref(y))
        return y.sin().exp().sum()

    tl.grad(tl.checkpoint(f))(X)
    tl.jacrev(tl.grad(tl.checkpoint(f)))(X)
    gc.collect()
    assert all(y() is None for y in seen)


# In captured graphs


def drawing(x):
    return (torch.rand(3) * x).sin().sum()


RECORDINGS = {
    "torchlayers.compile": tl.compile,
    "torch.compile": lambda f: torch.compile(f, backend="eager"),
}


@pytest.mark.sweep
@pytest.mark.parametrize("record", RECORDINGS.values(), ids=RECORDINGS)
@pytest.mark.parametrize("policy", [None, tl.checkpoint_policies.dots_saveable])
def test_in_a_recording(record, policy):
    checkpointed = record(tl.vmap(tl.grad(tl.checkpoint(layers, policy=policy))))
    batch = torch.stack([X, V])
    assert_same(checkpointed(batch), tl.vmap(tl.grad(layers))(batch), exactly=False)


def by_torch(f):
    return lambda *xs: torch_checkpoint(f, *xs, use_reentrant=False)


@pytest.mark.parametrize("way", [tl.checkpoint, by_torch])
def test_random_numbers_in_a_recording_are_drawn_once(way):
    def f(x):
        return (torch.rand(()) * x).exp()

    value, gradient = tl.compile(lambda x: tl.grad_and_value(way(f))(x)[::-1])(torch.tensor(1.0))
    drawn = value.log()
    torch.testing.assert_close(gradient, drawn * value)


def test_with_fake_tensors():
    with FakeTensorMode():
        assert tl.grad(tl.checkpoint(drawing))(torch.ones(3)).shape == (3,)


@pytest.mark.parametrize("after", [lambda y: y, torch.sum, torch.sin, lambda y: y.exp() * y])
def test_noise_written_after_it_was_saved(after):
    """rrelu draws into a saved tensor; with torch's checkpoint, it is read uninitialized."""

    def f(x):
        return after(torch.nn.functional.rrelu(x, training=True)).sum()

    x = torch.linspace(-1, 1, 5)

    def drawn(call):
        torch.manual_seed(0)
        return call()

    expected = drawn(lambda: tl.grad(f)(x))
    torch.testing.assert_close(drawn(lambda: tl.grad(tl.checkpoint(f))(x)), expected)
    leaf = x.clone().requires_grad_()
    drawn(lambda: tl.checkpoint(f)(leaf)).backward()
    torch.testing.assert_close(leaf.grad, expected)


@pytest.mark.parametrize(
    "called",
    [
        lambda: tl.checkpoint(torch.sin, X),
        lambda: tl.checkpoint(torch.sin, X, X),
        lambda: tl.checkpoint(torch.sin, 3),
        lambda: tl.checkpoint(torch.sin, (X,)),
        lambda: tl.checkpoint(torch.sin, X, use_reentrant=False),
        lambda: tl.checkpoint(torch.sin, use_reentrant=False),
        lambda: tl.grad(lambda x: tl.checkpoint(torch.sin, x)(x))(X),
    ],
)
def test_error_for_torchs_calling_convention_names_ours(called):
    with pytest.raises(CallError, match=r"write torchlayers.checkpoint\(\S+\)\(x\)"):
        called()


# torch forgets the tangents in its own table when the outermost jvp ends. A recomputation is later.
HELD_BY_TORCH = {
    "strided primal": lambda x: x,
    "Function": Cube.apply,
    "write": lambda x: torch.zeros_like(x).copy_(x),
}
READ_IN_A_CHECKPOINT = {
    "argument": lambda way, x, y: way(torch.sin)(y),
    "captured": lambda way, x, y: way(lambda x: x * y.sin())(x),
    "captured, read by a Function": lambda way, x, y: way(lambda x: x * Cube.apply(y))(x),
}


@pytest.mark.parametrize("way", [tl.checkpoint, by_torch])
@pytest.mark.parametrize("held", HELD_BY_TORCH.values(), ids=HELD_BY_TORCH)
@pytest.mark.parametrize("read", READ_IN_A_CHECKPOINT.values(), ids=READ_IN_A_CHECKPOINT)
def test_tangent_held_by_torch_of_a_jvp_that_is_differentiated_twice(read, held, way):
    def pushed(way):
        def value_and_tangent(x):
            return sum(tl.jvp(lambda x: read(way, x, held(x)), (x,), (x.clone().sin(),)))

        def slope(x):
            return tl.grad(lambda x: value_and_tangent(x).sum())(x).sum()

        return tl.grad(slope)(torch.linspace(-1, 1, 4, dtype=torch.float64)[::2])

    torch.testing.assert_close(pushed(way), pushed(lambda f: f))


def test_tangents_held_by_torch_are_freed_after_the_gradient():
    tangents = []

    class CubeOfSeen(Cube):
        @staticmethod
        def jvp(ctx, t):
            tangent = Cube.jvp(ctx, t)
            tangents.append(weakref.ref(tangent))
            return tangent

    def f(x):
        return tl.checkpoint(layers)(CubeOfSeen.apply(x))

    tl.grad(lambda x: sum(tl.jvp(f, (x,), (V,))))(X)
    gc.collect()
    assert tangents
    assert all(tangent() is None for tangent in tangents)


def written_as_argument(way, x):
    y = torch.zeros(3)
    y[:2] = x[:2]
    return way(torch.sin)(y) + y


def written_and_captured(way, x):
    y = torch.zeros(3)
    y.copy_(x)
    return way(lambda x: (x * y).sin())(x)


def a_view_as_argument(way, x):
    y = torch.zeros(2, 3)
    row = y[1]
    y[...] = x * x
    return way(lambda row, x: row.sin() * x)(row, x)


def written_inside(way, x):
    def f(x):
        y = torch.zeros(3)
        y[1:] = x[1:]
        return y.sin()

    return way(f)(x)


def unwritten(way, x):
    y = torch.ones(3)
    return way(lambda x: x.sin() * y)(x)


WRITTEN = [written_as_argument, written_and_captured, a_view_as_argument, written_inside, unwritten]
AROUND_VMAP = {
    "grad": lambda vmapped: tl.grad(lambda x: vmapped(x).sin().sum()),
    "hessian": lambda vmapped: tl.hessian(lambda x: vmapped(x).sin().sum()),
    "jacrev of jacrev": lambda vmapped: tl.jacrev(tl.jacrev(lambda x: vmapped(x).sin().sum())),
    "grad of jvp": lambda vmapped: tl.grad(
        lambda x: sum(part.sum() for part in tl.jvp(vmapped, (x,), (x.cos(),)))
    ),
}


@pytest.mark.parametrize("way", [tl.checkpoint, by_torch])
@pytest.mark.parametrize("f", WRITTEN)
@pytest.mark.parametrize("around", AROUND_VMAP.values(), ids=AROUND_VMAP)
def test_of_what_each_sample_writes_to_a_tensor_made_inside_vmap(around, f, way):
    batch = torch.linspace(-1, 1, 6).reshape(2, 3)
    expected = around(lambda x: tl.vmap(lambda x: f(lambda g: g, x))(x))(batch)
    torch.testing.assert_close(around(lambda x: tl.vmap(lambda x: f(way, x))(x))(batch), expected)


def of_both(way, x):
    y = torch.zeros(2, 3)
    y[0] = x[0]

    def each(row, y):
        z = torch.ones(3)
        z.mul_(row)
        return way(lambda row: row.sin() * y * z)(row)

    return tl.vmap(each)(x, y)


def of_the_outer(way, x):
    y = torch.zeros(2, 3)
    row = y[1]
    y[...] = x * x
    return tl.vmap(lambda x: way(lambda row, x: row.sin() * x)(row, x))(x)


def around_the_inner(way, x):
    y = torch.zeros(2, 3)
    y[0] = x[1]

    def written(row):
        z = torch.zeros(3)
        z[1:] = row[1:]
        return (z * y).sin().sum(0)

    return way(tl.vmap(written))(x)


def of_a_detached_alias(way, x):
    def each(row):
        y = torch.zeros(3)
        alias = y.detach()
        y += row
        alias.mul_(2)
        return way(lambda row: row.sin() * y * alias)(row)

    return tl.vmap(each)(x)


def in_each(f):
    return lambda way, x: tl.vmap(lambda x: f(way, x))(x)


IN_TWO = {f.__name__: in_each(f) for f in WRITTEN}
IN_TWO |= {f.__name__: f for f in (of_both, of_the_outer, around_the_inner, of_a_detached_alias)}


@pytest.mark.parametrize("way", [tl.checkpoint, by_torch])
@pytest.mark.parametrize("f", IN_TWO.values(), ids=IN_TWO)
@pytest.mark.parametrize("around", AROUND_VMAP.values(), ids=AROUND_VMAP)
def test_of_what_each_sample_of_two_vmaps_writes(around, f, way):
    batch = torch.linspace(-1, 1, 12).reshape(2, 2, 3)
    expected = around(lambda x: tl.vmap(lambda x: f(lambda g: g, x))(x))(batch)
    torch.testing.assert_close(around(lambda x: tl.vmap(lambda x: f(way, x))(x))(batch), expected)


def test_of_what_each_sample_has_written_since():
    def f(x):
        y = torch.zeros(3)
        y.copy_(x)
        z = tl.checkpoint(torch.sin)(y)
        y.mul_(2)
        return z.sum()

    with pytest.raises(RecomputationError, match="has since been modified in place"):
        tl.grad(lambda x: tl.vmap(f)(x).sum())(torch.ones(2, 3))


@pytest.mark.sweep
def test_graphs_of_what_each_sample_writes_are_freed():
    factors = []

    def f(x):
        factor = torch.ones(3)
        factors.append(weakref.ref(factor))
        y = torch.zeros(3)
        y.copy_(tl.checkpoint(torch.exp)(x * factor))
        return tl.checkpoint(torch.sin)(y).sum()

    y = tl.vmap(f)(torch.ones(2, 3, requires_grad=True))
    assert factors[0]() is not None
    del y
    gc.collect()
    assert factors[0]() is None


@pytest.mark.parametrize("way", [by_argument, twice, in_the_middle])
def test_tangents_of_a_dual_level_that_has_ended(way):
    primal, tangent = X.clone().requires_grad_(), V.clone().requires_grad_()

    def second(f, primal, *by):
        with forward_ad.dual_level():
            result = f(forward_ad.make_dual(primal, tangent))
            slope = forward_ad.unpack_dual(result).tangent
        return torch.autograd.grad(slope, by)

    assert_same(second(way(layers), X, tangent), second(layers, X, tangent), exactly=False)
    ours = second(way(layers), primal, primal, tangent)
    assert_same(ours, second(layers, primal, primal, tangent), exactly=False)
