"""A fault on one rank raises an error on all: no rank hangs past the timeout, aborts, or gets a
result; and computations without collectives still work afterwards.
"""

import os
import signal
import time

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc

import torchlayers as tl
from tests.distributed.processes import Ranks, case, over_ranks
from tests.distributed.samples import all_gather as gather_single
from tests.distributed.samples import joined, reduce_scatter
from tests.distributed.test_vmap import loss, mesh, numbers, samples, spread, weight
from torchlayers.distributed import all_gather, checking, ppermute, psum, psum_scatter
from torchlayers.errors import TransformError

TIMEOUT = 4  # seconds, for the process group
LIMIT = 3 * TIMEOUT


def is_faulty():
    return dist.get_rank() == 1


def die():
    if is_faulty():
        os.kill(os.getpid(), signal.SIGKILL)


class DiesInBackward(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x * 1

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, cotangent):
        die()
        return cotangent


def killed_before():
    die()
    spread(loss, out="full")(weight(), samples())


def killed_in_the_function():
    def f(w, x):
        die()
        return loss(w, x)

    spread(f, out="full")(weight(), samples())


def killed_in_the_backward():
    def f(w):
        return DiesInBackward.apply(spread(loss, out="full")(w, samples()).sum())

    tl.grad(f)(weight())


def late():
    if is_faulty():
        time.sleep(2 * TIMEOUT)
    spread(loss, out="full")(weight(), samples())


def an_exception_on_one_rank():
    def f(w, x):
        return loss(w, x) / (0 if is_faulty() else 1.0)

    if is_faulty():
        with pytest.raises(ZeroDivisionError):
            spread(lambda w, x: loss(w, x) if 1 / 0 else 0, out="full")(weight(), samples())
        raise RuntimeError("torchlayers")
    spread(f, out="full")(weight(), samples())


FAULTS = {
    each.__name__: each
    for each in (
        killed_before,
        killed_in_the_function,
        killed_in_the_backward,
        late,
        an_exception_on_one_rank,
    )
}
QUICK = (killed_in_the_backward.__name__, an_exception_on_one_rank.__name__)


def meets(fault: str) -> None:
    begun = time.time()
    with pytest.raises(RuntimeError, match="torchlayers"):
        FAULTS[fault]()
    assert time.time() - begun < LIMIT
    works_alone()


def works_alone() -> None:
    assert tl.current_stack() == ()
    local = tl.vmap(tl.grad(loss), (None, 0))(weight(), samples())
    torch.testing.assert_close(
        local, torch.func.vmap(torch.func.grad(loss), (None, 0))(weight(), samples())
    )


@pytest.mark.sweep(one_in=16)
@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    "fault",
    [pytest.param(each, marks=() if each in QUICK else pytest.mark.full) for each in FAULTS],
)
def test_all_other_ranks_have_an_error_in_time(fault, size):
    processes = Ranks(size, timeout=TIMEOUT)
    try:
        answers = processes.answers(__name__, "meets", fault)
    finally:
        processes.close()
    faulty = answers.pop(1)
    assert answers == [""] * (size - 1)
    assert faulty == (f"it ended with {-signal.SIGKILL}" if fault.startswith("killed") else "")


# ---- mismatches found before communication: an immediate error on every rank, and all can continue


@case
def calls_in_another_order():
    calls = [spread(torch.sin, 0), spread(torch.cos, 0)]
    for call in reversed(calls) if is_faulty() else calls:
        with pytest.raises(TransformError, match="differ"):
            call(samples())
    works_alone()


@case
def collectives_in_another_order_inside_a_call():
    def f(x):
        first = psum(x, "batch") if is_faulty() else x.sum()
        return first + psum(x, "batch").sum()

    with pytest.raises(RuntimeError, match="the ranks diverge: this one calls"):
        spread(f, 0, axis_name="batch", out="full")(samples())
    works_alone()


@case
def results_of_other_sizes():
    with pytest.raises(RuntimeError, match=r"the ranks diverge: this one calls .*Double\["):
        spread(lambda x: x[dist.get_rank() :], 0, out="full")(samples())
    works_alone()


@case
def named_collectives_in_another_order_or_of_other_sizes():
    x = numbers(dist.get_world_size())
    wrong = (
        lambda: psum(numbers(3 + is_faulty()), "dp"),
        lambda: psum(x.float() if is_faulty() else x, "dp"),
        lambda: (all_gather if is_faulty() else psum_scatter)(x, "dp"),
    )
    for call in wrong:
        with mesh(), checking(), pytest.raises(RuntimeError, match="the ranks diverge"):
            call()
    works_alone()
    with mesh(), checking():
        gradient = tl.grad(lambda x: psum(x.sin(), "dp").sum())(x)
    torch.testing.assert_close(gradient, dist.get_world_size() * x.cos())


@case
def collectives_of_torch_in_another_order_or_of_other_sizes():
    """gloo would abort the process for these."""
    size, group = dist.get_world_size(), dist.group.WORLD
    x, longer = numbers(2 * size, 3), numbers(2 * size + is_faulty(), 3)
    uneven = [2] * size if not is_faulty() else [1, 3, *[2] * (size - 2)]
    wrong = (
        lambda x: fc.all_reduce(longer * x.sum(), "sum", group),
        lambda x: fc.all_reduce(x, "max" if is_faulty() else "sum", group),
        lambda x: (gather if is_faulty() else scatter)(x, group),
        lambda x: fc.all_to_all_single(x, [2] * size, uneven, group),
        lambda x: joined(fc.all_reduce_coalesced([x, longer], "sum", group)),
    )
    for call in wrong:
        of_samples = tl.vmap(call)
        gradient = tl.grad(lambda x, call=call: call(x).sum())
        for run, given in ((call, x), (gradient, x), (of_samples, torch.stack([x, x]))):
            with checking(), pytest.raises(TransformError, match=r"of '.*' differ"):
                run(given)
        works_alone()
    with checking():
        gradient = tl.grad(lambda x: fc.all_reduce(x.sin(), "sum", group).sum())(x)
        exchanged = fc.all_to_all_single(x, None, None, group)
    torch.testing.assert_close(gradient, size * x.cos())
    assert exchanged.shape == x.shape


def gather(x, group):
    return gather_single(x, 0, group)


def scatter(x, group):
    return reduce_scatter(x, "sum", 0, group)


@case
def what_few_are_sent_is_no_difference():
    with mesh(), checking():
        found = ppermute(torch.ones(2) + dist.get_rank(), "dp", [(0, 1)])
    assert found.tolist() == [1.0 if dist.get_rank() == 1 else 0.0] * 2


test_over_ranks = over_ranks(__name__)
