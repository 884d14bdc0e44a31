"""The ctx objects passed to a Function's methods in place of torch's own.

NOTE [ctx under vmap]
setup_context, backward and jvp of a batched Function each run under a vmap entered for that call,
and so see tensors batched at its level. The ctx passed to them, a SampleContext, exists for that
one call. When the call ends, everything on it is saved as a SavedSampleState, with batch dimensions
exposed, on the ctx passed to the vmap rule. When the next call begins, all of it is batched again
at once, at the level of the vmap entered for that call, rather than when it is read: backward may
read it inside transforms that it calls, when their layers are on top. Under two vmaps the outer
one's ctx is a SampleContext too, whose SavedSampleState contains the inner one's.
"""

import abc
from typing import Any, NamedTuple

from torch import Tensor
from torch.autograd.function import BackwardCFunction

from torchlayers import _C
from torchlayers.autograd_function.batching import (
    Dims,
    SavedValue,
    add_batch_dims,
    remove_batch_dims,
)
from torchlayers.core.errors import FunctionError
from torchlayers.core.torch_private import is_wrapped

# Prefix of torchlayers' attributes on ctx and on users' classes.
RESERVED = "_torchlayers"

_RECORD = RESERVED + "_record"


class OwnField(abc.ABC):  # noqa: B024
    """Base of the values that set_own_field saves on a ctx. Its type distinguishes one from a
    user's field, also where torch.func's vmap calls our setup_context for a class of its own.
    Named tuples can only be registered as subclasses."""


@OwnField.register
class SavedSampleState(NamedTuple):
    """The state of a SampleContext that is saved beyond the vmap, and data that the vmap rule
    saves. A pytree, as one that an outer vmap saves holds batched tensors."""

    out_dims: Dims
    input_shapes: list[Any]
    saved_dims: tuple[Any, ...]
    saved_for_forward_dims: tuple[Any, ...] | None
    fields: dict[str, Any]
    again_of: int  # the number of the user's vmap. NOTE [Captured by a Function]


class _SampleState:
    """Internal state of a SampleContext, apart from the user's fields."""

    saved_dims: tuple[Any, ...] = ()
    saved_for_forward_dims: tuple[Any, ...] | None = None
    saved_tensors: Any = None  # a tuple, or the error that reading them raised
    record: SavedSampleState | None = None

    def __init__(self, ctx: Any, level: int, owner: str) -> None:
        self.ctx, self.level, self.owner = ctx, level, owner


class SampleContext:
    """ctx for one sample. Attributes unrelated to batching are forwarded to the ctx that was
    passed to the vmap rule.

    `__dict__` holds the user's fields only.
    """

    __slots__ = ("__dict__", "__weakref__", "_torchlayers")
    _torchlayers: _SampleState

    def __init__(self, ctx: Any, level: int, owner: str) -> None:
        object.__setattr__(self, "_torchlayers", _SampleState(ctx, level, owner))

    def save_for_backward(self, *tensors: Any) -> None:
        inside = self._torchlayers
        values, inside.saved_dims = remove_batch_dims(tensors, inside.level)
        inside.ctx.save_for_backward(*values)

    def save_for_forward(self, *tensors: Any) -> None:
        inside = self._torchlayers
        values, inside.saved_for_forward_dims = remove_batch_dims(tensors, inside.level)
        inside.ctx.save_for_forward(*values)

    def mark_dirty(self, *tensors: Any) -> None:
        inside = self._torchlayers
        inside.ctx.mark_dirty(*remove_batch_dims(tensors, inside.level)[0])

    def mark_non_differentiable(self, *tensors: Any) -> None:
        inside = self._torchlayers
        inside.ctx.mark_non_differentiable(*remove_batch_dims(tensors, inside.level)[0])

    @property
    def saved_tensors(self) -> Any:
        inside = self._torchlayers
        if isinstance(inside.saved_tensors, Exception):
            raise inside.saved_tensors
        return inside.ctx.saved_tensors if inside.record is None else inside.saved_tensors

    def __getattr__(self, name: str) -> Any:
        return forwarded(self._torchlayers.ctx, name)

    def __setattr__(self, name: str, value: Any) -> None:
        check_name(name, self._torchlayers.owner)
        if hasattr(getattr(BackwardCFunction, name, None), "__set__"):
            setattr(self._torchlayers.ctx, name, value)  # a field of torch's (materialize_grads)
        else:
            vars(self)[name] = value


def saved_state_of(ctx: Any) -> SavedSampleState:
    """Returns the SavedSampleState saved on the ctx that was passed to a vmap rule."""
    record: SavedSampleState = getattr(ctx, _RECORD)
    return record


def open_sample_context(ctx: Any, level: int, owner: str) -> SampleContext:
    """Returns a SampleContext restored from the SavedSampleState on ctx. The vmap is the top
    layer."""
    one_sample = SampleContext(ctx, level, owner)
    inside, record = one_sample._torchlayers, saved_state_of(ctx)
    inside.record = record
    dims = record.saved_dims
    if record.saved_for_forward_dims is not None and ctx.saved_for_forward is not None:
        dims = record.saved_for_forward_dims
    try:
        saved = ctx.saved_tensors  # in a jvp, those of save_for_forward alone
        inside.saved_tensors = tuple(add_batch_dims(saved, dims)) if saved else ()
    except RuntimeError as error:  # freed or modified in place: raised only if they are read
        inside.saved_tensors = error
    for name, value in record.fields.items():
        vars(one_sample)[name] = value.shown() if isinstance(value, SavedValue) else value
    return one_sample


