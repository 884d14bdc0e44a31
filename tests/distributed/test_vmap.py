"""vmap over a mesh dimension, against vmap on one process: values, placements, derivatives."""

import functools
import math
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import torchlayers as tl
from tests.distributed.nests import close
from tests.distributed.processes import case, over_ranks
from torchlayers.distributed import (
    axis_index,
    consistency,
    counting,
    pmax,
    pmean,
    psum,
    psum_invariant,
)
from torchlayers.errors import AxisError, DimensionError, TransformError

F = torch.func


def mesh():
    return init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))["dp"]


def numbers(*shape, seed=1):
    """Returns deterministic numbers, so that it may be called inside a vmap."""
    return (torch.arange(1.0, math.prod(shape) + 1) ** 2 * (0.7 + seed)).sin().view(shape)


def weight():
    return numbers(3, 2, seed=2)


def samples(size=5):
    return numbers(size, 3)


def placed(x, *placements):
    return distribute_tensor(x, mesh(), placements, src_data_rank=None)


def loss(w, x):
    return ((x @ w).tanh() ** 2).sum()


def spread(f, in_dims=(None, 0), out_dims=0, **options):
    return tl.vmap(f, in_dims, out_dims, mesh=mesh(), **options)


def whole(found):
    """Returns the full tensor on each rank; partial sums are added."""
    return found.full_tensor() if isinstance(found, DTensor) else found


def same(found, expected, placement=None):
    if placement is not None:
        assert isinstance(found, DTensor)
        assert found.placements == (placement,)
    assert whole(found).shape == expected.shape
    close(whole(found), expected)


# Batch sizes with no sample on some ranks, with one, uneven, and even.
SIZES = (1, 3, 4, 5, 9)


def batches(x):
    """Yields the batch as a plain tensor and with each placement."""
    yield x
    yield from (placed(x, each) for each in (Shard(0), Shard(1), Replicate()))


@case
def a_batch_is_that_of_one_process():
    for size in SIZES:
        expected = F.vmap(loss, (None, 0))(weight(), samples(size))
        for x in batches(samples(size)):
            same(spread(loss)(weight(), x), expected, Shard(0))
            assert spread(loss, out="full")(weight(), x).equal(expected)
            local = spread(loss, out="local")(weight(), x)
            parts = expected.chunk(ranks())
            assert local.equal(parts[rank()] if rank() < len(parts) else expected[:0])


def rank():
    return dist.get_rank()


def ranks():
    return dist.get_world_size()


@case
def gradients_of_samples():
    for size in SIZES:
        expected = F.vmap(F.grad(loss), (None, 0))(weight(), samples(size))
        for x in batches(samples(size)):
            same(spread(tl.grad(loss))(weight(), x), expected, Shard(0))
            same(spread(tl.grad(loss), chunk_size=2)(weight(), x), expected, Shard(0))


@case
def any_dimension_may_be_the_batchs():
    x = samples()
    for out in ("dtensor", "full"):
        found = spread(lambda x: (x.sin(), x * 2), -1, (1, -1), out=out)(x.T.contiguous())
        same(found[0], x.T.sin())
        same(found[1], x.T * 2)
    found = spread(torch.sin, 1, 1)(placed(x.T.contiguous(), Shard(1)))
    same(found, x.T.sin(), Shard(1))


@case
def what_does_not_depend_on_the_batch_is_one_value():
    def f(w, x):
        return x * 2, w.sum()

    found = spread(f, out_dims=(0, None))(weight(), samples())
    same(found[1], weight().sum())
    assert not isinstance(found[1], DTensor)
    # The value is shared by all ranks; its gradient is not summed over them.
    gradient = tl.grad(lambda w: spread(f, out_dims=(0, None))(w, samples())[1] * 3)(weight())
    close(gradient, torch.full((3, 2), 3.0))


