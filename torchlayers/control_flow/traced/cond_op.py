"""cond during capture: torch's cond operator, with rules for every layer."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchlayers.control_flow.batched.samples import broadcast_flags
from torchlayers.control_flow.traced import in_python_layer
from torchlayers.control_flow.traced.closure_conversion import (
    capture_paused,
    trace_once,
    traced_as,
)
from torchlayers.control_flow.traced.lowering import (
    call_below_layers,
    materialized,
    without_aliases,
)
from torchlayers.control_flow.traced.transformed import (
    OnTensors,
    Tensors,
    VmappedFunction,
    differentiable,
    differentiable_positions,
    jvp_of,
    move_batch_first,
    vjp_of,
    with_stand_ins,
)
from torchlayers.core.operators import higher_order
from torchlayers.fx.operator_tracer import records_operators

Branches = tuple[OnTensors, OnTensors]


def choose(pred: Tensor, branches: Branches, tensors: Tensors) -> list[Tensor]:
    """Returns the results of the first branch if pred is true, else those of the second.

    Both branches take the tensors and return equally many, with the same shapes and dtypes.
    """
    if not records_operators():
        pairs = zip(*(branch(tensors) for branch in branches), strict=True)
        return [torch.where(pred, one, other) for one, other in pairs]
    return [*_cond(branches, pred, *tensors)]


class _CondFunction(torch.autograd.Function):
    draws_by_key = False

    @staticmethod
    def forward(branches: Branches, pred: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        def at_the_bottom(branch: OnTensors) -> Callable[..., Any]:
            return lambda *inputs: tuple(without_aliases(branch(inputs), inputs))

        functions, operands = [*map(at_the_bottom, branches)], materialized(tensors)
        shapes = [x.shape for x in tensors]
        return tuple(
            call_below_layers(higher_order.cond, pred, *functions, operands, shapes=shapes)
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.branches, pred, *tensors = inputs
        ctx.save_for_backward(pred, *tensors)
        ctx.save_for_forward(pred, *tensors)
        ctx.set_materialize_grads(False)  # inf times an absent tangent is not nan
        ctx.shapes = {i: (x.shape, x.dtype) for i, x in enumerate(output) if differentiable(x)}
        ctx.results = len(output)
        ctx.mark_non_differentiable(*(x for x in output if not differentiable(x)))
        ctx.wanted = differentiable_positions(ctx.needs_input_grad[2:], tensors)
        if ctx.wanted:
            differentiable_results = [x for x in output if differentiable(x)]
            pull = [
                _pull(branch, len(differentiable_results), ctx.wanted) for branch in ctx.branches
            ]
            ctx.pull = [
                trace_once(branch_pull, [*differentiable_results, *tensors]) for branch_pull in pull
            ]

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        pred, *tensors = ctx.saved_tensors
        some = next(g for g in cotangents if g is not None)
        cotangents_of_floats = [
            some.new_zeros(shape, dtype=dtype) if (g := cotangents[i]) is None else g
            for i, (shape, dtype) in ctx.shapes.items()
        ]
        results = choose(pred, (ctx.pull[0], ctx.pull[1]), [*cotangents_of_floats, *tensors])
        gradients = dict(zip(ctx.wanted, results, strict=True))
        return None, None, *(gradients.get(i) for i in range(len(tensors)))

    @staticmethod
    def jvp(ctx: Any, _: None, of_pred: None, *tangents: Any) -> Any:
        pred, *tensors = ctx.saved_tensors
        places = differentiable_positions([tangent is not None for tangent in tangents], tensors)
        along = [tangents[i] for i in places]

        def push(branch: OnTensors) -> OnTensors:
            def forth(inputs: Tensors) -> list[Tensor]:
                return jvp_of(branch, inputs[len(along) :], places, inputs[: len(along)])[1]

            return traced_as(branch, forth)

        results = iter(choose(pred, _both(push, ctx.branches), [*along, *tensors]))
        return tuple(next(results) if i in ctx.shapes else None for i in range(ctx.results))

    @staticmethod
    def in_python_layer(layer: Any, branches: Branches, pred: Tensor, *tensors: Tensor) -> Any:
        return tuple(in_python_layer.cond(layer, branches, pred, tensors, choose))

    @staticmethod
    def vmap(info: Any, in_dims: Any, branches: Branches, pred: Tensor, *tensors: Tensor) -> Any:
        values = move_batch_first(tensors, in_dims[2:])
        samples = VmappedFunction(info, [dim is not None for dim in in_dims[2:]])
        with capture_paused():
            are_batched = [samples.run(branch, values)[1] for branch in branches]
        any_batched = [any(is_batched) for is_batched in zip(*are_batched, strict=True)]
        dims = tuple(0 if is_batched else None for is_batched in any_batched)
        if in_dims[1] is None:

            def batch(branch: OnTensors) -> OnTensors:
                return traced_as(branch, lambda inputs: samples.rows(branch, inputs, any_batched))

            return tuple(choose(pred, _both(batch, branches), values)), dims
        taken = move_batch_first([pred], [in_dims[1]])[0]
        sides = []
        for branch, takes in zip(branches, (taken, ~taken), strict=True):
            shown = [
                with_stand_ins(x, takes) if is_batched else _masked(x, takes.any())
                for x, is_batched in zip(values, samples.is_batched, strict=True)
            ]
            taking = VmappedFunction(info, samples.is_batched, takes)
            sides.append(taking.rows(branch, shown, [True] * len(any_batched)))
        pairs = zip(*sides, strict=True)
        results = tuple(
            torch.where(broadcast_flags(taken, one), one, other) for one, other in pairs
        )
        return results, (0,) * len(results)


_cond: Any = _CondFunction.apply


def _pull(branch: OnTensors, count: int, wanted: Sequence[int]) -> OnTensors:
    """Returns the branch's vjp: takes ``count`` cotangents, then the branch's inputs."""
    return traced_as(branch, lambda inputs: vjp_of(branch, inputs[count:], wanted, inputs[:count]))


def _masked(x: Tensor, taken: Tensor) -> Tensor:
    """Detaches x if no sample takes the branch that uses it."""
    return torch.where(taken, x, x.detach()) if differentiable(x) else x


def _both(change: Callable[[OnTensors], OnTensors], branches: Branches) -> Branches:
    return change(branches[0]), change(branches[1])
