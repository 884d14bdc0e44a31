"""scan during capture: torch's scan operator, with rules for every layer.

NOTE [A scan that is recorded]
The number of steps is known, so a scan is one operator with the graph of its body and stacked ys.
Each layer transforms it into another scan: vmap into one whose steps run all samples, jvp into one
that carries tangents too. For reverse mode, the carry before each step is saved as one of the ys.
The reverse pass is a scan from the last step to the first, which recomputes each step from its
carry and pulls back through it; cotangents of captured tensors are accumulated in its carry. It is
an ordinary scan, so it can be batched and differentiated. A loop with an unknown number of trips
saves less (NOTE [A loop run backward]).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchlayers import _C
from torchlayers.control_flow.traced import in_python_layer
from torchlayers.control_flow.traced.closure_conversion import (
    capture_paused,
    may_be_reversed,
    trace_once,
    traced_as,
)
from torchlayers.control_flow.traced.layer_state import is_inside_python_layer
from torchlayers.control_flow.traced.loop import TracedScan, batch_carry
from torchlayers.control_flow.traced.lowering import call_below_layers, contiguous, without_aliases
from torchlayers.control_flow.traced.transformed import (
    OnTensors,
    Tensors,
    VmappedFunction,
    differentiable,
    differentiable_positions,
    jvp_of,
    move_batch_first,
    or_zeros,
    vjp_of,
)
from torchlayers.core.operators import higher_order
from torchlayers.fx.operator_tracer import records_operators


def run(steps: TracedScan, tensors: Tensors) -> list[Tensor]:
    """Returns the last carry and the ys. tensors: initial carry, xs, and captured tensors."""
    if not records_operators():
        return _infer_results(steps, tensors)
    if not may_be_reversed(tensors):
        return [*_scan(steps, *tensors)]
    results = [*_scan(_with_saved_carries(steps), *tensors)]
    return results[: len(results) - steps.carried]


def run_as_constants(steps: TracedScan, tensors: Tensors) -> list[Tensor]:
    """Returns the same as run, but detached."""
    tensors = [x.detach() for x in tensors]
    return [*_scan(steps, *tensors)] if records_operators() else _infer_results(steps, tensors)


def of_first_step(steps: TracedScan, tensors: Tensors) -> list[Tensor]:
    carry, xs = tensors[: steps.carried], tensors[steps.carried : steps.uncaptured]
    return [*carry, *(x.select(0, 0) for x in xs), *tensors[steps.uncaptured :]]


def _with_saved_carries(steps: TracedScan) -> TracedScan:
    """Returns steps that append the carry before each step to the ys."""

    def body(inputs: Tensors) -> list[Tensor]:
        return [*steps.body(inputs), *(x.clone() for x in inputs[: steps.carried])]

    return TracedScan(traced_as(steps.body, body), steps.carried, steps.sliced, keeps=True)


def _infer_results(steps: TracedScan, tensors: Tensors) -> list[Tensor]:
    """Runs steps on fake tensors until no more of the carry becomes batched; returns results."""
    length = tensors[steps.carried].size(0)
    inputs = of_first_step(steps, tensors)
    carry, others = inputs[: steps.carried], inputs[steps.carried :]
    either = torch.ones((), dtype=torch.bool, device=tensors[steps.carried].device)
    # As many steps as it may take for all of the carry to become a Python layer's.
    least = steps.carried if is_inside_python_layer() else 0
    while True:
        results = steps.body([*carry, *others])
        new = [torch.where(either, *pair) for pair in zip(results, carry, strict=False)]
        if least <= 0 and [*map(_C.batched_levels, new)] == [*map(_C.batched_levels, carry)]:
            ys = results[steps.carried :]
            return [*new, *(y.expand(length, *y.shape).contiguous() for y in ys)]
        carry, least = new, least - 1


class _ScanFunction(torch.autograd.Function):
    """Returns the last carry and the ys.

    If it is differentiated in reverse mode, the last ys are the carries before each step.
    """

    draws_by_key = False

    @staticmethod
    def forward(steps: TracedScan, *tensors: Tensor) -> tuple[Tensor, ...]:
        return _lower(steps, tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.steps, *tensors = inputs
        ctx.set_materialize_grads(False)
        ctx.has_derivative = [*map(differentiable, output)]
        ctx.mark_non_differentiable(*(x for x in output if not differentiable(x)))
        ctx.save_for_forward(*tensors)
        wanted = (
            differentiable_positions(ctx.needs_input_grad[1:], tensors) if ctx.steps.keeps else []
        )
        ctx.reverse = _ScanVjp(ctx.steps, tensors, wanted, output) if wanted else None
        carries = output[len(output) - ctx.steps.carried :] if wanted else ()
        ctx.save_for_backward(*tensors, *carries)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        assert ctx.reverse is not None, "a scan that has kept no carries"
        return None, *ctx.reverse.pull_back(ctx.saved_tensors, cotangents)

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Any) -> Any:
        return tuple(_jvp(ctx.steps, ctx.has_derivative, ctx.saved_tensors, tangents))

    @staticmethod
    def in_python_layer(layer: Any, steps: TracedScan, *tensors: Tensor) -> Any:
        return tuple(in_python_layer.scan(layer, steps, tensors, run))

    @staticmethod
    def vmap(info: Any, in_dims: Any, steps: TracedScan, *tensors: Tensor) -> Any:
        values = move_batch_first(tensors, in_dims[1:])
        return _vmapped(steps, info, values, [dim is not None for dim in in_dims[1:]])


_scan: Any = _ScanFunction.apply


def _lower(steps: TracedScan, tensors: Tensors) -> tuple[Tensor, ...]:
    seen: set[int] = set()
    apart = []
    for x in tensors:  # torch distinguishes the body's inputs by identity
        x = contiguous(x)
        apart.append(x.view_as(x) if id(x) in seen else x)
        seen.add(id(x))
    carry, xs = apart[: steps.carried], apart[steps.carried : steps.uncaptured]
    captured = tuple(apart[steps.uncaptured :])

    def step(*inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(without_aliases(steps.body(inputs), inputs))

    shapes = [x.shape[steps.carried <= i < steps.uncaptured :] for i, x in enumerate(tensors)]
    return tuple(call_below_layers(higher_order.scan, step, carry, xs, captured, shapes=shapes))


class _ScanVjp:
    """The reverse pass of a scan, constructed during its forward pass.

    Args:
        steps: the steps.
        tensors: the initial carry, the xs, and the captured tensors.
        wanted: the indices of the tensors that need a cotangent.
        results: the last carry and the ys.
    """

    def __init__(
        self, steps: TracedScan, tensors: Tensors, wanted: Sequence[int], results: Tensors
    ) -> None:
        self.steps = steps
        self.wanted = wanted
        carried, uncaptured = steps.carried, steps.uncaptured
        self.floats = differentiable_positions([True] * carried, tensors[:carried])
        self.xs = [i for i in wanted if carried <= i < uncaptured]
        self.captured = [i for i in wanted if i >= uncaptured]
        places = [*self.floats, *self.captured, *self.xs]
        first = [x.shape if i < carried else x.shape[1:] for i, x in enumerate(results)]
        # The shapes of one step's cotangents, for the differentiable results.
        self.shapes = {i: first[i] for i, x in enumerate(results) if differentiable(x)}
        self.dtypes = [x.dtype for x in results]
        count = len(self.shapes)

        def pull(inputs: Tensors) -> list[Tensor]:
            return vjp_of(steps.body, inputs[count:], places, inputs[:count])

        with capture_paused():
            cotangents = [results[i].new_empty(shape) for i, shape in self.shapes.items()]
            examples = [*cotangents, *of_first_step(steps, tensors)]
        self.pull = trace_once(traced_as(steps.body, pull), examples)

    def pull_back(self, saved: Tensors, cotangents: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Returns the cotangents of the wanted tensors, and None for the others.

        Args:
            saved: the scan's input tensors, and the carries before each step.
            cotangents: those of the last carry and of the ys.
        """
        carried, uncaptured = self.steps.carried, self.steps.uncaptured
        tensors, carries = saved[: len(saved) - carried], saved[len(saved) - carried :]
        begin = or_zeros(cotangents, self.floats, tensors)
        totals = [torch.zeros_like(tensors[i]) for i in self.captured]
        of_ys = {i: g for i, g in enumerate(cotangents) if i >= carried and g is not None}
        xs = [x.flip(0) for x in (*of_ys.values(), *carries, *tensors[carried:uncaptured])]
        step = traced_as(self.pull, self._step([*of_ys]))
        backward = TracedScan(step, len(begin) + len(totals), len(xs))
        results = run(backward, [*begin, *totals, *xs, *tensors[uncaptured:]])
        gradients = dict(zip([*self.floats, *self.captured, *self.xs], results, strict=True))
        for i in self.xs:
            gradients[i] = gradients[i].flip(0)
        return [gradients[i] if i in self.wanted else None for i in range(len(tensors))]

    def _step(self, of_ys: Sequence[int]) -> OnTensors:
        """Returns the body of the backward scan, given which ys have a cotangent."""
        floats, totaled = len(self.floats), len(self.captured)

        def step(inputs: Tensors) -> list[Tensor]:
            totals = inputs[floats : floats + totaled]
            rest = inputs[floats + totaled :]
            known = dict(zip([*self.floats, *of_ys], [*inputs[:floats], *rest], strict=False))
            rest = rest[len(of_ys) :]
            cotangents = [
                known[i] if i in known else rest[0].new_zeros(shape, dtype=self.dtypes[i])
                for i, shape in self.shapes.items()
            ]
            results = self.pull([*cotangents, *rest])
            new = [a + b for a, b in zip(totals, results[floats : floats + totaled], strict=True)]
            return [*results[:floats], *new, *results[floats + totaled :]]

        return step


