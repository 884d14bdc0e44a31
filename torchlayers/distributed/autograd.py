"""Registers the derivatives of the named-axis collectives with plain autograd, for use outside
transforms. They are the same as in csrc/rules/collectives/axes.cpp."""

from collections.abc import Callable
from typing import Any

import torch

from torchlayers.core.operator_rules import plain_derivatives

_ops: Any = torch.ops.torchlayers


def _inverse(sources: list[int]) -> list[int]:
    inverse = [-1] * len(sources)
    for place, source in enumerate(sources):
        if source >= 0:
            inverse[source] = place
    return inverse


# Functions of the cotangent and the operator's arguments after the first.
TRANSPOSES: dict[str, Callable[..., Any]] = {
    "psum": lambda g, axis: _ops.psum(g, axis),
    "psum_invariant": lambda g, axis: _ops.pvary(g, axis),
    "pvary": lambda g, axis: _ops.psum_invariant(g, axis),
    "all_gather": lambda g, dim, size, axis: _ops.psum_scatter(g, dim, size, axis),
    "psum_scatter": lambda g, dim, size, axis: _ops.all_gather(g, dim, size, axis),
    "all_to_all": lambda g, split, join, size, axis: _ops.all_to_all(g, join, split, size, axis),
    "ppermute": lambda g, sources, axis: _ops.ppermute(g, _inverse(sources), axis),
    "own_part": lambda g, dim, total, size, axis: _ops.joined_parts(g, dim, total, size, axis),
    "joined_parts": lambda g, dim, total, size, axis: _ops.own_part(g, dim, total, size, axis),
    "shared": lambda g, size: g / size,
    "pvary_each": lambda gs, axis: _ops.psum_invariant_each(gs, axis),
    "psum_each": lambda gs, axis: _ops.psum_each(gs, axis),
    "psum_invariant_each": lambda gs, axis: _ops.pvary_each(gs, axis),
}


def _register(name: str, transpose: Callable[..., Any]) -> None:
    def keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.rest = inputs[1:]

    def backward(ctx: Any, cotangent: Any) -> tuple[Any, ...]:
        return transpose(cotangent, *ctx.rest), *[None] * len(ctx.rest)

    plain_derivatives.register(
        name, plain_derivatives.linear(getattr(_ops, name)), backward, setup_context=keep
    )


def _keep_largest(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, ctx.axis = inputs
    ctx.save_for_backward(x, output)


def _share(x: Any, largest: Any, axis: Any) -> Any:
    """A mask of the largest elements, divided by their number."""
    is_largest = (x == largest).to(x.dtype)
    return is_largest / _ops.psum(is_largest, axis)


def _share_with_largest(ctx: Any, cotangent: Any) -> tuple[Any, None]:
    x, largest = ctx.saved_tensors
    return _ops.psum(cotangent, ctx.axis) * _share(x, largest, ctx.axis), None


def _jvp_of_largest(args: Any, largest: Any, tangents: Any) -> Any:
    x, axis = args
    return _ops.psum(_share(x, largest, axis) * tangents[0], axis)


for _name, _transpose in TRANSPOSES.items():
    _register(_name, _transpose)
plain_derivatives.register("pmax", _jvp_of_largest, _share_with_largest, _keep_largest)
