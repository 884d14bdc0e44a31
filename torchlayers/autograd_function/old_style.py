"""Old-style Functions: those whose forward takes ctx and that have no setup_context.

Most third-party Functions are old-style, and torch.func raises an error for them. Here each is
converted to a Function with a setup_context, which the layers' rules can apply.

NOTE [What an old-style forward keeps]
The forward runs once, at the bottom of the stack, with a ctx that records what is done to it. At
each layer, setup_context replays these notes on that layer's ctx. A tensor that the forward saved
is an input, an output or an intermediate. Intermediates become additional outputs without
gradients, so that every layer gets them: to autograd they are constants, as outside transforms.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchlayers import _C
from torchlayers.autograd_function import generated_classes, methods, vmap_rule
from torchlayers.autograd_function.batching import (
    add_batch_dims,
    remove_batch_dims,
    select_sample,
    stack_samples,
)
from torchlayers.autograd_function.context import RESERVED, OwnField, check_name, set_own_field
from torchlayers.autograd_function.custom_function_call import Function, custom_function_call
from torchlayers.core import pytree

_RECORD = RESERVED + "_notes"


def apply(function: Function, operands: tuple[Any, ...]) -> Any:
    """Applies the Function on the current layer stack."""
    top = _C.top()
    if top is not None and top[0] == "vmap" and methods.has_vmap(function):
        tensors = [leaf for leaf in pytree.leaves(operands) if isinstance(leaf, Tensor)]
        if any(_C.is_batched(tensor, top[1]) for tensor in tensors):
            return custom_function_call.on_top(function, *operands)  # vmap takes no ctx
    generated = generated_classes.generate_cached(function, "new style", _generate)
    *outputs, notes = custom_function_call.on_top(generated, *operands)
    results = tuple(outputs[: notes.outputs])
    return results[0] if notes.is_single else results


@dataclasses.dataclass(frozen=True)
class _TensorPosition:
    """The position of a saved tensor, among the inputs or the outputs."""

    among: str
    index: int


@dataclasses.dataclass(frozen=True)
class _FlatValue:
    """A pytree whose tensors are replaced by places. Flat, as a user's class may accept nothing but
    tensors."""

    leaves: list[Any]
    spec: pytree.TreeSpec


@dataclasses.dataclass(frozen=True)
class _ForwardRecord:
    """What a forward did with ctx, returned as an additional, non-tensor output."""

    outputs: int
    is_single: bool
    materialize_grads: bool
    calls: dict[str, _FlatValue]  # the arguments of save_for_backward, ..., by name
    attributes: dict[str, _FlatValue]


class _RecorderState:
    """Internal state of a _RecordingContext, apart from the user's fields."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.calls: dict[str, tuple[Any, ...]] = {}
        self.materialize_grads = True


class _RecordingContext:
    """ctx that records an old-style forward's use of it. `__dict__` holds the user's fields."""

    __slots__ = ("__dict__", "__weakref__", "_torchlayers", "needs_input_grad")
    _torchlayers: _RecorderState

    def __init__(self, operands: tuple[Any, ...], owner: str) -> None:
        object.__setattr__(self, "_torchlayers", _RecorderState(owner))
        # Which layers need which gradients is not known here; saving too much does no harm.
        self.needs_input_grad = tuple(
            isinstance(operand, Tensor) and (operand.is_floating_point() or operand.is_complex())
            for operand in operands
        )

    def save_for_backward(self, *tensors: Any) -> None:
        self._torchlayers.calls["save_for_backward"] = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        self._torchlayers.calls["save_for_forward"] = tensors

    def mark_dirty(self, *tensors: Any) -> None:
        self._torchlayers.calls["mark_dirty"] = tensors

    def mark_non_differentiable(self, *tensors: Any) -> None:
        self._torchlayers.calls["mark_non_differentiable"] = tensors

    def set_materialize_grads(self, value: bool) -> None:
        self._torchlayers.materialize_grads = value

    def __setattr__(self, name: str, value: Any) -> None:
        check_name(name, self._torchlayers.owner)
        object.__setattr__(self, name, value)


def _record_forward(
    ctx: _RecordingContext, operands: tuple[Any, ...], result: Any
) -> tuple[Any, ...]:
    """Returns the outputs, the saved intermediates, and the notes."""
    taken = ctx._torchlayers
    is_single = not isinstance(result, tuple)
    outputs = list(pytree.as_tuple(result))
    count = len(outputs)
    dirty = [id(tensor) for tensor in taken.calls.get("mark_dirty", ())]
    for i, output in enumerate(outputs):
        # torch makes an output that is an input a view too, but only after setup_context.
        if any(output is operand for operand in operands) and id(output) not in dirty:
            outputs[i] = output.view_as(output) if isinstance(output, Tensor) else output
    places = {
        id(value): _TensorPosition(among, i)
        for among, values in (("outputs", outputs), ("inputs", operands))
        for i, value in enumerate(values)
        if isinstance(value, Tensor)
    }

    def place(tensor: Tensor) -> Any:
        if id(tensor) not in places:
            places[id(tensor)] = _TensorPosition("outputs", len(outputs))
            outputs.append(tensor)
        return places[id(tensor)]

    def in_places(value: Any) -> _FlatValue:
        leaves, spec = pytree.flatten(value)
        return _FlatValue([place(v) if isinstance(v, Tensor) else v for v in leaves], spec)

    calls = {name: in_places(args) for name, args in taken.calls.items()}
    attributes = {name: in_places(value) for name, value in vars(ctx).items()}
    notes = _ForwardRecord(count, is_single, taken.materialize_grads, calls, attributes)
    return (*outputs, notes)


