"""Programs that write in place and through views, each paired with one that does not.

Both take x of shape (4,), may use W of shape (4,), and give the same.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

W = torch.tensor([0.3, -1.2, 0.7, 2.0], dtype=torch.float64)
ONE_HOT = torch.eye(4, dtype=torch.float64)

Program = Callable[[Tensor], Any]
PROGRAMS: dict[str, tuple[Program, Program]] = {}


def program(without: Program) -> Callable[[Program], Program]:
    """Registers a program with `without`, the equivalent that does not write."""

    def register(function: Program) -> Program:
        PROGRAMS[function.__name__] = function, without
        return function

    return register


def summed(f: Program) -> Callable[[Tensor], Tensor]:
    """The sum of everything f returns, as one real number."""

    def scalar(x: Tensor) -> Tensor:
        results = torch.utils._pytree.tree_leaves(f(x))
        return sum((r.real + r.imag if r.is_complex() else r.double()).sum() for r in results)

    return scalar


def constant(x: Tensor) -> Tensor:
    """W without a tangent but with x's batch, so that vmap allows writing to it."""
    return x.new_zeros(4) + W


@program(lambda x: ((x * W + 1).sin() - x) / W)
def arithmetic(x):
    return (x * 1).mul_(W).add_(1).sin_().sub_(x).div_(W)


@program(lambda x: x * 2 + 3 * W)
def add_with_alpha(x):
    return (x * 2).add_(W, alpha=3)


@program(lambda x: 3 * x)
def add_a_tangent_to_a_constant(x):
    return x.new_zeros(4).add_(x, alpha=3)


@program(lambda x: (x.abs() + 1) ** 3)
def power_of_a_number(x):
    return (x.abs() + 1).pow_(3)


@program(lambda x: (x.abs() + 1) ** 0.5)
def power_of_a_float(x):
    return (x.abs() + 1).pow_(0.5)


@program(lambda x: torch.polygamma(1, x.abs() + 1))
def polygamma(x):
    return (x.abs() + 1).polygamma_(1)


@program(lambda x: (x.abs() + 1) ** x)
def power_of_a_tensor(x):
    return (x.abs() + 1).pow_(x)


@program(lambda x: torch.stack([x[0], x[1] * x[0], x[2] * x[0], x[3]]))
def a_slice(x):
    y = x.clone()
    y[1:3].mul_(x[0])
    return y


@program(lambda x: torch.stack([x[0], x[1] * W[0], x[2], x[3] * W[1]]))
def a_strided_slice(x):
    y = x.clone()
    y[1::2] *= W[:2]
    return y


@program(lambda x: torch.cat([x[:2].exp(), x[2:]]))
def a_row_of_a_view(x):
    y = x.clone()
    y.view(2, 2)[0].exp_()
    return y


@program(lambda x: (torch.cat([x[:2] + W[:2], W[2:]]) * 2, x[:2] + W[:2]))
def a_view_sees_what_its_base_is_given(x):
    z = x.new_zeros(4)
    view = z[:2]
    view.copy_(x[:2])
    z.add_(W)
    return z * 2, view


@program(lambda x: (torch.cat([W[:1], x[:1], W[2:]]), x[:1].expand(1)))
def a_base_sees_what_its_view_is_given(x):
    z = constant(x)
    view = z[1:2]
    view.copy_(x[:1])
    return z, view


@program(lambda x: (x * 3).relu())
def zeroed_and_filled_anew(x):
    y = x * 2
    y.zero_()
    return y.add_(x, alpha=3).relu_()


@program(lambda x: W * x)
def overwritten_with_a_constant(x):
    y = x * 2
    y.copy_(W)
    return y * x


@program(lambda x: torch.stack([x.sum(), x.sum(), W[2], x[3]]))
def filled_with_a_tensor(x):
    y = x.clone()
    y[:2].fill_(x.sum())
    y[2].fill_(W[2])
    return y


@program(lambda x: torch.stack([x, x.sum().expand(4)]) * W)
def rows_and_a_transpose(x):
    z = x.new_zeros(2, 4)
    z[0] = x
    z[1].fill_(x.sum())
    z.t().mul_(W[:, None])
    return z


@program(lambda x: torch.where(x > 0, x.new_zeros(()), x * 2))
def masked_fill_with_a_number(x):
    return (x * 2).masked_fill_(x > 0, 0.0)


@program(lambda x: torch.where(W > 0, x[1], x * 2))
def masked_fill_with_a_tensor(x):
    return (x * 2).masked_fill_(W > 0, x[1])


@program(lambda x: torch.stack([x[1] * x[1], x[1], W[0], x[3]]))
def index_put(x):
    y = x.clone()
    y.index_put_((torch.tensor([0, 2]),), torch.stack([x[1] ** 2, W[0]]))
    return y


@program(lambda x: W + x[:2].sum() * ONE_HOT[3])
def index_put_accumulating(x):
    y = constant(x)
    y.index_put_((torch.tensor([3, 3]),), x[:2], accumulate=True)
    return y


@program(lambda x: torch.where(W > 0, x[0], x))
def boolean_index(x):
    y = x.clone()
    y[W > 0] = x[0]
    return y


