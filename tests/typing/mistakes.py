"""Mistakes that mypy --strict and pyright both report: each line that ends in "# mistake"."""

from collections.abc import Callable

import torch
from torch import Tensor

import torchlayers as tl


def loss(w: Tensor, x: Tensor) -> Tensor:
    return (x @ w).sum()


def of_dict(params: dict[str, Tensor], x: Tensor, power: int = 2) -> Tensor:
    return (x @ params["w"]).sum() ** power


def with_aux(w: Tensor, x: Tensor) -> tuple[Tensor, str]:
    return (x @ w).sum(), "aux"


def number(w: Tensor) -> float:
    return float(w.sum())


@tl.compile
def compiled(x: Tensor, power: int = 2) -> Tensor:
    return x**power


@tl.compile(backend="eager")  # mistake
def by_another_compiler(x: Tensor) -> Tensor:
    return x


@tl.custom_jvp
def custom(x: Tensor) -> Tensor:
    return x


class Model:
    @tl.compile
    def forward(self, x: Tensor) -> Tensor:
        return x


def mistakes(w: Tensor, x: Tensor, params: dict[str, Tensor]) -> None:
    # The arguments of a transformed function.
    tl.grad(loss)(w)  # mistake
    tl.grad(loss)("a", x)  # mistake
    tl.grad(loss)(w, x, x)  # mistake
    tl.grad(of_dict)(w, x)  # mistake
    tl.grad(of_dict)(params, x, pow=3)  # mistake
    tl.grad(of_dict, argnums=1)(params)  # mistake
    tl.grad(of_dict, argnums=-1)(params)  # mistake
    tl.vmap(loss, (None, 0))(w)  # mistake
    tl.vmap(tl.grad(loss), (None, 0))(w, "x")  # mistake
    tl.jacrev(loss)(w)  # mistake
    tl.hessian(loss)(w)  # mistake
    tl.hessian(loss, mode="auto")(w)  # mistake
    tl.jacobian(loss)(w)  # mistake
    tl.checkpoint(loss)(w)  # mistake
    tl.seeded(loss, tl.random.key(0))(w)  # mistake
    tl.functionalize(loss)(w)  # mistake
    compiled(x, 2.0)  # mistake
    tl.compile(loss)(w)  # mistake
    Model().forward("x")  # mistake
    custom(1.0)  # mistake
    tl.jvp(loss, (w,), (w,))  # mistake
    tl.jvp(loss, (w, x), (w,))  # mistake
    tl.jvp(of_dict, (params, x), (params, 1.0))  # mistake
    tl.hvp(loss, (w, x), (w,))  # mistake
    tl.vjp(loss, w)  # mistake
    tl.vjp(loss, w, x)[1]("cotangent")  # mistake
    tl.linearize(loss, w, x)[1](w)  # mistake
    # Results used as something else.
    tl.grad(of_dict)(params, x)[0]  # mistake
    tl.grad(loss, argnums=(0, 1))(w, x).sum()  # mistake
    tl.grad_and_value(of_dict)(params, x)["w"]  # mistake
    tl.jvp(loss, (w, x), (w, x)).sum()  # mistake
    tl.vjp(loss, w, x)[0]["w"]  # mistake
    tl.vmap(loss)(w, x).keys()  # mistake
    # Functions that can't be differentiated.
    tl.grad(with_aux)(w, x)  # mistake
    tl.grad(number)(w)  # mistake
    tl.grad_and_value(number)(w)  # mistake
    # Names of JAX, which have an error at run time, too.
    tl.jit(loss)  # mistake
    tl.value_and_grad(loss)  # mistake
    # Options.
    tl.vmap(loss, in_dims="0")  # mistake
    tl.vmap(loss, in_dims=[0, 0])  # mistake
    tl.vmap(loss, out_dims="0")  # mistake
    tl.vmap(loss, randomness="diff")  # mistake
    tl.vmap(loss, chunk_size="all")  # mistake
    tl.vmap(loss, fallback="python")  # mistake
    tl.vmap(loss, in_axes=0)  # mistake
    tl.vmap(loss, out="dt")  # mistake
    tl.grad(loss, argnum=0)  # mistake
    tl.grad(loss, argnums="w")  # mistake
    tl.jacfwd(loss, randomness="no")  # mistake
    tl.jacrev(loss, layout="rows")  # mistake
    tl.hessian(loss, check="sometimes")  # mistake
    tl.hessian(loss, mode="backward")  # mistake
    tl.hessian(loss, mode="auto", chunk_size=2)  # mistake
    tl.jacobian(loss, mode="backward")  # mistake
    tl.compile(loss, backend="eager")  # mistake
    tl.functionalize(loss, remove="views")  # mistake
    tl.checkpoint(loss, w, x)  # mistake
    tl.laplacian(loss, distribution="gaussian")  # mistake
    tl.cond(w.sum() > 0, torch.sin, torch.cos, w, batched="both")  # mistake
    tl.while_loop(lambda c: c.sum() < 3, torch.exp, w, batched="select")  # mistake
    tl.scan(lambda total, row: total + row, w, x)  # mistake


def not_mistakes(f: Callable[..., Tensor], has_aux: bool, primals: tuple[Tensor, ...]) -> None:
    """Functions of any arguments, and flags that are not known until the call."""
    tl.grad(f)(*primals)
    tl.grad(f, has_aux=has_aux)(*primals)
    tl.grad(f, 0, has_aux)(*primals)
    tl.jvp(f, primals, primals)
    tl.vjp(f, *primals)
    tl.hvp(f, primals, primals)
    tl.jacrev(f, has_aux=has_aux)(*primals)