def _jvp(
    steps: TracedScan, has_derivative: Sequence[bool], tensors: Tensors, tangents: Sequence[Any]
) -> list[Any]:
    """Returns the tangents of the last carry and the ys; None for those without a derivative."""
    carried, uncaptured = steps.carried, steps.uncaptured
    tensors = tensors[: len(tangents)]
    floats = differentiable_positions([True] * carried, tensors[:carried])
    along = [
        i
        for i in differentiable_positions([t is not None for t in tangents], tensors)
        if i >= carried
    ]
    xs, captured = [i for i in along if i < uncaptured], [i for i in along if i >= uncaptured]

    def body(both: Tensors) -> list[Tensor]:
        parts = iter(both)

        def take(count: int) -> list[Tensor]:
            return [next(parts) for _ in range(count)]

        carry, of_carry = take(carried), take(len(floats))
        sliced, of_xs = take(uncaptured - carried), take(len(xs))
        others, of_others = take(len(tensors) - uncaptured), take(len(captured))
        results, tangents_of_results = jvp_of(
            steps.body,
            [*carry, *sliced, *others],
            [*floats, *along],
            [*of_carry, *of_xs, *of_others],
        )
        new, ys = results[:carried], results[carried:]
        return [*new, *tangents_of_results[: len(floats)], *ys, *tangents_of_results[len(floats) :]]

    begin = or_zeros(tangents, floats, tensors)
    doubled = TracedScan(
        traced_as(steps.body, body), carried + len(floats), uncaptured - carried + len(xs)
    )
    results = run(
        doubled,
        [
            *(*tensors[:carried], *begin),
            *(*tensors[carried:uncaptured], *(tangents[i] for i in xs)),
            *(*tensors[uncaptured:], *(tangents[i] for i in captured)),
        ],
    )
    ys = len(has_derivative) - carried
    tangents_of_results = iter(
        [*results[carried:][: len(floats)], *results[carried + len(floats) + ys :]]
    )
    return [next(tangents_of_results) if has else None for has in has_derivative]


