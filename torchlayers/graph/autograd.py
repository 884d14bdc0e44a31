"""Runs a differentiated graph as autograd Functions, under autograd and the function transforms.

There are two Functions: Forward runs f, and its backward is Backward, which runs df. Both define
how they are batched (run on batched values) and their jvp (run the graph under jvp).

NOTE [Higher orders]
df reads captures, which are functions of f's inputs. So the derivative of Backward has two
parts, and the one through the captures would need a cotangent for every temporary in Forward.
Backward treats its captures as constants instead. If it is differentiated itself, its derivative
is that of ``cotangents, inputs -> vjp of f``, operator by operator. That is correct to every
order, even if df has operators without derivative (autograd uses other formulas where more
orders follow), and costs one more run of f only from the second order on.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad

from torchlayers.core import tracing_state
from torchlayers.core.device import RandomState
from torchlayers.core.torch_private import (
    dual_level,
    functorch,
    is_batched_wrapper,
    set_forward_mode,
)
from torchlayers.graph.forward_backward import ForwardBackward
from torchlayers.transforms.jvp import jvp
from torchlayers.transforms.vjp import vjp

Tensors = tuple[Tensor, ...]


def call(gradient: ForwardBackward, inputs: Sequence[Any]) -> list[Any]:
    """Returns f's real outputs, with autograd attached."""
    if _sees_operators():
        return list(gradient.run_f(inputs)[: gradient.real_outputs])
    run = _Run(gradient, inputs)
    computed = Forward.apply(run, *run.inputs.tensors(inputs))  # type: ignore[no-untyped-call]
    outputs = run.outputs.fill(computed)[: gradient.real_outputs]
    differentiable = set(gradient.differentiable_outputs)
    return [
        output.detach() if isinstance(output, Tensor) and i not in differentiable else output
        for i, output in enumerate(outputs)
    ]


def _sees_operators() -> bool:
    """Whether f should run operator by operator.

    A compiler differentiates these operators as it does all others; functionalize rejects autograd
    Functions, and autograd sees the operators through it; and if nothing is differentiated or
    transformed, there is nothing to attach.
    """
    if tracing_state.is_tracing():
        return True
    # torch.func's layers, and torchlayers' layers, which are mirrored there.
    layers: list[Any] = functorch.get_interpreter_stack() or []
    if not layers:
        return not torch.is_grad_enabled() and dual_level() < 0
    return any(layer.key() == functorch.TransformType.Functionalize for layer in layers)


class _Layout:
    """Which of some values are tensors, which Functions take and return; stores the others."""

    def __init__(self, values: Sequence[Any]) -> None:
        self.places = [i for i, value in enumerate(values) if isinstance(value, Tensor)]
        self._others = [None if isinstance(value, Tensor) else value for value in values]

    def tensors(self, values: Sequence[Any]) -> Tensors:
        return tuple(values[i] for i in self.places)

    def fill(self, tensors: Sequence[Any], places: Sequence[int] | None = None) -> list[Any]:
        """Returns all values, with tensors filled in at all their places or at the given ones."""
        values = list(self._others)
        for i, tensor in zip(self.places if places is None else places, tensors, strict=True):
            values[i] = tensor
        return values