@case
def shared_arguments_are_pytrees_of_tensors_and_dtensors():
    def f(p, x):
        return ((x @ p["w"] + p["b"]).tanh() ** 2).sum() * p["scale"]

    p = {"w": weight(), "b": torch.ones(2), "scale": 2.0}
    expected = F.vmap(F.grad(lambda w, x: f({**p, "w": w}, x)), (None, 0))(weight(), samples())
    for w in (weight(), placed(weight(), Shard(0)), placed(weight(), Replicate())):
        gradients = spread(lambda w, x: tl.grad(lambda w: f({**p, "w": w}, x))(w))
        same(gradients(w, samples()), expected, Shard(0))
    same(spread(f)(p, samples()), F.vmap(f, (None, 0))(p, samples()), Shard(0))


# ---- transforms outside


def total(w, x):
    return (F.vmap(loss, (None, 0))(w, x) ** 2).sum()


def totals(**options):
    """Returns `total` over ranks: a partial-sum DTensor, or a number equal on all ranks."""
    mapped = spread(loss, **options)
    return lambda w, x: (mapped(w, x) ** 2).sum()


OUTS = ("dtensor", "full")


@case
def a_gradient_by_what_is_shared():
    for size in SIZES:
        expected = F.grad(total)(weight(), samples(size))
        for out in OUTS:
            for x in batches(samples(size)):
                found = tl.grad(totals(out=out))(weight(), x)
                assert not isinstance(found, DTensor)
                close(found, expected)


@case
def a_gradient_lies_as_its_argument():
    expected = F.grad(total, (0, 1))(weight(), samples())
    for out in OUTS:
        for of_weight in (Shard(0), Shard(1), Replicate()):
            for of_samples in (Shard(0), Shard(1), Replicate()):
                w, x = placed(weight(), of_weight), placed(samples(), of_samples)
                found = tl.grad(totals(out=out), (0, 1))(w, x)
                same(found[0], expected[0], of_weight)
                same(found[1], expected[1], of_samples)
        found = tl.grad(totals(out=out), (0, 1))(weight(), samples())
        close(found[0], expected[0])
        close(found[1], expected[1])


@case
def a_part_of_a_sum_is_taken_as_the_sum():
    parts = DTensor.from_local(weight() / ranks(), mesh(), [Partial()])
    expected = F.grad(total)(weight(), samples())
    same(spread(loss)(parts, samples()), F.vmap(loss, (None, 0))(weight(), samples()), Shard(0))
    same(tl.grad(totals())(parts, samples()), expected, Replicate())


@case
def plain_autograd_has_the_same_gradients():
    for out in OUTS:
        w, x = weight().requires_grad_(), samples().requires_grad_()
        expected = F.grad(total, (0, 1))(weight(), samples())
        value = totals(out=out)(w, x)
        for found, each in zip(torch.autograd.grad(value, (w, x)), expected, strict=True):
            close(found, each)
        w = placed(weight(), Shard(0)).requires_grad_()
        (found,) = torch.autograd.grad(totals(out=out)(w, samples()), w)
        same(found, expected[0], Shard(0))


@case
def a_sum_of_local_parts_is_differentiated_as_all_say():
    """With psum_invariant, the gradient of a loss shared by all ranks is the whole batch's."""

    def f(w):
        local = spread(loss, out="local")(w, samples())
        return psum_invariant((local**2).sum(), mesh())

    close(tl.grad(f)(weight()), F.grad(total)(weight(), samples()))


@case
def tangents():
    w, t = weight(), weight().cos()
    expected = F.jvp(lambda w: F.vmap(loss, (None, 0))(w, samples()), (w,), (t,))
    for out in OUTS:
        found = tl.jvp(lambda w, out=out: spread(loss, out=out)(w, samples()), (w,), (t,))
        same(found[0], expected[0])
        same(found[1], expected[1])
    x = samples()
    expected = F.jvp(lambda x: F.vmap(loss, (None, 0))(w, x), (x,), (x.cos(),))
    for primal, tangent in zip(batches(x), batches(x.cos()), strict=True):
        found = tl.jvp(lambda x: spread(loss)(w, x), (primal,), (tangent,))
        same(found[1], expected[1], Shard(0))