def _replay_record(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> None:
    """The generated setup_context: replays the notes on a layer's ctx."""
    *results, notes = outputs
    values = {"inputs": inputs, "outputs": results}

    def value_of(noted: _FlatValue) -> Any:
        leaves = [
            values[leaf.among][leaf.index] if isinstance(leaf, _TensorPosition) else leaf
            for leaf in noted.leaves
        ]
        return pytree.unflatten(leaves, noted.spec)

    calls = {name: value_of(args) for name, args in notes.calls.items()}
    in_between = [leaf for leaf in results[notes.outputs :] if isinstance(leaf, Tensor)]
    calls["mark_non_differentiable"] = (*calls.get("mark_non_differentiable", ()), *in_between)
    for name, args in calls.items():
        getattr(ctx, name)(*args)
    for name, value in notes.attributes.items():
        setattr(ctx, name, value_of(value))
    ctx.set_materialize_grads(
        False
    )  # no zeros for intermediates; _SavedContext.materialize does the rest
    saved = _SavedContext(
        notes, len(outputs), _shapes(inputs), _shapes(tuple(results[: notes.outputs]))
    )
    set_own_field(ctx, _RECORD, saved)


@dataclasses.dataclass(frozen=True)
class _SavedContext(OwnField):
    """Internal data saved on a layer's ctx for backward and jvp."""

    notes: _ForwardRecord
    all_outputs: int
    inputs: list[Any]
    outputs: list[Any]

    def materialize(self, values: Sequence[Any], shapes: list[Any]) -> list[Any]:
        """Returns the gradients or tangents, None replaced by zeros if materialize_grads is set."""
        return [
            torch.zeros(shape[0], dtype=shape[1], device=shape[2])
            if value is None and shape is not None and self.notes.materialize_grads
            else value
            for value, shape in zip(values, shapes, strict=True)
        ]


def _shapes(values: tuple[Any, ...]) -> list[Any]:
    return [
        (value.shape, value.dtype, value.device)
        if isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())
        else None
        for value in values
    ]


def _generate(function: Function) -> Function:
    backward_of_old, jvp_of_old = methods.backward_of(function), methods.jvp_of(function)

    def forward(*operands: Any) -> Any:
        ctx = _RecordingContext(operands, generated_classes.name_of(function))
        return _record_forward(ctx, operands, function.forward(ctx, *operands))

    def backward(ctx: Any, *grads: Any) -> Any:
        saved: _SavedContext = getattr(ctx, _RECORD)
        is_boxed = methods.is_boxed(function)
        output_grads = (grads[0] if is_boxed else grads)[: saved.notes.outputs]
        output_grads = saved.materialize(output_grads, saved.outputs)
        return backward_of_old(ctx, *((output_grads,) if is_boxed else output_grads))

    def jvp(ctx: Any, *tangents: Any) -> Any:
        saved: _SavedContext = getattr(ctx, _RECORD)
        results = jvp_of_old(ctx, *saved.materialize(tangents, saved.inputs))
        return (*pytree.as_tuple(results), *(None,) * (saved.all_outputs - saved.notes.outputs))

    def vmap(info: vmap_rule.VmapInfo, in_dims: tuple[Any, ...], *operands: Any) -> Any:
        """Takes the outputs from the Function's vmap, and runs forward batched for the values that
        ctx saves."""
        outputs, out_dims = vmap_rule.run_vmap(function, info, in_dims, operands)
        try:
            with _C.vmap_entry(*info) as level:
                saved, dims = remove_batch_dims(forward(*add_batch_dims(operands, in_dims)), level)
        except RuntimeError as error:
            if not methods.reads_memory(error):
                raise
            saved, dims = stack_samples(
                [
                    custom_function_call.on_top(new_style, *select_sample(operands, in_dims, i))
                    for i in range(info.batch_size)
                ]
            )
        count = saved[-1].outputs
        return (*pytree.as_tuple(outputs), *saved[count:]), (*out_dims, *dims[count:])

    new_style: Function = generated_classes.function_class(
        torch.autograd.Function,
        function.__name__,
        function,
        forward=forward,
        setup_context=_replay_record,
        backward=backward,
        jvp=jvp,
        vmap=vmap if methods.has_vmap(function) else None,
    )
    return new_style
