"""The transforms, and nests of them, that are run over op_db; `tf` is torchlayers or torch.func.

The comparison is of first and second derivatives of the sum of an operator's results, and of whole
results under vmap. Random operators draw the same numbers on both sides.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tests.rules.opinfo.cases import Case

Run = Callable[[ModuleType, Case], Any]


def _all(case: Case) -> tuple[int, ...]:
    return tuple(range(len(case.inputs)))


def _grad(tf: ModuleType, case: Case) -> Callable[..., Any]:
    return tf.grad(case.scalar, argnums=_all(case))


def _vjp(tf: ModuleType, case: Case) -> Callable[..., Any]:
    """The cotangents of all inputs for output cotangents of ones."""

    def pulled(*inputs: Any) -> Any:
        output, vjp_fn = tf.vjp(case.differentiable, *inputs)
        return vjp_fn(pytree.tree_map(torch.ones_like, output))

    return pulled


def _jvp(tf: ModuleType, case: Case) -> Callable[..., Any]:
    def pushed(*inputs: Any) -> Any:
        return tf.jvp(case.differentiable, inputs, tuple(case.tangents()))[1]

    return pushed


def _vmap(tf: ModuleType, function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return tf.vmap(function, randomness="different", **options)


def _sum(function: Callable[..., Any]) -> Callable[..., Any]:
    """The sum of everything a function returns."""

    def scalar(*inputs: Any) -> Any:
        return Case(function, []).scalar(*inputs)

    return scalar


def grad(tf: ModuleType, case: Case) -> Any:
    return _grad(tf, case)(*case.inputs)


def vjp(tf: ModuleType, case: Case) -> Any:
    return _vjp(tf, case)(*case.inputs)


def jvp(tf: ModuleType, case: Case) -> Any:
    return tf.jvp(case.differentiable, tuple(case.inputs), tuple(case.tangents()))


def vmap(tf: ModuleType, case: Case) -> Any:
    return _vmap(tf, case.func)(*case.batched())


def vmap_last_dim(tf: ModuleType, case: Case) -> Any:
    return _vmap(tf, case.func, in_dims=-1)(*case.batched(dim=-1))


def vmap_first_input(tf: ModuleType, case: Case) -> Any:
    in_dims = (0,) + (None,) * (len(case.inputs) - 1)
    return _vmap(tf, case.func, in_dims=in_dims)(case.batched()[0], *case.inputs[1:])


def vmap_grad(tf: ModuleType, case: Case) -> Any:
    return _vmap(tf, _grad(tf, case))(*case.batched())


def vmap_vjp(tf: ModuleType, case: Case) -> Any:
    return _vmap(tf, _vjp(tf, case))(*case.batched())


def vmap_jvp(tf: ModuleType, case: Case) -> Any:
    return _vmap(tf, _jvp(tf, case))(*case.batched())


def grad_vmap(tf: ModuleType, case: Case) -> Any:
    return tf.grad(_sum(_vmap(tf, case.func)), argnums=_all(case))(*case.batched())


def jvp_grad(tf: ModuleType, case: Case) -> Any:
    return tf.jvp(_grad(tf, case), tuple(case.inputs), tuple(case.tangents()))


def vjp_vjp(tf: ModuleType, case: Case) -> Any:
    return tf.grad(_sum(_vjp(tf, case)), argnums=_all(case))(*case.inputs)


def jvp_jvp(tf: ModuleType, case: Case) -> Any:
    return tf.jvp(_jvp(tf, case), tuple(case.inputs), tuple(case.tangents()))


def grad_jvp(tf: ModuleType, case: Case) -> Any:
    return tf.grad(_sum(_jvp(tf, case)), argnums=_all(case))(*case.inputs)


def jvp_vmap(tf: ModuleType, case: Case) -> Any:
    tangents = tuple(torch.stack([t, t * 0.5]) for t in case.tangents())
    batched = Case(_vmap(tf, case.func), case.batched()).differentiable
    return tf.jvp(batched, tuple(case.batched()), tangents)


def vmap_vmap(tf: ModuleType, case: Case) -> Any:
    twice = [torch.stack([x, x * 1.1]) for x in case.batched()]
    return _vmap(tf, _vmap(tf, case.func))(*twice)


def functionalize(tf: ModuleType, case: Case) -> Any:
    return tf.functionalize(case.func)(*case.inputs)


def functionalize_views(tf: ModuleType, case: Case) -> Any:
    return tf.functionalize(case.func, remove="mutations_and_views")(*case.inputs)


# Those that `make test` runs on two samples of each operator; it runs the rest on one.
BASIC: dict[str, Run] = {"grad": grad, "jvp": jvp, "vmap": vmap, "vmap(grad)": vmap_grad}

ALL: dict[str, Run] = BASIC | {
    "vjp": vjp,
    "vmap, in_dims=-1": vmap_last_dim,
    "vmap, first input": vmap_first_input,
    "vmap(vjp)": vmap_vjp,
    "vmap(jvp)": vmap_jvp,
    "grad(vmap)": grad_vmap,
    "jvp(grad)": jvp_grad,
    "vjp(vjp)": vjp_vjp,
    "jvp(jvp)": jvp_jvp,
    "grad(jvp)": grad_jvp,
    "jvp(vmap)": jvp_vmap,
    "vmap(vmap)": vmap_vmap,
    "functionalize": functionalize,
    "functionalize, no views": functionalize_views,
}
