"""A derivative launches at most as many kernels as autograd's.

Kernels are launched on a GPU one by one, and a small one takes as long as its launch. The second
device counts launches; BY_REASON has the operators whose derivative needs more, and why.
"""

import pytest
import torch

import torchlayers as tl
from tests.device import second_device
from tests.rules.reverse.samples import reaching
from tests.support.derivatives import cotangents_of
from tests.support.rule_tables import COTANGENTS

pytestmark = [
    pytest.mark.only_on(second_device.NAME),
    pytest.mark.filterwarnings("ignore"),  # warnings of op_db's operators
]

# Operators grouped by reason. Selecting with zeros takes extra launches: torch.where needs a tensor
# of zeros, itself a launch, and a product with a mask is nan where an unselected value is infinite.
BY_REASON = {
    "autograd waits for a number, or for how many elements there are; this does not": (
        "cumprod prod prod.dim_int index_fill.int_Tensor masked_fill.Tensor"
    ),
    "it selects, where autograd multiplies by a mask": "huber_loss_backward",
    "each gradient has zeros of its own to select from, as it may be the only one": "clamp.Tensor",
    "it looks for singular matrices, whose gradient autograd has infinite or nan": (
        "_linalg_det _linalg_slogdet"
    ),
    "right at more places, or to more digits": (
        "elu_backward grid_sampler_2d_backward grid_sampler_3d_backward logcumsumexp sinc"
    ),
    "it adds where autograd writes to a part: what is batched can't be written to what is not": (
        "_linalg_eigh"
    ),
    "autograd takes the cotangent's memory for the argument's where neither has gaps": (
        "as_strided_scatter"
    ),
    "zeros are made, which autograd leaves out": "sgn",
}
FURTHER = {f"aten::{name}" for names in BY_REASON.values() for name in names.split()}


def launched_by(work):
    second_device.launches()
    work()
    return second_device.launches()


@pytest.mark.parametrize("rule", COTANGENTS.operators)
def test_gradient_launches_at_most_autograds_kernels(rule):
    if rule not in reaching():
        pytest.skip("its sample is not for this device")
    f, primals = reaching()[rule]
    tracked = [x.detach().clone().requires_grad_() for x in primals]
    results = f(*tracked)
    cotangents = cotangents_of(results)
    connected = [(y, g) for y, g in zip(results, cotangents, strict=True) if y.requires_grad]
    if not connected:
        pytest.skip("autograd has no gradient of it")
    ys, gs = zip(*connected, strict=True)
    _, pull = tl.vjp(f, *primals)
    try:
        theirs = launched_by(lambda: torch.autograd.grad(ys, tracked, gs, allow_unused=True))
    except RuntimeError:
        pytest.skip("autograd has no gradient of it")
    ours = launched_by(lambda: pull(cotangents))
    is_further = len(ours) > len(theirs)
    assert is_further == (rule in FURTHER), f"{ours}, and autograd {theirs}"
