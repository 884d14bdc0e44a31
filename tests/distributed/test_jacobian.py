"""Jacobians by rows, columns and sums over ranks, against one process."""

import functools

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard

import torchlayers as tl
from tests.distributed.processes import case, over_ranks
from tests.distributed.test_vmap import (
    OUTS,
    close,
    loss,
    mesh,
    numbers,
    placed,
    rank,
    ranks,
    same,
    samples,
    weight,
    whole,
)
from torchlayers.distributed import counting, psum
from torchlayers.errors import AxisError, TransformError

F = torch.func


def f(x):
    return (x.sin() * x.cumsum(0)).exp() + x.sum()


def g(x):
    """Maps a vector to a matrix."""
    return x.sin().outer(x[:2].cos())


def several(p, x):
    y = (p["w"] @ x).tanh()
    return {"y": y, "sum": (y * p["b"]).sum(), "more": (y.outer(x), p["b"] * 2)}


def parameters():
    return {"w": numbers(4, 3), "b": torch.tensor(0.5)}


JACOBIANS = {"jacrev": (tl.jacrev, F.jacrev), "jacfwd": (tl.jacfwd, F.jacfwd)}


@case
def rows_and_columns_are_those_of_one_process():
    for size in (1, 2, 3, 5, 300):
        x = numbers(size) / size
        expected = F.jacrev(f)(x)
        same(tl.jacrev(f, mesh=mesh())(x), expected, Shard(0))
        same(tl.jacfwd(f, mesh=mesh())(x), expected, Shard(1))
        for ours, _ in JACOBIANS.values():
            close(ours(f, mesh=mesh(), out="full")(x), expected)
            same(ours(f, mesh=mesh(), chunk_size=2)(x), expected)


@case
def each_rank_has_its_part():
    x = numbers(5)
    expected = F.jacrev(g)(numbers(5))
    found = tl.jacrev(g, mesh=mesh(), out="local")(x)
    parts = expected.chunk(ranks())
    close(found, parts[rank()] if rank() < len(parts) else expected[:0])
    same(tl.jacfwd(g, mesh=mesh())(x), expected, Shard(2))


@case
def pytrees_of_any_shapes():
    p, x = parameters(), numbers(3)
    for argnums in (0, 1, (0, 1)):
        expected = F.jacrev(several, argnums)(p, x)
        for ours, _ in JACOBIANS.values():
            for out in OUTS:
                found = ours(several, argnums, mesh=mesh(), out=out)(p, x)
                flat, spec = torch.utils._pytree.tree_flatten(found)
                wanted, spec_wanted = torch.utils._pytree.tree_flatten(expected)
                assert spec == spec_wanted
                for each, other in zip(flat, wanted, strict=True):
                    same(each, other)


@case
def a_number_has_one_row_for_all():
    x = numbers(3)
    found = tl.jacrev(loss, mesh=mesh())(weight(), x)
    assert not isinstance(found, DTensor)
    close(found, F.grad(loss)(weight(), x))
    found = tl.jacfwd(lambda s: x * s, mesh=mesh())(torch.tensor(2.0))
    close(found, x)


@case
def an_aux_is_each_ranks():
    for ours, _ in JACOBIANS.values():
        found, aux = ours(lambda x: (f(x), (x * 2, "aux")), has_aux=True, mesh=mesh())(numbers(3))
        same(found, F.jacrev(f)(numbers(3)))
        close(aux[0], numbers(3) * 2)


@case
def a_hessians_columns_are_spread():
    for size in (1, 4, 5):
        x = numbers(size)
        expected = F.hessian(lambda x: f(x).sum())(x)
        same(tl.hessian(lambda x: f(x).sum(), mesh=mesh())(x), expected, Shard(1))
        close(tl.hessian(lambda x: f(x).sum(), mesh=mesh(), out="full")(x), expected)
    found = tl.hessian(loss, (0, 1), mesh=mesh())(weight(), numbers(3))
    expected = F.hessian(loss, (0, 1))(weight(), numbers(3))
    for i in range(2):
        for j in range(2):
            same(found[i][j], expected[i][j])


