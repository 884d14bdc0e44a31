"""while_loop during capture: torch's while_loop operator, with rules for every layer.

NOTE [A loop that is recorded]
The number of trips is unknown during capture, so a loop is one operator whose operands are the
graphs of its two functions. Each layer transforms it into another loop: vmap into one that
continues until all samples have finished, jvp into one that carries tangents too. Reverse mode runs
the loop again (while_loop_vjp.py). Below all layers, it becomes torch's while_loop.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchlayers import _C
from torchlayers.control_flow.batched.samples import broadcast_flags
from torchlayers.control_flow.traced import in_python_layer
from torchlayers.control_flow.traced.closure_conversion import (
    may_be_reversed,
    traced_as,
)
from torchlayers.control_flow.traced.layer_state import is_inside_python_layer
from torchlayers.control_flow.traced.loop import TracedLoop, batch_carry
from torchlayers.control_flow.traced.lowering import (
    call_below_layers,
    materialized,
    with_symbols,
    without_aliases,
)
from torchlayers.control_flow.traced.transformed import (
    Tensors,
    VmappedFunction,
    differentiable,
    differentiable_positions,
    jvp_of,
    move_batch_first,
    or_zeros,
    with_stand_ins,
)
from torchlayers.control_flow.traced.while_loop_vjp import WhileLoopVjp
from torchlayers.core import pytree
from torchlayers.core.operators import higher_order
from torchlayers.core.torch_private import is_forward_mode_on
from torchlayers.fx.operator_tracer import records_operators


def repeat(loop: TracedLoop, tensors: Tensors) -> list[Tensor]:
    """Returns the last carry. tensors are the initial carry and the captured tensors."""
    return _repeat_counting(loop, tensors)[: loop.carried]


def _repeat_counting(loop: TracedLoop, tensors: Tensors) -> list[Tensor]:
    """Returns the last carry and the number of trips, if that is needed."""
    if not records_operators():
        return [*_infer_results(loop, tensors), torch.zeros((), dtype=torch.int64)]
    # The derivative of a solver's loop would be traced for nothing.
    loop.counts = loop.counts or (not _is_undifferentiated() and may_be_reversed(tensors))
    return [*_while_loop(loop, *tensors)]


def _infer_results(loop: TracedLoop, tensors: Tensors) -> list[Tensor]:
    """Runs trips on fake tensors until no more of the carry becomes batched; returns the carry."""
    carry, others = [*tensors[: loop.carried]], tensors[loop.carried :]
    for _ in range(loop.carried + 1):
        goes_on = loop.cond([*carry, *others])
        new = loop.body([*carry, *others])
        new = [torch.where(goes_on, *pair) for pair in zip(new, carry, strict=True)]
        has_settled = [*map(_C.batched_levels, new)] == [*map(_C.batched_levels, carry)]
        # In a layer written in Python, more of the carry may become the layer's.
        if has_settled and not is_inside_python_layer():
            return new
        carry = new
    return carry


class _WhileLoopFunction(torch.autograd.Function):
    """Returns the last carry and the number of trips."""

    draws_by_key = False

    @staticmethod
    def forward(loop: TracedLoop, *tensors: Tensor) -> tuple[Tensor, ...]:
        return _lower(loop, tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.loop, *tensors = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, output[-1])
        ctx.save_for_forward(*tensors)
        ctx.mark_non_differentiable(*(x for x in output if not differentiable(x)))
        wanted = (
            differentiable_positions(ctx.needs_input_grad[1:], tensors) if ctx.loop.counts else []
        )
        ctx.reverse = WhileLoopVjp(ctx.loop, tensors, wanted, repeat) if wanted else None

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        assert ctx.reverse is not None, "a loop that has not counted its trips"
        *tensors, trips = ctx.saved_tensors
        return None, *ctx.reverse.pull_back(tensors, trips, cotangents)

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Any) -> Any:
        return *_jvp(ctx.loop, ctx.saved_tensors, tangents), None

    @staticmethod
    def in_python_layer(layer: Any, loop: TracedLoop, *tensors: Tensor) -> Any:
        if _is_undifferentiated():  # the results are constants
            return _while_loop(loop, *pytree.map_all_tensors(layer._value, tensors))
        return tuple(in_python_layer.while_loop(layer, loop, tensors, _repeat_counting))

    @staticmethod
    def vmap(info: Any, in_dims: Any, loop: TracedLoop, *tensors: Tensor) -> Any:
        values = move_batch_first(tensors, in_dims[1:])
        return _vmapped(loop, info, values, [dim is not None for dim in in_dims[1:]])


_while_loop: Any = _WhileLoopFunction.apply


def _is_undifferentiated() -> bool:
    """Whether the results are constants, as those of a solver that custom_root calls."""
    return not (torch.is_grad_enabled() or is_forward_mode_on())


def _lower(loop: TracedLoop, tensors: Tensors) -> tuple[Tensor, ...]:
    others = tensors[loop.carried :]
    carry = without_aliases(tensors[: loop.carried], others)
    counts = loop.counts or not carry  # torch's while_loop needs a carry
    trips = torch.zeros((), dtype=torch.int64, device=tensors[0].device if tensors else None)

    def cond(*inputs: Tensor) -> Tensor:
        return without_aliases([loop.cond(inputs[counts:])], inputs)[0]

    def body(*inputs: Tensor) -> tuple[Tensor, ...]:
        new = loop.body(inputs[counts:])
        return tuple(without_aliases([*((inputs[0] + 1,) if counts else ()), *new], inputs))

    with with_symbols():
        carried = (trips, *carry) if counts else tuple(carry)
        shapes = [x.shape for x in tensors]
        results = call_below_layers(
            higher_order.while_loop, cond, body, carried, materialized(others), shapes=shapes
        )
    return (*results[counts:], results[0] if counts else trips)


def _jvp(loop: TracedLoop, tensors: Tensors, tangents: Sequence[Any]) -> list[Any]:
    """Returns the last carry's tangents, or None each; the loop carries them beside the carry."""
    count = loop.carried
    carry, captured = tensors[:count], tensors[count:]
    floats = differentiable_positions([True] * count, carry)
    others = differentiable_positions(
        [tangent is not None for tangent in tangents[count:]], captured
    )
    first, end = count + len(floats), len(tensors) + len(floats)

    def values(inputs: Tensors) -> list[Tensor]:
        return [*inputs[:count], *inputs[first:end]]

    def body(inputs: Tensors) -> list[Tensor]:
        places = [*floats, *(count + i for i in others)]
        new, along = jvp_of(
            loop.body, values(inputs), places, [*inputs[count:first], *inputs[end:]]
        )
        return [*new, *along]

    begin = or_zeros(tangents, floats, tensors)
    both = TracedLoop(
        lambda inputs: loop.cond(values(inputs)), traced_as(loop.body, body), first, loop.counts
    )
    results = repeat(both, [*carry, *begin, *captured, *(tangents[count + i] for i in others)])
    tangents_of_carry: list[Any] = [None] * count
    for i, tangent in zip(floats, results[count:], strict=False):
        tangents_of_carry[i] = tangent
    return tangents_of_carry


