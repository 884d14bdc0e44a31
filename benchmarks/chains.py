"""The timed work: four functions, six transforms, and three ways to compute each.

The functions work on the last dimension, so that the same code takes one sample or a batch:
torchlayers and torch.func transform it, and the raw engine runs it on the whole batch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
import torch.func
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

import torchlayers
from benchmarks.timing import Work

RAW, FUNC, OURS = PEERS = ("raw engine", "torch.func", "torchlayers")
BATCH = 8

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Workload:
    """A function from the last dimension to a number, and a batch of arguments."""

    name: str
    function: Function
    batch: Tensor
    divided_by: int | None = None

    @property
    def sample(self) -> Tensor:
        return self.batch[0]

    @property
    def divisor(self) -> int:
        """The number by which the time of a call is divided."""
        if self.divided_by is not None:
            return self.divided_by
        return count_operators(self.function, self.sample)


def workloads() -> list[Workload]:
    generator = torch.Generator().manual_seed(0)
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0])  # squares neither overflow nor vanish
    return [
        Workload("50 multiplications", multiplications, signs.expand(BATCH, 4).contiguous()),
        Workload("12 kinds", twelve_kinds(8, generator), torch.rand(BATCH, 8, generator=generator)),
        Workload("a call", square, torch.rand(BATCH, 2, generator=generator), divided_by=1),
        Workload("10 Functions", functions, torch.rand(BATCH, 4, generator=generator), 10),
    ]


def square(x: Tensor) -> Tensor:
    return (x * x).sum(-1)


def multiplications(x: Tensor) -> Tensor:
    for _ in range(50):
        x = x * x
    return x.sum(-1)


def twelve_kinds(size: int, generator: torch.Generator) -> Function:
    """48 operators, 12 kinds four times each, and a sum. Values stay of the order of 1."""
    weight = torch.rand(size, generator=generator)
    scale = 1 + torch.rand(size, generator=generator)
    matrix = torch.randn(size, size, generator=generator) / size
    mask = torch.rand(size, generator=generator) < 0.5

    def function(x: Tensor) -> Tensor:
        for _ in range(4):
            y = x * weight
            y = y - y.mean(-1, keepdim=True)
            y = (y + 0.5).sin().exp() / scale
            y = F.softplus(y.tanh().sigmoid()) @ matrix
            x = torch.where(mask, y, x)
        return x.sum(-1)

    return function


class Sine(torch.autograd.Function):
    """An autograd.Function with one operator in forward and two in backward."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * ctx.saved_tensors[0].cos()

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return tangent * ctx.saved_tensors[0].cos()


def functions(x: Tensor) -> Tensor:
    for _ in range(10):
        x = Sine.apply(x)
    return x.sum(-1)


def count_operators(function: Function, x: Tensor) -> int:
    """The number of torch operators that the function calls."""
    with _Counter() as counter:
        function(x)
    return counter.count


class _Counter(TorchFunctionMode):
    count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.count += 1
        return func(*args, **(kwargs or {}))


def peers(workload: Workload) -> dict[str, dict[str, Work]]:
    """For each transform, the same result computed by each peer."""
    by_peer = {
        RAW: by_hand(workload),
        FUNC: by(torch.func, workload),
        OURS: by(torchlayers, workload),
    }
    return {
        transform: {peer: work[transform] for peer, work in by_peer.items()}
        for transform in by_peer[RAW]
    }


def by(library: ModuleType, workload: Workload) -> dict[str, Work]:
    """The transforms, by torchlayers or by torch.func."""
    function, x, batch = workload.function, workload.sample, workload.batch
    tangent, cotangent = torch.full_like(x, 0.5), torch.tensor(0.5)

    def vjp() -> tuple[Tensor, Tensor]:
        output, pull_back = library.vjp(function, x)
        return output, *pull_back(cotangent)

    grad = library.grad(function)
    grad_grad = library.grad(lambda x: grad(x).sum(-1))
    vmap = library.vmap(function)
    vmap_grad = library.vmap(grad)
    return {
        "grad": lambda: grad(x),
        "vjp": vjp,
        "jvp": lambda: library.jvp(function, (x,), (tangent,)),
        "vmap": lambda: vmap(batch),
        "vmap(grad)": lambda: vmap_grad(batch),
        "grad(grad)": lambda: grad_grad(x),
    }


def by_hand(workload: Workload) -> dict[str, Work]:
    """The same by autograd and forward AD, with the function run on the whole batch."""
    function, sample, batch = workload.function, workload.sample, workload.batch
    tangent, cotangent = torch.full_like(sample, 0.5), torch.tensor(0.5)

    def grad() -> Tensor:
        x = sample.detach().requires_grad_()
        return torch.autograd.grad(function(x), x)[0]

    def vjp() -> tuple[Tensor, Tensor]:
        x = sample.detach().requires_grad_()
        output = function(x)
        return output.detach(), *torch.autograd.grad(output, x, cotangent)

    def jvp() -> tuple[Tensor, Tensor]:
        with forward_ad.dual_level():
            output = function(forward_ad.make_dual(sample, tangent))
            return tuple(forward_ad.unpack_dual(output))

    def vmap_grad() -> Tensor:
        x = batch.detach().requires_grad_()
        return torch.autograd.grad(function(x).sum(), x)[0]

    def grad_grad() -> Tensor:
        x = sample.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(function(x), x, create_graph=True)
        return torch.autograd.grad(gradient.sum(-1), x)[0]

    return {
        "grad": grad,
        "vjp": vjp,
        "jvp": jvp,
        "vmap": lambda: function(batch),
        "vmap(grad)": vmap_grad,
        "grad(grad)": grad_grad,
    }