def _vmapped(steps: TracedScan, info: Any, values: Tensors, is_batched: list[bool]) -> Any:
    """Batches the scan; each step runs all samples."""
    carried, uncaptured = steps.carried, steps.uncaptured

    def step(samples: VmappedFunction) -> list[bool]:
        shown = samples.spread(values, is_batched, samples.is_batched)
        for i in range(carried, uncaptured):
            shown[i] = values[i].select(1 if is_batched[i] else 0, 0)
        # Contiguous, as in the steps: torch can't infer the layout of symbolic-size tangents.
        return samples.run(steps.body, [x.contiguous() for x in shown])[1]

    samples, results_of_step = batch_carry(info, is_batched, carried, step)
    is_carry_batched, ys = samples.is_batched[:carried], results_of_step[carried:]
    carry = samples.spread(values[:carried], is_batched, is_carry_batched)
    xs = [
        x.transpose(0, 1) if is_one_batched else x
        for x, is_one_batched in zip(
            values[carried:uncaptured], is_batched[carried:uncaptured], strict=True
        )
    ]

    def body(shown: Tensors) -> list[Tensor]:
        return samples.rows(steps.body, shown, [*is_carry_batched, *ys])

    together = TracedScan(traced_as(steps.body, body), carried, steps.sliced, keeps=steps.keeps)
    results = _scan(together, *carry, *xs, *values[uncaptured:])
    dims = [
        *(0 if is_one_batched else None for is_one_batched in is_carry_batched),
        *(1 if is_one_batched else None for is_one_batched in ys),
    ]
    return results, tuple(dims)