def _vmapped(loop: TracedLoop, info: Any, values: Tensors, is_batched: list[bool]) -> Any:
    """Batches the loop; each sample makes its own number of trips."""
    count = loop.carried

    def trip(samples: VmappedFunction) -> list[bool]:
        shown = samples.spread(values, is_batched, samples.is_batched)
        _, (asked,) = samples.run(lambda inputs: [loop.cond(inputs)], shown)
        _, results_of_body = samples.run(loop.body, shown)
        return [*(asked or is_one_batched for is_one_batched in results_of_body), asked]

    samples, (*_, asked) = batch_carry(info, is_batched, count, trip)
    is_carry_batched = samples.is_batched[:count]
    carry, captured = samples.spread(values[:count], is_batched, is_carry_batched), values[count:]
    dims = [0 if is_one_batched else None for is_one_batched in is_carry_batched]

    def goes_on(inputs: Tensors) -> Tensor:
        return samples.rows(lambda shown: [loop.cond(shown)], inputs, [asked])[0]

    def body(inputs: Tensors) -> list[Tensor]:
        return samples.rows(loop.body, inputs, is_carry_batched)

    if not asked:
        together = TracedLoop(goes_on, traced_as(loop.body, body), count, loop.counts)
        results = _while_loop(together, *carry, *captured)
        return results, (*dims, None)

    def where_alive(inputs: Tensors) -> list[Tensor]:
        """One trip, in which samples that have finished keep their carry."""
        alive, trips, carry = inputs[0], inputs[1], inputs[2 : 2 + count]
        captured = inputs[2 + count :]
        shown = [
            with_stand_ins(x, alive) if is_one_batched else x
            for x, is_one_batched in zip([*carry, *captured], samples.is_batched, strict=True)
        ]
        going_on = VmappedFunction(info, samples.is_batched, alive)
        pairs = zip(going_on.rows(loop.body, shown, is_carry_batched), carry, strict=True)
        new = [torch.where(broadcast_flags(alive, x), x, old) for x, old in pairs]
        return [alive & goes_on([*new, *captured]), trips + alive, *new]

    alive = goes_on([*carry, *captured])
    trips = torch.zeros_like(alive, dtype=torch.int64)
    all_of_them = TracedLoop(
        lambda inputs: inputs[0].any(), traced_as(loop.body, where_alive), 2 + count, loop.counts
    )
    _, trips, *last = _while_loop(all_of_them, alive, trips, *carry, *captured)[:-1]
    return (*last, trips), (*dims, 0)
