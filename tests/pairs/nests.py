"""The columns of the table of pairs: what is made of a function of a vector of four numbers.

Each takes the function and gives tensors, computed at a fixed point.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

import torchlayers as tl

Function = Callable[[Tensor], Tensor]

POINT = torch.tensor([0.7, 0.4, 0.9, 0.5], dtype=torch.float64)
TANGENT = torch.tensor([1.0, -0.5, 0.3, 0.8], dtype=torch.float64)
WEIGHTS = torch.tensor([0.9, -1.1, 0.6, 1.3], dtype=torch.float64)
SCALES = torch.tensor([0.9, 1.0, 1.1], dtype=torch.float64)
BATCH = torch.stack([POINT, POINT.flip(0), POINT + 0.15])


def number(f: Function) -> Function:
    return lambda x: (f(x) * WEIGHTS).sin().sum()


def _jvp(f: Function) -> Function:
    return lambda x: tl.jvp(f, (x,), (TANGENT * x,))[1]


def _jet(f: Function) -> Function:
    def all_orders(x: Tensor) -> Tensor:
        value, (first, second) = tl.jet(f, (x,), ((TANGENT, x),))
        return value + first + second

    return all_orders


def _loop(f: Function) -> Function:
    return lambda x: tl.scan(lambda y, w: (f(y) * w, None), x, WEIGHTS[:2])[0]


def _branch(f: Function) -> Function:
    return lambda x: tl.cond(x.sum() > 0, f, lambda x: x.neg(), x)


class Passing(tl.Layer):
    """A layer that lets everything through."""


def _layer(f: Function) -> Function:
    def inside(x: Tensor) -> Tensor:
        with Passing():
            return f(x)

    return inside


class _OfItsParameter(nn.Module):
    def __init__(self, f: Function):
        super().__init__()
        self.point = nn.Parameter(torch.zeros_like(POINT))
        self.f = f

    def forward(self) -> Tensor:
        return self.f(self.point)


def _module(f: Function) -> Function:
    module = _OfItsParameter(f)
    return lambda x: tl.functional_call(module, {"point": x}, ())


def _plain_gradients(f: Function) -> Any:
    x = POINT.clone().requires_grad_()
    (first,) = torch.autograd.grad(number(f)(x), x, create_graph=True)
    return first, torch.autograd.grad(first @ TANGENT, x)[0]


def _plain_tangent(f: Function) -> Any:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(f(forward_ad.make_dual(POINT.clone(), TANGENT))).tangent


def _sparse(f: Function) -> Any:
    return tl.jacfwd(f, sparse=True)(POINT).to_dense()


def _scaled(f: Function) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, scale: number(f)(x * scale)


def _clipped(f: Function) -> Any:
    return tl.clipped_grad(_scaled(f), 0.5, in_dims=(None, 0))(POINT, SCALES)


def _one_point(f: Function) -> Any:
    return tl.vmap(tl.grad(_scaled(f)), (None, 0))(POINT, SCALES)


def _four_times(f: Function) -> Function:
    return lambda x: sum(number(f)(x * scale) for scale in (0.9, 1.0, 1.1, 1.2))  # type: ignore[return-value]


def _captured(transform: Callable[[Function], Function], x: Tensor) -> Callable[[Function], Any]:
    return lambda f: tl.compile(transform(f), backend="replay")(x)


def _shape(f: Function) -> Function:
    def of_ones(x: Tensor) -> Tensor:
        struct = tl.eval_shape(f, tl.ShapeDtypeStruct(x.shape, x.dtype, x.device))
        return torch.ones(struct.shape, dtype=struct.dtype, device=struct.device)

    return of_ones


def _at(transform: Callable[[Function], Any], x: Tensor = POINT) -> Callable[[Function], Any]:
    return lambda f: transform(f)(x)


def _grad(f: Function) -> Function:
    return tl.grad(number(f))


def _hessian(f: Function) -> Function:
    return tl.hessian(number(f))


NESTS: dict[str, Callable[[Function], Any]] = {
    "called": _at(lambda f: f),
    "grad": _at(_grad),
    "grad_and_value": _at(lambda f: tl.grad_and_value(number(f))),
    "vjp": lambda f: tl.vjp(f, POINT)[1](WEIGHTS),
    "jvp": _at(_jvp),
    "vmap": _at(tl.vmap, BATCH),
    "vmap in chunks": _at(lambda f: tl.vmap(f, chunk_size=2), BATCH),
    "jacfwd": _at(tl.jacfwd),
    "jacrev": _at(tl.jacrev),
    "jacobian": _at(tl.jacobian),
    "hessian": _at(_hessian),
    "hessian(mode='auto')": _at(lambda f: tl.hessian(number(f), mode="auto")),
    "hvp": lambda f: tl.hvp(number(f), (POINT,), (TANGENT,)),
    "linearize": lambda f: tl.linearize(f, POINT)[1](TANGENT),
    "functionalize": _at(tl.functionalize),
    "jet": _at(_jet),
    "laplacian": _at(lambda f: tl.laplacian(number(f))),
    "hessian_diagonal": _at(lambda f: tl.hessian_diagonal(number(f))),
    "biharmonic": _at(lambda f: tl.biharmonic(number(f))),
    "directional_derivatives": lambda f: tl.directional_derivatives(f, POINT, TANGENT[None], 3),
    "jacfwd(sparse=True)": _sparse,
    "per_sample_norms": lambda f: tl.per_sample_norms(_scaled(f), in_dims=(None, 0))(POINT, SCALES),
    "clipped_grad": _clipped,
    "vmap(grad)": _at(lambda f: tl.vmap(_grad(f)), BATCH),
    "vmap(grad), of one point": _one_point,
    "grad(vmap)": _at(lambda f: tl.grad(lambda xs: tl.vmap(number(f))(xs).sum()), BATCH),
    "vmap(jvp)": _at(lambda f: tl.vmap(_jvp(f)), BATCH),
    "vmap(vmap)": _at(lambda f: tl.vmap(tl.vmap(f)), BATCH.expand(2, 3, 4)),
    "vmap(hessian)": _at(lambda f: tl.vmap(_hessian(f)), BATCH),
    "grad(grad)": _at(lambda f: _grad(_grad(f))),
    "jvp(grad)": _at(lambda f: _jvp(_grad(f))),
    "grad(jvp)": _at(lambda f: _grad(_jvp(f))),
    "jvp(jvp)": _at(lambda f: _jvp(_jvp(f))),
    "grad(grad(grad))": _at(lambda f: _grad(_grad(_grad(f)))),
    "functionalize(grad)": _at(lambda f: tl.functionalize(_grad(f))),
    "grad(functionalize)": _at(lambda f: _grad(tl.functionalize(f))),
    "vmap(functionalize)": _at(lambda f: tl.vmap(tl.functionalize(f)), BATCH),
    "grad(jet)": _at(lambda f: _grad(_jet(f))),
    "jet(grad)": _at(lambda f: _jet(_grad(f))),
    "jet(jet)": _at(lambda f: _jet(_jet(f))),
    "vmap(jet)": _at(lambda f: tl.vmap(_jet(f)), BATCH),
    "grad(laplacian)": _at(lambda f: tl.grad(tl.laplacian(number(f)))),
    "vmap(laplacian)": _at(lambda f: tl.vmap(tl.laplacian(number(f))), BATCH),
    "grad, by a memory budget": _at(lambda f: tl.grad(_four_times(f), memory_budget=0.8)),
    "plain autograd": _plain_gradients,
    "plain forward mode": _plain_tangent,
    "torch.func.grad": _at(lambda f: torch.func.grad(number(f))),
    "torch.func.vmap": _at(torch.func.vmap, BATCH),
    "grad of a scan": _at(lambda f: _grad(_loop(f))),
    "vmap(grad) of a scan": _at(lambda f: tl.vmap(_grad(_loop(f))), BATCH),
    "grad of a branch": _at(lambda f: _grad(_branch(f))),
    "vmap of a branch": _at(lambda f: tl.vmap(_branch(f)), BATCH),
    "map": lambda f: tl.map(f, BATCH),
    "grad of a checkpoint": _at(lambda f: _grad(tl.checkpoint(f))),
    "grad in a Layer": _at(lambda f: _layer(_grad(f))),
    "grad of a Layer": _at(lambda f: _grad(_layer(f))),
    "vmap(grad) of a Layer": _at(lambda f: tl.vmap(_grad(_layer(f))), BATCH),
    "grad of a functional_call": _at(lambda f: _grad(_module(f))),
    "make_fx of grad": lambda f: make_fx(_grad(f))(POINT)(POINT),
    "eval_shape": _at(_shape),
    "eval_shape of vmap(grad)": _at(lambda f: _shape(tl.vmap(_grad(f))), BATCH),
    "compile": _captured(lambda f: f, POINT),
    "compile of grad": _captured(_grad, POINT),
    "compile of jvp": _captured(_jvp, POINT),
    "compile of vmap(grad)": _captured(lambda f: tl.vmap(_grad(f)), BATCH),
    "compile of hessian": _captured(_hessian, POINT),
    "compile of jet": _captured(_jet, POINT),
    "compile of laplacian": _captured(lambda f: tl.laplacian(number(f)), POINT),
    "compile of a Layer": _captured(lambda f: _grad(_layer(f)), POINT),
    "compile of a scan": _captured(lambda f: _grad(_loop(f)), POINT),
}