def save_setup_context(one_sample: SampleContext, out_dims: Dims, input_shapes: list[Any]) -> None:
    """Saves what setup_context has stored on the SampleContext. The vmap is the top layer."""
    inside = one_sample._torchlayers
    saved, saved_for_forward = inside.saved_dims, inside.saved_for_forward_dims
    fields = _fields(one_sample)
    again_of = _C.again_of(inside.level)
    record = SavedSampleState(out_dims, input_shapes, saved, saved_for_forward, fields, again_of)
    set_own_field(inside.ctx, _RECORD, record)


def close_sample_context(one_sample: SampleContext) -> None:
    """Saves the SampleContext's fields as backward or jvp has left them. The vmap is the top
    layer."""
    inside = one_sample._torchlayers
    assert inside.record is not None
    if vars(one_sample) or inside.record.fields:
        set_own_field(inside.ctx, _RECORD, inside.record._replace(fields=_fields(one_sample)))


def _fields(one_sample: SampleContext) -> dict[str, Any]:
    level = one_sample._torchlayers.level
    return {name: SavedValue.wrap(value, level) for name, value in vars(one_sample).items()}


def set_own_field(ctx: Any, name: str, value: Any) -> None:
    """Sets an internal field on the innermost ctx, inside the wrappers that forward to it."""
    while True:
        if isinstance(ctx, (UnmarkedDirtyContext, ConstantsContext)):
            ctx = ctx._torchlayers_ctx
        elif _is_wrapped(ctx):
            ctx = ctx._pt_inner_ctx
        else:
            break
    vars(ctx)[name] = value


def _is_wrapped(ctx: Any) -> bool:
    """Whether a ctx is one of torch.func's, which forwards to another."""
    return hasattr(type(ctx), "_pt_reserved_attrs")


def forwarded(ctx: Any, name: str) -> Any:
    """Returns an attribute of the ctx under one of ours.

    Raises:
        AttributeError: it belongs to the wrapper of a ctx by which torch.func's vmap passes its
            own state to one call. Around ours the next such vmap wraps again, and requires it to
            be unset.
    """
    if _is_wrapped(ctx) and name in type(ctx)._pt_reserved_attrs:
        raise AttributeError(name)
    return getattr(ctx, name)


class _ContextProxy:
    """Base of the ctx wrappers: forwards every attribute that a subclass does not override."""

    __slots__ = ("_torchlayers_ctx",)

    def __init__(self, ctx: Any) -> None:
        object.__setattr__(self, "_torchlayers_ctx", ctx)

    def __getattr__(self, name: str) -> Any:
        return forwarded(self._torchlayers_ctx, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._torchlayers_ctx, name, value)


class UnmarkedDirtyContext(_ContextProxy):
    """ctx for a Function that returns new tensors instead of writing to its inputs: mark_dirty does
    nothing."""

    __slots__ = ()

    def mark_dirty(self, *tensors: Any) -> None:
        pass


class HiddenLastInputContext(_ContextProxy):
    """ctx for a Function that is unaware of an additional last operand."""

    __slots__ = ()

    @property
    def needs_input_grad(self) -> tuple[bool, ...]:
        return tuple(self._torchlayers_ctx.needs_input_grad[:-1])


class _Mark(OwnField):
    """The value of a field that is only there or not."""


HAS_CONSTANTS, MARK = RESERVED + "_has_constants", _Mark()


def is_constant_here(operand: Any) -> bool:
    """Whether an operand requires grad below its layer only, such as a module's parameter in a
    gradient with respect to the module's input."""
    return (
        isinstance(operand, Tensor)
        and not operand.requires_grad
        and is_wrapped(operand)
        and _C.value_in_wrapper(operand).requires_grad
    )


class ConstantsContext(_ContextProxy):
    """ctx for a backward that differentiates with respect to what it has saved, as ODE solvers do.

    A tensor that is a constant of the layer is saved as it is below: it requires grad there, and
    torch.autograd.grad with allow_unused has no gradient for it. On the layer's level it does not
    require grad, which torch.autograd.grad refuses.
    """

    __slots__ = ()

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        return tuple(
            _C.value_in_wrapper(tensor) if is_constant_here(tensor) else tensor
            for tensor in self._torchlayers_ctx.saved_tensors
        )


def check_fields(ctx: Any, owner: str) -> None:
    """Raises FunctionError if a user's setup_context has set a reserved name on torch's ctx. Our
    own ctx classes check each name when it is set."""
    for name, value in vars(ctx).items():
        if not isinstance(value, OwnField):
            check_name(name, owner)


def check_name(name: str, owner: str) -> None:
    """Raises FunctionError if a user's field has a name reserved for torchlayers."""
    if name.startswith(RESERVED):
        raise FunctionError(
            f"torchlayers: {owner} sets ctx.{name}, but names that begin with {RESERVED} are "
            "reserved for torchlayers. Rename the field."
        )
