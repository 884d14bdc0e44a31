"""First and second derivatives of a call at special values, by torchlayers and by plain
autograd."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.autograd import forward_ad

import torchlayers as tl
from tests.support.derivatives import Function, ours, plain

Derivative = Callable[[Function, Sequence[Tensor]], list[Tensor]]


def along(tensors: Sequence[Tensor], seed: int) -> list[Tensor]:
    """Directions of ones of both signs, for which the order of multiplication does not matter."""
    numbers = torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0])
    return [
        numbers.roll(seed + i).repeat(x.numel() // 5 + 1)[: x.numel()].reshape(x.shape).to(x.dtype)
        for i, x in enumerate(tensors)
    ]


def our_jvp(f: Function, primals: Sequence[Tensor]) -> list[Tensor]:
    return list(tl.jvp(f, tuple(primals), tuple(along(primals, 1)))[1])


def plain_jvp(f: Function, primals: Sequence[Tensor]) -> list[Tensor]:
    with forward_ad.dual_level():
        duals = [
            forward_ad.make_dual(x, t) for x, t in zip(primals, along(primals, 1), strict=True)
        ]
        pairs = [forward_ad.unpack_dual(y) for y in f(*duals)]
        return [torch.zeros_like(y) if t is None else t for y, t in pairs]


def pulled_by(pull: Callable[..., list[Tensor]]) -> Derivative:
    return lambda f, primals: pull(f, primals, along(f(*primals), 2))


def twice_by(pull: Callable[..., list[Tensor]]) -> Derivative:
    def pulled_twice(f: Function, primals: Sequence[Tensor]) -> list[Tensor]:
        """Pulls the primals' cotangents back: cotangents of the primals and of the first
        cotangents."""
        count = len(primals)

        def pulled(*both: Tensor) -> list[Tensor]:
            return pull(f, both[:count], both[count:])

        return pull(pulled, [*primals, *along(f(*primals), 2)], along(primals, 1))

    return pulled_twice


def our_hvp(f: Function, primals: Sequence[Tensor]) -> list[Tensor]:
    cotangents = along(f(*primals), 2)
    return our_jvp(lambda *xs: ours(f, xs, cotangents), primals)


def plain_hvp(f: Function, primals: Sequence[Tensor]) -> list[Tensor]:
    """Reverse over reverse, where ours is forward over reverse."""
    cotangents = along(f(*primals), 2)
    return plain(lambda *xs: plain(f, xs, cotangents), primals, along(primals, 1))


def our_jvp_twice(f: Function, primals: Sequence[Tensor]) -> list[Tensor]:
    return our_jvp(lambda *xs: our_jvp(f, xs), primals)


# Ours, and plain autograd's; None if it has no equivalent.
DERIVATIVES: dict[str, tuple[Derivative, Derivative | None]] = {
    "vjp": (pulled_by(ours), pulled_by(plain)),
    "jvp": (our_jvp, plain_jvp),
    "vjp(vjp)": (twice_by(ours), twice_by(plain)),
    "jvp(vjp)": (our_hvp, plain_hvp),
    "jvp(jvp)": (our_jvp_twice, None),
}