@case
def second_derivatives():
    w, v = weight(), weight().cos()
    expected = F.hessian(total)(w, samples())
    product = F.jvp(lambda w: F.grad(total)(w, samples()), (w,), (v,))[1]
    for out in OUTS:
        close(tl.hvp(lambda w, out=out: totals(out=out)(w, samples()), (w,), (v,))[0], product)
    close(whole(tl.hessian(lambda w: totals(out="full")(w, samples()))(w)), expected)

    def squares(f):
        return lambda w: (f(w, samples()) ** 2).sum()

    close(
        tl.grad(squares(tl.grad(totals(out="full"))))(w),
        F.grad(squares(F.grad(total)))(w),
    )


@case
def an_ensemble_outside():
    models = torch.stack([weight() * i for i in range(1, 4)])
    expected = F.vmap(lambda w: F.vmap(loss, (None, 0))(w, samples()))(models)
    for out in OUTS:
        same(tl.vmap(lambda w, out=out: spread(loss, out=out)(w, samples()))(models), expected)
    found = tl.vmap(tl.grad(lambda w: totals(out="full")(w, samples())))(models)
    close(found, F.vmap(F.grad(lambda w: total(w, samples())))(models))
    x = placed(samples(), Shard(0))
    found = tl.vmap(lambda w: spread(loss)(w, x))(models)
    same(found, expected)


@case
def a_vmap_inside():
    def f(vmap):
        return lambda w, x: vmap(lambda c: loss(w, x * c))(torch.arange(1.0, 4))

    expected = F.vmap(f(F.vmap), (None, 0))(weight(), samples())
    same(spread(f(tl.vmap))(weight(), samples()), expected, Shard(0))


# ---- names


@case
def a_named_axis_is_all_ranks_samples():
    def normalized(x):
        centred = x - pmean(x, "batch")
        return centred / (psum(centred**2, "batch") + 1) + axis_index("batch")

    def of_all(x):
        centred = x - x.mean(0)
        places = torch.arange(x.shape[0])[:, None]
        return centred / ((centred**2).sum(0) + 1) + places

    for size in SIZES:
        found = spread(normalized, 0, axis_name="batch")(samples(size))
        same(found, of_all(samples(size)), Shard(0))
        found = spread(lambda x: pmax(x, "batch"), 0, axis_name="batch")(samples(size))
        same(found, samples(size).amax(0).expand(size, 3), Shard(0))
        gradient = tl.grad(
            lambda x: (spread(normalized, 0, axis_name="batch", out="full")(x) ** 3).sum()
        )(samples(size))
        close(gradient, F.grad(lambda x: (of_all(x) ** 3).sum())(samples(size)))


@case
def the_ranks_name_does_not_stand_for_different_samples():
    for name in ("dp", mesh()):
        with mesh(), pytest.raises(AxisError, match="different samples"):
            spread(functools.partial(psum, axis=name), 0)(samples())
    with mesh():
        found = spread(lambda x: x / psum(x, "dp"), 0, axis_name="dp")(samples())
    same(found, samples() / samples().sum(0))


