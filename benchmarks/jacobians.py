"""The cost of a call of jacrev, jacfwd and hessian, for functions of two numbers."""

from types import ModuleType

import torch
import torch.func
from torch import Tensor
from torch.autograd import forward_ad

import torchlayers
from benchmarks.chains import FUNC, OURS, RAW, square
from benchmarks.timing import Work


def peers() -> dict[str, dict[str, Work]]:
    """For each transform, the same result computed by each peer."""
    x = torch.tensor([0.5, 1.5])
    by_peer = {RAW: by_hand(x), FUNC: by(torch.func, x), OURS: by(torchlayers, x)}
    return {
        transform: {peer: work[transform] for peer, work in by_peer.items()}
        for transform in by_peer[RAW]
    }


def squares(x: Tensor) -> Tensor:
    return x * x


def by(library: ModuleType, x: Tensor) -> dict[str, Work]:
    """The Jacobian of the squares and the Hessian of their sum."""
    jacrev, jacfwd = library.jacrev(squares), library.jacfwd(squares)
    hessian = library.hessian(square)
    return {
        "jacrev": lambda: jacrev(x),
        "jacfwd": lambda: jacfwd(x),
        "hessian": lambda: hessian(x),
    }


def by_hand(given: Tensor) -> dict[str, Work]:
    """One row or column at a time."""
    axes = torch.eye(len(given))

    def jacrev() -> Tensor:
        x = given.detach().requires_grad_()
        return _rows(squares(x), x)

    def jacfwd() -> Tensor:
        with forward_ad.dual_level():
            outputs = [squares(forward_ad.make_dual(given, axis)) for axis in axes]
            return torch.stack([forward_ad.unpack_dual(y).tangent for y in outputs], 1)

    def hessian() -> Tensor:
        x = given.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(square(x), x, create_graph=True)
        return _rows(gradient, x)

    def _rows(y: Tensor, x: Tensor) -> Tensor:
        return torch.stack([torch.autograd.grad(y, x, axis, retain_graph=True)[0] for axis in axes])

    return {"jacrev": jacrev, "jacfwd": jacfwd, "hessian": hessian}