@program(lambda x: x + x[0] * ONE_HOT[2] + x[1] * ONE_HOT[0])
def index_add(x):
    y = x.clone()
    y.index_add_(0, torch.tensor([2, 0]), x[:2])
    return y


@program(lambda x: torch.stack([x[3] * 2, x[1], x[2], x[0]]))
def scatter(x):
    y = x.clone()
    y.scatter_(0, torch.tensor([3, 0]), torch.stack([x[0], x[3] * 2]))
    return y


@program(lambda x: W + x[0] * ONE_HOT[1] + x[1] * ONE_HOT[1])
def scatter_add(x):
    return constant(x).scatter_add_(0, torch.tensor([1, 1]), x[:2])


@program(lambda x: torch.outer(x, W) + torch.diag(x * 3 - x * W))
def a_diagonal(x):
    y = torch.outer(x, W)
    y.diagonal().copy_(x * 3)
    return y


@program(lambda x: torch.stack([x, x, x]).cumsum(0))
def a_fresh_broadcast_copy(x):
    y = x.expand(3, 4).clone()
    return y.cumsum_(0)


@program(lambda x: torch.stack([x * x[0], x * x[1]]))
def written_with_a_broadcast(x):
    y = x.expand(2, 4).clone()
    y.mul_(x[:2, None])
    return y


@program(lambda x: torch.stack([x[0] * 2, x[1] * 4, x[2] * 4, x[3] * 2]))
def windows_that_overlap(x):
    y = x.clone()
    for i in range(3):
        y.unfold(0, 2, 1)[i].mul_(2)
    return y


@program(lambda x: torch.stack([x[0], x[2], x[1], x[3]]).view(2, 2) * 2)
def a_chain_of_views(x):
    y = x.clone()
    view = y.view(2, 2).transpose(0, 1).unsqueeze(0).squeeze(0)
    view.mul_(2)
    return view


@program(lambda x: x * torch.tensor([1.0, 1.0, 5.0, 1.0], dtype=torch.float64))
def one_element_through_views(x):
    y = x.clone()
    y.view(2, 2).t()[0, 1].mul_(5)
    return y


@program(lambda x: (x.sin().clamp(min=0) + (ONE_HOT[0] + ONE_HOT[2]) * 2, x.cos()))
def clamped_then_a_view_written(x):
    y = x.sin()
    y.clamp_(min=0.0)
    y[::2].add_(2)
    return y, x.cos()


@program(lambda x: (x * 2)[None] * 3)
def unsqueezed_in_place(x):
    return (x * 2).unsqueeze_(0).mul_(3)


@program(lambda x: (x * 2)[:1].squeeze() * W)
def squeezed_in_place(x):
    return (x * 2)[:1].squeeze_() * W


@program(lambda x: (x * 2)[1:2].squeeze(0))
def squeezed_in_place_along_a_dimension(x):
    return (x * 2)[1:2].squeeze_(0)


@program(lambda x: torch.outer(x, W).t() * x)
def transposed_in_place(x):
    return torch.outer(x, W).t_().mul_(x)


@program(lambda x: torch.outer(x, W[:2]).transpose(0, 1) + x)
def dimensions_swapped_in_place(x):
    return torch.outer(x, W[:2]).transpose_(0, 1).add_(x)


@program(lambda x: x * 2 + W * x * 0.5)
def addcmul(x):
    return (x * 2).addcmul_(W, x, value=0.5)


@program(lambda x: x * 2 + W / (x * x + 1))
def addcdiv(x):
    return (x * 2).addcdiv_(W, x * x + 1)


@program(lambda x: 0.5 * torch.outer(x, x) + torch.outer(W, x))
def addmm(x):
    return torch.outer(x, x).addmm_(W[:, None], x[None], beta=0.5)


@program(lambda x: torch.lerp(x, W, x * 0.1))
def lerp(x):
    return x.clone().lerp_(W, x * 0.1)


@program(lambda x: torch.triu(torch.outer(x, x)))
def triu(x):
    return torch.outer(x, x).triu_()


@program(lambda x: x.detach() * x)
def written_under_detach(x):
    y = x.detach().clone()
    y.mul_(x)
    return y


@program(lambda x: (x.sin(), x.sin() * 2))
def a_copy_is_not_written(x):
    y = x.sin()
    copy = y.clone()
    copy.mul_(2)
    return y, copy


@program(lambda x: torch.cat([x[:2] * 3, x[2:] * W[2:]]))
def the_parts_of_a_split(x):
    y = x.clone()
    head, tail = y[:2], y[2:]
    head.mul_(3)
    tail.mul_(W[2:])
    return y


@program(lambda x: torch.view_as_real(torch.complex(x, W) * 2j))
def a_complex_tensor_through_its_parts(x):
    z = torch.complex(x, W)
    z.mul_(2j)
    return torch.view_as_real(z)


@program(lambda x: torch.view_as_real(torch.complex(x * 2, W)))
def the_real_part_of_a_complex_tensor(x):
    z = torch.complex(x, W)
    z.real.mul_(2)
    return torch.view_as_real(z)


@program(lambda x: (x * 2).float() * W.float())
def a_narrower_dtype(x):
    return (x * 2).float().mul_(W)