@case
def tensor_parallelism_by_hand():
    """Along a mesh's second dimension; the batch is spread along the first."""
    both = init_device_mesh("cpu", (ranks() // 2, 2), mesh_dim_names=("dp", "tp"))
    half = both["tp"].get_local_rank()
    first, second = numbers(3, 4, seed=4), numbers(4, 2, seed=5)
    own = first.chunk(2, 1)[half], second.chunk(2, 0)[half]

    def layer(w, x):
        return psum_invariant((x @ w[0]).tanh() @ w[1], both["tp"])

    def whole(w, x):
        return (x @ w[0]).tanh() @ w[1]

    def squares(f):
        return lambda w, x: (f(w, x) ** 2).sum()

    spread = functools.partial(tl.vmap, in_dims=(None, 0), mesh=both["dp"], out="full")
    for size in SIZES:
        x = samples(size)
        same(spread(layer)(own, x), F.vmap(whole, (None, 0))((first, second), x))
        found = tl.grad(lambda w, x=x: (spread(layer)(w, x) ** 2).sum())(own)
        of_samples = spread(tl.grad(squares(layer)))(own, x)
        expected = F.vmap(F.grad(squares(whole)), (None, 0))((first, second), x)
        for each, sample, wanted, dim in zip(found, of_samples, expected, (1, 0), strict=True):
            close(each, wanted.sum(0).chunk(2, dim)[half])
            close(sample, wanted.chunk(2, dim + 1)[half])


@case
def a_compiled_function_has_names_and_a_batch_over_ranks():
    def normalized(x):
        return (x - pmean(x, "i")) / (psum(x**2, "i") + 1).sqrt()

    x = samples(ranks())
    with init_device_mesh("cpu", (ranks(),), mesh_dim_names=("i",)):
        eager = tl.grad(lambda x: (normalized(x) ** 3).sum())
        compiled = tl.compile(eager, backend="replay")
        for _ in range(3):
            close(compiled(x[rank()]), eager(x[rank()]))
    mapped = spread(loss, out="full")
    eager = tl.grad(lambda w, x: (mapped(w, x) ** 2).sum())
    compiled = tl.compile(eager, backend="replay")
    for _ in range(3):
        close(compiled(weight(), samples()), eager(weight(), samples()))


# ---- communication


@case
def a_gradient_by_all_that_is_shared_is_one_collective():
    p = {"w": weight(), "b": torch.ones(2), "more": torch.ones(7)}

    def f(p, x):
        return ((x @ p["w"] + p["b"]).tanh() ** 2).sum() * p["more"].sum()

    with counting() as calls:
        spread(f)(p, samples())
    assert calls.names == []
    of_a_rank = tl.grad(lambda p: spread(f, out="local")(p, samples()).sum())
    with counting() as calls:
        of_a_rank(p)
    assert calls.names == ["psum_invariant_each"]
    assert calls.bytes == (6 + 2 + 7) * 8
    models = {name: torch.stack([value] * 3) for name, value in p.items()}
    with counting() as calls:
        tl.vmap(of_a_rank)(models)
    assert calls.names == ["psum_invariant_each"]
    assert calls.bytes == 3 * (6 + 2 + 7) * 8


@case
def the_first_call_alone_is_compared():
    for check, expected in (("first", [1, 0, 0]), ("always", [1, 1, 1]), ("never", [0, 0, 0])):
        mapped = spread(torch.sin, 0, check=check)
        for count in expected:
            with mock.patch.object(
                consistency, "check_ranks_agree", wraps=consistency.check_ranks_agree
            ) as agree:
                mapped(samples())
            assert agree.call_count == count


# ---- errors


@case
def ranks_that_differ_say_so_on_each():
    here = samples(3 + rank() % 2)
    with pytest.raises(TransformError) as error:
        spread(torch.sin, 0)(here)
    words = str(error.value)
    even, odd = (", ".join(map(str, range(first, ranks(), 2))) for first in (0, 1))
    plural = "s" if ranks() > 2 else ""
    assert f"the batch size: 3 on rank{plural} {even} and 4 on rank{plural} {odd}" in words
    assert tl.current_stack() == ()
    with pytest.raises(TransformError, match="argument 0: float64"):
        spread(torch.sin, 0)(samples().to(torch.float32 if rank() else torch.float64))
    with pytest.raises(TransformError, match="in_dims"):
        spread(torch.sin, rank() % 2)(numbers(4, 4))
    with pytest.raises(TransformError, match=r"the call: vmap\(cos.* and vmap\(sin"):
        spread(torch.sin if rank() else torch.cos, 0)(samples())
    same(spread(torch.sin, 0)(samples()), samples().sin())


@case
def what_one_rank_refuses_all_do():
    given = (samples(), samples(4)) if rank() == 0 else (samples(), samples())
    error = DimensionError if rank() == 0 else TransformError
    with pytest.raises(error, match="same size in the mapped dimension"):
        spread(torch.add, 0)(*given)


class Model:
    def __init__(self, w):
        self.w = w

    def __call__(self, x):
        return loss(self.w, x)


@case
def an_objects_tensor_is_refused_where_its_gradient_would_be_a_ranks_own():
    for out in OUTS:
        with pytest.raises(TransformError, match="attribute of an object"):
            tl.grad(lambda w, out=out: spread(Model(w), 0, out=out)(samples()).sum())(weight())
        of_a_leaf = Model(weight().requires_grad_())
        with pytest.raises(TransformError, match="attribute of an object"):
            spread(of_a_leaf, 0, out=out)(samples())
        with torch.no_grad():
            spread(of_a_leaf, 0, out=out)(samples())
    # Tangents are allowed.
    w, t = weight(), weight().cos()
    found = tl.jvp(lambda w: spread(Model(w), 0)(samples()), (w,), (t,))[1]
    same(found, F.jvp(lambda w: F.vmap(loss, (None, 0))(w, samples()), (w,), (t,))[1])


@case
def a_mesh_is_no_name():
    for f in (tl.vmap, tl.jacrev, tl.hessian):
        with pytest.raises(TransformError, match="mesh must be a DeviceMesh of one dimension"):
            f(torch.sin, mesh="dp")


@case
def a_dtensor_of_another_mesh_is_refused():
    other = init_device_mesh("cpu", (1, ranks()), mesh_dim_names=("a", "b"))
    x = distribute_tensor(samples(), other, [Replicate(), Shard(0)], src_data_rank=None)
    same(tl.vmap(torch.sin, mesh=other["b"])(x), samples().sin(), Shard(0))
    with pytest.raises(TransformError, match="not one of that mesh's dimensions"):
        tl.vmap(torch.sin, mesh=other["a"])(placed(samples(), Shard(0)))
    with pytest.raises(TransformError, match="must be replicated"):
        tl.vmap(torch.sin, mesh=other["a"])(x)
    with pytest.raises(AxisError, match="one dimension"):
        tl.vmap(torch.sin, mesh=other)


@case
def options_are_refused_in_words():
    for options, words in (({"out": "all"}, "out must be"), ({"check": True}, "check must be")):
        with pytest.raises(TransformError, match=words):
            spread(torch.sin, 0, **options)


@case
def an_exception_leaves_nothing_behind():
    def fails(x):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        spread(fails, 0)(samples())
    assert tl.current_stack() == ()
    with mesh():
        close(psum(torch.ones(2), "dp"), torch.full((2,), float(ranks())))


# ---- random numbers


@case
def different_is_different_on_each_rank():
    drawn = []
    for _ in range(2):
        found = spread(lambda x: x + torch.rand(()), 0, randomness="different")(torch.zeros(6))
        drawn += found.full_tensor().tolist()
    assert len(set(drawn)) == 12
    after = torch.rand(())
    close(psum(after, mesh()), after * ranks())  # later draws are equal on all ranks again


@case
def same_is_the_same_on_each_rank():
    found = spread(lambda x: x + torch.rand(()), 0, randomness="same")(torch.zeros(6))
    assert len(set(found.full_tensor().tolist())) == 1


@case
def keyed_samples_draw_by_their_place_in_the_whole_batch():
    key = tl.random.key(3)

    def noisy(x):
        return x * torch.randn(()) + torch.rand(())

    for size in SIZES:
        x = numbers(size)
        for f in (noisy, tl.grad(noisy)):
            expected = tl.vmap(f, randomness="keyed", key=key)(x)
            for chunk in (None, 2):
                options = {"randomness": "keyed", "key": key, "chunk_size": chunk}
                same(spread(f, 0, **options)(x), expected, Shard(0))
    with pytest.raises(TransformError, match="needs a key that is the same on all ranks"):
        spread(noisy, 0, randomness="keyed")
    own = tl.random.key(dist.get_rank())
    if ranks() > 1:
        with pytest.raises(TransformError, match="key"):
            spread(noisy, 0, randomness="keyed", key=own)(numbers(4))


test_over_ranks = over_ranks(__name__)