@case
def a_jacobian_is_differentiated_like_any_function():
    x = numbers(5)
    expected = F.grad(lambda x: (F.jacrev(f)(x) ** 2).sum())(x)
    for ours, _ in JACOBIANS.values():
        for out in OUTS:
            spread = ours(f, mesh=mesh(), out=out)
            close(tl.grad(lambda x, spread=spread: (spread(x) ** 2).sum())(x), expected)
        spread = ours(f, mesh=mesh(), out="full")
        tangent = tl.jvp(spread, (x,), (x.cos(),))[1]
        close(tangent, F.jvp(F.jacrev(f), (x,), (x.cos(),))[1])
        xs = torch.stack([x, x.cos()])
        close(tl.vmap(spread)(xs), F.vmap(F.jacrev(f))(xs))


@case
def dtensors_are_brought_to_all():
    expected = F.jacrev(f)(numbers(5))
    for placement in (Shard(0), Replicate()):
        same(tl.jacrev(f, mesh=mesh())(placed(numbers(5), placement)), expected, Shard(0))


@case
def rows_are_sent_nowhere():
    for ours, _ in JACOBIANS.values():
        for out, expected in (("dtensor", []), ("local", []), ("full", ["joined_parts"])):
            with counting() as calls:
                ours(f, mesh=mesh(), out=out)(numbers(6))
            assert calls.names == expected


@case
def a_collective_over_the_rows_ranks_is_refused():
    for ours, _ in JACOBIANS.values():
        with pytest.raises(AxisError, match="different samples"):
            ours(lambda x: psum(x, mesh()), mesh=mesh())(numbers(4))


@case
def ranks_that_differ_are_refused():
    for ours, _ in JACOBIANS.values():
        with pytest.raises(TransformError, match="argument 0: float64"):
            ours(f, mesh=mesh())(numbers(3 + rank()))


@case
def a_captured_tensors_gradient_is_that_of_all_rows():
    for ours, theirs in JACOBIANS.values():

        def total(w, jacobian=theirs, **options):
            return (jacobian(lambda x: f(x * w), **options)(numbers(4)) ** 2).sum()

        over_all = functools.partial(total, jacobian=ours, mesh=mesh(), out="full")
        close(tl.grad(over_all)(torch.tensor(2.0)), F.grad(total)(torch.tensor(2.0)))


# ---- sums over ranks, where each rank has a part of the samples


def own(x):
    parts = x.chunk(dist.get_world_size())
    return parts[rank()] if rank() < len(parts) else x[:0]


def of_batch(w, x):
    return F.vmap(loss, (None, 0))(w, x).sum()


def of_own(w):
    return tl.vmap(loss, (None, 0))(w, own(samples())).sum()


@case
def a_product_with_the_sums_hessian():
    w, v = weight(), weight().cos()
    expected = F.jvp(F.grad(lambda w: of_batch(w, samples())), (w,), (v,))[1]
    with counting() as calls:
        found = tl.hvp(of_own, (w,), (v,), mesh=mesh())
    close(found[0], expected)
    assert calls.names == ["psum_invariant_each"]
    assert calls.bytes == w.numel() * 8
    found, aux = tl.hvp(
        lambda w: (of_own(w), rank()), (w,), v, argnums=0, has_aux=True, mesh=mesh()
    )
    close(found, expected)
    assert aux == rank()
    # Also as a function of the primal and the tangent.
    outer = tl.grad(lambda w, v: (tl.hvp(of_own, (w,), (v,), mesh=mesh())[0] ** 2).sum(), (0, 1))
    of_one = F.grad(
        lambda w, v: (F.jvp(F.grad(lambda w: of_batch(w, samples())), (w,), (v,))[1] ** 2).sum(),
        (0, 1),
    )
    for each, other in zip(outer(w, v), of_one(w, v), strict=True):
        close(whole(each), other)


test_over_ranks = over_ranks(__name__)