def _distinct(outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> Tensors:
    """Returns the outputs, with views in place of inputs and of outputs that occur twice.

    An autograd Function can't save an input that it returns.
    """
    seen = {id(tensor) for tensor in inputs}
    distinct = []
    for tensor in outputs:
        distinct.append(tensor.view_as(tensor) if id(tensor) in seen else tensor)
        seen.add(id(tensor))
    return tuple(distinct)


class _Run:
    """One call of a gradient: the data that both Functions need besides tensors."""

    inputs: _Layout
    outputs: _Layout  # set when f has run
    gradients: _Layout  # set when df has run

    def __init__(self, gradient: ForwardBackward, inputs: Sequence[Any]) -> None:
        self.gradient = gradient
        self.inputs = _Layout(inputs)
        self._random = RandomState() if gradient.draws_random_numbers else None

    def f_again(self, tensors: Sequence[Tensor]) -> Tensors:
        """Runs f again for the same call, with the same random draws."""
        with nullcontext() if self._random is None else self._random.restored():
            return self.f(tensors)

    def f(self, tensors: Sequence[Tensor]) -> Tensors:
        outputs = self.gradient.run_f(self.inputs.fill(tensors))
        self.outputs = _Layout(outputs)
        return _distinct(self.outputs.tensors(outputs), tensors)

    def temporaries(self) -> list[int]:
        """Returns the positions of f's captured outputs that are tensors."""
        tensors = set(self.outputs.places)
        return [i for i in self.gradient.captured_outputs if i in tensors]

    def df(
        self, cotangents: Sequence[Tensor], inputs: Sequence[Tensor], temporaries: Sequence[Tensor]
    ) -> Tensors:
        captures = self.gradient.captures(
            self.inputs.fill(inputs), self.outputs.fill(temporaries, self.temporaries())
        )
        gradients = self.gradient.pull_back(cotangents, captures)
        self.gradients = _Layout(gradients)
        arguments = [*cotangents, *inputs, *temporaries]
        return _distinct(self.gradients.tensors(gradients), arguments)

    def real_cotangents(self, cotangents: Sequence[Tensor | None], like: list[Any]) -> list[Tensor]:
        """Returns the cotangents of the differentiable outputs; a missing one becomes zeros."""
        by_output = dict(zip(self.outputs.places, cotangents, strict=True))
        filled = []
        for i, (shape, dtype, device) in zip(
            self.gradient.differentiable_outputs, like, strict=True
        ):
            cotangent = by_output[i]
            if cotangent is None:
                cotangent = torch.zeros(shape, dtype=dtype, device=device)
            filled.append(cotangent)
        return filled


class Forward(Function):
    """``run, *input tensors -> f's output tensors``"""

    generate_vmap_rule = True

    @staticmethod
    def forward(run: _Run, *inputs: Tensor) -> Tensors:
        return run.f(inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        run, *tensors = inputs
        by_output = dict(zip(run.outputs.places, output, strict=True))
        ctx.run = run
        ctx.like = [
            (by_output[i].shape, by_output[i].dtype, by_output[i].device)
            for i in run.gradient.differentiable_outputs
        ]
        ctx.set_materialize_grads(False)
        saved = (*tensors, *(by_output[i] for i in run.temporaries()))
        ctx.save_for_backward(*saved)
        ctx.save_for_forward(*saved)  # the same, as vmap stores one list of batch dims for both

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:
        run = ctx.run
        real = run.real_cotangents(cotangents, ctx.like)
        values = (run, *real, *ctx.saved_tensors)
        if torch.is_grad_enabled():  # the result may be differentiated
            gradients = Backward.apply(*values)  # type: ignore[no-untyped-call]
        else:
            gradients = Backward.forward(*values)
        by_input = dict(zip(run.gradient.output_vjps, run.gradients.fill(gradients), strict=True))
        return None, *(by_input.get(i) for i in run.inputs.places)

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:
        run = ctx.run
        inputs = ctx.saved_tensors[: len(run.inputs.places)]
        # Autograd asks for a tangent of every floating-point output, temporaries too.
        return tuple(
            tangent if tangent.is_floating_point() or tangent.is_complex() else None
            for tangent in _push(run.f_again, inputs, tangents)
        )


class Backward(Function):
    """``run, *cotangents, *input tensors, *temporaries -> df's output tensors``"""

    generate_vmap_rule = True

    @staticmethod
    def forward(run: _Run, *tensors: Tensor) -> Tensors:
        return run.df(*_split(run, tensors))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        run, *tensors = inputs
        cotangents, primals, _ = _split(run, tensors)
        ctx.run = run
        ctx.save_for_backward(*cotangents, *primals)
        ctx.save_for_forward(*cotangents, *primals)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
        saved = ctx.saved_tensors
        wanted = [i for i, tensor in enumerate(saved) if ctx.needs_input_grad[1 + i]]
        gradients: list[Any] = [None] * (len(ctx.needs_input_grad) - 1)
        _, pull_back = vjp(
            _of_some(_from_inputs(ctx.run), saved, wanted), *(saved[i] for i in wanted)
        )
        for i, gradient in zip(wanted, pull_back(cotangents), strict=True):
            gradients[i] = gradient
        return None, *gradients

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Tensor | None) -> tuple[Tensor, ...]:
        saved = ctx.saved_tensors
        return _push(_from_inputs(ctx.run), saved, tangents[: len(saved)])


def _split(run: _Run, tensors: Sequence[Tensor]) -> tuple[Any, Any, Any]:
    cotangents = len(run.gradient.differentiable_outputs)
    primals = cotangents + len(run.inputs.places)
    return tensors[:cotangents], tensors[cotangents:primals], tensors[primals:]


def _from_inputs(run: _Run) -> Callable[[Sequence[Tensor]], Tensors]:
    """Returns df as a function of cotangents and f's inputs alone. NOTE [Higher orders]."""
    gradient = run.gradient
    outputs = [run.outputs.places.index(i) for i in gradient.differentiable_outputs]
    returned = [gradient.output_vjps[i] for i in run.gradients.places]
    wanted = [run.inputs.places.index(i) for i in returned]

    def compute(tensors: Sequence[Tensor]) -> Tensors:
        cotangents, inputs, _ = _split(run, tensors)

        def of_wanted(*some: Tensor) -> Tensors:
            results = _of_some(run.f_again, inputs, wanted)(*some)
            return tuple(results[i] for i in outputs)

        _, pull_back = vjp(of_wanted, *(inputs[i] for i in wanted))
        return tuple(pull_back(tuple(cotangents)))

    return compute


def _of_some(
    function: Callable[[Sequence[Tensor]], Tensors], values: Sequence[Tensor], places: Sequence[int]
) -> Callable[..., Tensors]:
    """Returns the function of the values at these places, with the other values constant."""

    def of_some(*some: Tensor) -> Tensors:
        all_values = list(values)
        for i, value in zip(places, some, strict=True):
            all_values[i] = value
        return function(all_values)

    return of_some


def _without_tangent(primal: Tensor) -> Tensor:
    if not is_batched_wrapper(primal):
        return forward_ad.unpack_dual(primal).primal  # type: ignore[no-untyped-call,no-any-return]
    # vmap has no rule for unpacking.
    dim, level = functorch.maybe_get_bdim(primal), functorch.maybe_get_level(primal)
    inner = _without_tangent(functorch.get_unwrapped(primal))
    batched: Tensor = functorch._add_batch_dim(inner, dim, level)
    return batched


def _push(
    function: Callable[[Sequence[Tensor]], Tensors],
    primals: Sequence[Tensor],
    tangents: Sequence[Tensor | None],
) -> Tensors:
    """Returns the output tangents, where some inputs have none."""
    moving = [i for i, tangent in enumerate(tangents) if tangent is not None]
    # Autograd disables forward AD here, for all levels. The levels below this one need it; at this
    # level, the primals' own tangents would interfere.
    with set_forward_mode(True):
        points = [_without_tangent(primal) for primal in primals]
        _, pushed = jvp(
            _of_some(function, points, moving),
            tuple(points[i].contiguous() for i in moving),  # expanded tensors can't have tangents
            tuple(tangents[i] for i in moving),
        )
        return tuple(pushed)
