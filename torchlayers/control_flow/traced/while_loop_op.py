"""while_loop in a recording: torch's operator of that name, under every layer.

NOTE [A loop that is recorded]
Nobody knows how many trips there will be, so a loop is one operator whose operands are the graphs
of its two functions. A layer makes another loop of it: vmap one that goes on until all samples
have ended, jvp one that carries tangents along. Reverse mode runs the loop once more
(while_loop_vjp.py). What arrives at the bottom is torch's while_loop.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._higher_order_ops.while_loop import while_loop_op

from torchlayers import _C
from torchlayers.control_flow.batched.samples import beside
from torchlayers.control_flow.traced.closure_conversion import (
    fixed_as,
    is_reversed,
    is_written_down,
    unrecorded,
)
from torchlayers.control_flow.traced.loop import Loop
from torchlayers.control_flow.traced.lowering import called, fresh, laid_out, with_symbols
from torchlayers.control_flow.traced.transformed import (
    OnSamples,
    Tensors,
    differentiable,
    guarded,
    in_front,
    places_of,
    pushed,
)
from torchlayers.control_flow.traced.while_loop_vjp import Reverse


def repeat(loop: Loop, tensors: Tensors) -> list[Tensor]:
    """The last carry. tensors are the first one, and what the functions capture."""
    if not is_written_down():
        return _tried(loop, tensors)
    loop.counts = loop.counts or is_reversed(tensors)
    return [*_repeated(loop, *tensors)[: loop.carried]]


def _tried(loop: Loop, tensors: Tensors) -> list[Tensor]:
    """What comes out, without values: after some trips no more is batched than before."""
    carry, others = [*tensors[: loop.carried]], tensors[loop.carried :]
    for _ in range(loop.carried + 1):
        goes_on = loop.cond([*carry, *others])
        new = loop.body([*carry, *others])
        new = [torch.where(goes_on, *pair) for pair in zip(new, carry, strict=True)]
        if [*map(_C.batched_levels, new)] == [*map(_C.batched_levels, carry)]:
            return new
        carry = new
    return carry


class _Repeated(torch.autograd.Function):
    """The last carry, and the number of trips."""

    @staticmethod
    def forward(loop: Loop, *tensors: Tensor) -> tuple[Tensor, ...]:
        return _at_the_bottom(loop, tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.loop, *tensors = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, output[-1])
        ctx.save_for_forward(*tensors)
        ctx.mark_non_differentiable(*(x for x in output if not differentiable(x)))
        wanted = places_of(ctx.needs_input_grad[1:], tensors) if ctx.loop.counts else []
        ctx.reverse = Reverse(ctx.loop, tensors, wanted, repeat) if wanted else None

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        assert ctx.reverse is not None, "a loop that has not counted its trips"
        *tensors, trips = ctx.saved_tensors
        return None, *ctx.reverse.pull_back(tensors, trips, cotangents)

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Any) -> Any:
        return *_tangents(ctx.loop, ctx.saved_tensors, tangents), None

    @staticmethod
    def vmap(info: Any, in_dims: Any, loop: Loop, *tensors: Tensor) -> Any:
        values = in_front(tensors, in_dims[1:])
        return _of_samples(loop, info, values, [dim is not None for dim in in_dims[1:]])


_repeated: Any = _Repeated.apply


def _at_the_bottom(loop: Loop, tensors: Tensors) -> tuple[Tensor, ...]:
    others = tensors[loop.carried :]
    carry = fresh(tensors[: loop.carried], others)
    counts = loop.counts or not carry  # torch wants to carry something
    trips = torch.zeros((), dtype=torch.int64, device=tensors[0].device if tensors else None)

    def cond(*given: Tensor) -> Tensor:
        return fresh([loop.cond(given[counts:])], given)[0]

    def body(*given: Tensor) -> tuple[Tensor, ...]:
        new = loop.body(given[counts:])
        return tuple(fresh([*((given[0] + 1,) if counts else ()), *new], given))

    with with_symbols():
        carried = (trips, *carry) if counts else tuple(carry)
        shapes = [x.shape for x in tensors]
        results = called(while_loop_op, cond, body, carried, laid_out(others), shapes=shapes)
    return (*results[counts:], results[0] if counts else trips)


def _tangents(loop: Loop, tensors: Tensors, tangents: Sequence[Any]) -> list[Any]:
    """Of the last carry, those that are there: the loop carries them beside the carry."""
    count = loop.carried
    carry, captured = tensors[:count], tensors[count:]
    floats = places_of([True] * count, carry)
    others = places_of([tangent is not None for tangent in tangents[count:]], captured)
    first, end = count + len(floats), len(tensors) + len(floats)

    def values(given: Tensors) -> list[Tensor]:
        return [*given[:count], *given[first:end]]

    def body(given: Tensors) -> list[Tensor]:
        places = [*floats, *(count + i for i in others)]
        new, along = pushed(loop.body, values(given), places, [*given[count:first], *given[end:]])
        return [*new, *along]

    begin = [torch.zeros_like(tensors[i]) if tangents[i] is None else tangents[i] for i in floats]
    both = Loop(
        lambda given: loop.cond(values(given)), fixed_as(loop.body, body), first, loop.counts
    )
    results = repeat(both, [*carry, *begin, *captured, *(tangents[count + i] for i in others)])
    found: list[Any] = [None] * count
    for i, tangent in zip(floats, results[count:], strict=False):
        found[i] = tangent
    return found


def _of_samples(loop: Loop, info: Any, values: Tensors, is_batched: list[bool]) -> Any:
    """The loop of which each sample makes its own number of trips."""
    count = loop.carried
    asked, own = _what_is_batched(loop, info, values, is_batched)
    samples = OnSamples(info, [*own, *is_batched[count:]])
    captured = values[count:]
    carry = [
        samples.spread(x) if now and not before else x
        for x, now, before in zip(values[:count], own, is_batched, strict=False)
    ]
    dims = [0 if each else None for each in own]

    def goes_on(given: Tensors) -> Tensor:
        return samples.rows(lambda shown: [loop.cond(shown)], given, [asked])[0]

    def body(given: Tensors) -> list[Tensor]:
        return samples.rows(loop.body, given, own)

    if not asked:
        together = Loop(goes_on, fixed_as(loop.body, body), count, loop.counts)
        results = _repeated(together, *carry, *captured)
        return results, (*dims, None)

    def held(given: Tensors) -> list[Tensor]:
        """Samples that have ended keep what they had."""
        alive, trips, carry = given[0], given[1], given[2 : 2 + count]
        captured = given[2 + count :]
        shown = [
            guarded(x, alive) if each else x
            for x, each in zip([*carry, *captured], samples.is_batched, strict=True)
        ]
        pairs = zip(body(shown), carry, strict=True)
        new = [torch.where(beside(alive, x), x, old) for x, old in pairs]
        return [alive & goes_on([*new, *captured]), trips + alive, *new]

    alive = goes_on([*carry, *captured])
    trips = torch.zeros_like(alive, dtype=torch.int64)
    all_of_them = Loop(
        lambda given: given[0].any(), fixed_as(loop.body, held), 2 + count, loop.counts
    )
    _, trips, *last = _repeated(all_of_them, alive, trips, *carry, *captured)[:-1]
    return (*last, trips), (*dims, 0)


def _what_is_batched(
    loop: Loop, info: Any, values: Tensors, is_batched: list[bool]
) -> tuple[bool, list[bool]]:
    """Whether samples differ in when they end, and of what is carried they have their own."""
    count = loop.carried
    own = is_batched[:count]
    while True:
        samples = OnSamples(info, [*own, *is_batched[count:]])
        with unrecorded():
            shown = [
                samples.spread(x) if now and not before else x
                for x, now, before in zip(values, samples.is_batched, is_batched, strict=True)
            ]
            _, (asked,) = samples.run(lambda given: [loop.cond(given)], shown)
            _, made = samples.run(loop.body, shown)
        more = [before or asked or now for before, now in zip(own, made, strict=True)]
        if more == own:
            return asked, own
        own = more
