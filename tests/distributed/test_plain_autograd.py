"""Collectives along named axes under plain autograd and torch.func, outside our layers."""

import torch
import torch.distributed as dist
from torch.autograd import forward_ad

from tests.distributed.nests import close, everybodys, of_sine, summed, tangents_of_all, weighted
from tests.distributed.processes import case, over_ranks
from tests.distributed.test_axes import ALONG, mesh
from torchlayers.distributed import psum, pvary


def dual_tangent(f, x, tangent):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(f(forward_ad.make_dual(x, tangent))).tangent


@case
def plain_autograd_has_the_same_derivatives():
    for along in ALONG.values():
        x = everybodys(along.shape, dist.get_world_size(), "grad")
        own = x[dist.get_rank()].clone().requires_grad_()
        with mesh():
            y = along.of_rank(own)
            (gradient,) = torch.autograd.grad(weighted(y), own)
        expected = torch.func.grad(summed(along.of_all))(x)
        close(gradient, expected[dist.get_rank()])


@case
def forward_mode_has_the_same_tangents():
    for along in ALONG.values():
        x = everybodys(along.shape, dist.get_world_size(), "jvp")
        own = x[dist.get_rank()]
        with mesh():
            tangent = dual_tangent(of_sine(along.of_rank), own, own.cos())
            by_func = torch.func.jvp(of_sine(along.of_rank), (own,), (own.cos(),))[1]
        expected = tangents_of_all(along.of_all)(x)[dist.get_rank()]
        close(tangent, expected)
        close(by_func, expected)


@case
def a_tangent_is_differentiated_in_reverse():
    size = dist.get_world_size()
    x = torch.arange(1.0, size + 1, dtype=torch.float64)
    own = x[dist.get_rank()].clone().requires_grad_()
    with mesh():
        tangent = dual_tangent(lambda x: psum(x.sin(), "i"), own, torch.ones_like(own))
        (gradient,) = torch.autograd.grad(tangent, own)
    close(tangent, x.cos().sum())
    close(gradient, -size * own.sin())


@case
def a_list_with_a_constant_has_a_tangent():
    x = torch.arange(3.0, dtype=torch.float64)
    with mesh():
        tangent = dual_tangent(
            lambda x: sum(psum([x.sin(), x.detach()], "i")) + sum(pvary([x, x.detach()], "i")),
            x,
            torch.ones_like(x),
        )
    close(tangent, dist.get_world_size() * x.cos() + 1)


test_over_ranks = over_ranks(__name__)
