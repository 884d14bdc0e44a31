"""A derivative waits for the device no more often than with torch.func.

Counted on the second device. test_devices has whole functions that do not wait at all.
"""

import pytest
import torch
import torch.func

import torchlayers as tl
from benchmarks.chains import FUNC, OURS
from benchmarks.workloads import peers
from benchmarks.workloads.catalogue import small
from tests.device import second_device
from tests.repository.test_benchmarks import OTHERS
from tests.rules.reverse.samples import reaching
from tests.support.rule_tables import COTANGENTS

pytestmark = [
    pytest.mark.only_on(second_device.NAME),
    pytest.mark.filterwarnings("ignore"),  # from loops over samples, and from op_db's operators
]


def total(f):
    def summed(*args):
        results = [y for y in f(*args) if y.is_floating_point() or y.is_complex()]
        return torch.stack([y.abs().sum().to(torch.float64) for y in results]).sum()

    return summed


def gradients(m, f, count):
    return m.grad(total(f), tuple(range(count)))


def together(xs):
    return [torch.stack([x, x]) for x in xs]


# Nests for a function that returns a list, using torchlayers or torch.func as the module m.
NESTS = {
    "grad": lambda m, f, xs: gradients(m, f, len(xs))(*xs),
    "jvp": lambda m, f, xs: m.jvp(f, tuple(xs), tuple(map(torch.ones_like, xs))),
    "vmap": lambda m, f, xs: m.vmap(f)(*together(xs)),
    "vmap(grad)": lambda m, f, xs: m.vmap(gradients(m, f, len(xs)))(*together(xs)),
    "grad(vmap)": lambda m, f, xs: gradients(m, m.vmap(f), len(xs))(*together(xs)),
    "grad(grad)": lambda m, f, xs: gradients(m, gradients(m, f, len(xs)), len(xs))(*xs),
    "jvp(grad)": lambda m, f, xs: m.jvp(
        gradients(m, f, len(xs)), tuple(xs), tuple(map(torch.ones_like, xs))
    ),
}


def waited_in(work):
    second_device.waits()
    work()
    return second_device.waits()


@pytest.mark.parametrize("rule", COTANGENTS.operators)
@pytest.mark.parametrize("nest", NESTS.values(), ids=NESTS.keys())
def test_no_operator_waits_more_than_in_torch_func(nest, rule):
    if rule not in reaching():
        pytest.skip("its sample is not for this device")
    if rule == "aten::squeeze.dim" and nest in (NESTS["jvp"], NESTS["jvp(grad)"]):
        pytest.skip("its sample has a derivative for reverse mode alone, which torch.func drops")
    f, xs = reaching()[rule]
    try:
        theirs = waited_in(lambda: nest(torch.func, f, xs))
    except (RuntimeError, NotImplementedError, TypeError):
        pytest.skip("torch.func does not have it")
    assert len(waited_in(lambda: nest(tl, f, xs))) <= len(theirs)


@pytest.mark.parametrize("workload", small(), ids=str)
def test_no_workload_waits_or_launches_more_than_in_torch_func(workload):
    ready = peers.prepare(workload, OTHERS)
    launched = {}
    for name in (FUNC, OURS):
        with second_device.no_synchronizing():
            second_device.launches()
            ready.works[name]()
            launched[name] = len(second_device.launches())
    assert launched[OURS] <= launched[FUNC]
