"""ctx as a Function's methods see it, where it is not torch's own.

NOTE [ctx under vmap]
setup_context, backward and jvp of a batched Function run under a vmap that is entered for each of
them, and so meet tensors batched at its level. The ctx that they are given, a OneSample, is made
for that one call. When the call is over, a record of all that is on it is kept, with the batch in
sight, on the ctx that the vmap itself was given. When the next call begins, all of that is
batched at once, at the level of the vmap entered for it: backward may read it inside transforms
of its own, whose layers are then on top. Under two vmaps the outer one's ctx is a OneSample too,
whose record holds the inner one's.
"""

from typing import Any, NamedTuple

from torch._functorch.autograd_function import WrappedCtx
from torch.autograd.function import BackwardCFunction

from torchlayers import _C
from torchlayers.autograd_function.batching import Dims, Held, batched, unbatched
from torchlayers.core.errors import FunctionError

# Names that begin so are ours, on ctx and on the classes of users.
RESERVED = "_torchlayers"

_RECORD = RESERVED + "_record"


class Record(NamedTuple):
    """What of a OneSample outlives the vmap, and what the rule of vmap keeps for itself."""

    out_dims: Dims
    input_shapes: list[Any]
    saved_dims: tuple[Any, ...]
    saved_for_forward_dims: tuple[Any, ...] | None
    fields: dict[str, Any]
    again_of: int  # the vmap's number. NOTE [Captured by a Function]


class _Inside:
    """What a OneSample has besides the user's fields."""

    saved_dims: tuple[Any, ...] = ()
    saved_for_forward_dims: tuple[Any, ...] | None = None
    saved_tensors: Any = None  # a tuple, or the error that reading them raised
    record: Record | None = None

    def __init__(self, ctx: Any, level: int, owner: str) -> None:
        self.ctx, self.level, self.owner = ctx, level, owner


class OneSample:
    """ctx for one sample. What is not about batches is the ctx's that the vmap was given.

    Its `__dict__` holds the user's fields, and nothing else.
    """

    __slots__ = ("__dict__", "__weakref__", "_torchlayers")
    _torchlayers: _Inside

    def __init__(self, ctx: Any, level: int, owner: str) -> None:
        object.__setattr__(self, "_torchlayers", _Inside(ctx, level, owner))

    def save_for_backward(self, *tensors: Any) -> None:
        inside = self._torchlayers
        values, inside.saved_dims = unbatched(tensors, inside.level)
        inside.ctx.save_for_backward(*values)

    def save_for_forward(self, *tensors: Any) -> None:
        inside = self._torchlayers
        values, inside.saved_for_forward_dims = unbatched(tensors, inside.level)
        inside.ctx.save_for_forward(*values)

    def mark_dirty(self, *tensors: Any) -> None:
        inside = self._torchlayers
        inside.ctx.mark_dirty(*unbatched(tensors, inside.level)[0])

    def mark_non_differentiable(self, *tensors: Any) -> None:
        inside = self._torchlayers
        inside.ctx.mark_non_differentiable(*unbatched(tensors, inside.level)[0])

    @property
    def saved_tensors(self) -> Any:
        inside = self._torchlayers
        if isinstance(inside.saved_tensors, Exception):
            raise inside.saved_tensors
        return inside.ctx.saved_tensors if inside.record is None else inside.saved_tensors

    def __getattr__(self, name: str) -> Any:
        return getattr(self._torchlayers.ctx, name)

    def __setattr__(self, name: str, value: Any) -> None:
        check_name(name, self._torchlayers.owner)
        if hasattr(getattr(BackwardCFunction, name, None), "__set__"):
            setattr(self._torchlayers.ctx, name, value)  # one of torch's own (materialize_grads)
        else:
            vars(self)[name] = value


def record_of(ctx: Any) -> Record:
    """What was kept on the ctx that a vmap was given."""
    record: Record = getattr(ctx, _RECORD)
    return record


def opened(ctx: Any, level: int, owner: str) -> OneSample:
    """The ctx of one sample, with all that was kept on this ctx. The vmap is on top."""
    one_sample = OneSample(ctx, level, owner)
    inside, record = one_sample._torchlayers, record_of(ctx)
    inside.record = record
    dims = record.saved_dims
    if record.saved_for_forward_dims is not None and ctx.saved_for_forward is not None:
        dims = record.saved_for_forward_dims
    try:
        saved = ctx.saved_tensors  # none yet in a jvp, but for save_for_forward
        inside.saved_tensors = tuple(batched(saved, dims)) if saved else ()
    except RuntimeError as error:  # freed, or written to: no matter where nobody reads them
        inside.saved_tensors = error
    for name, value in record.fields.items():
        vars(one_sample)[name] = value.shown() if isinstance(value, Held) else value
    return one_sample


def keep(one_sample: OneSample, out_dims: Dims, input_shapes: list[Any]) -> None:
    """Keeps what setup_context has put on it. The vmap is on top."""
    inside = one_sample._torchlayers
    saved, saved_for_forward = inside.saved_dims, inside.saved_for_forward_dims
    fields = _fields(one_sample)
    again_of = _C.again_of(inside.level)
    record = Record(out_dims, input_shapes, saved, saved_for_forward, fields, again_of)
    put(inside.ctx, _RECORD, record)


def close(one_sample: OneSample) -> None:
    """Keeps what backward or jvp has made of its fields. The vmap is on top."""
    inside = one_sample._torchlayers
    assert inside.record is not None
    if vars(one_sample) or inside.record.fields:
        put(inside.ctx, _RECORD, inside.record._replace(fields=_fields(one_sample)))


def _fields(one_sample: OneSample) -> dict[str, Any]:
    level = one_sample._torchlayers.level
    return {name: Held.of(value, level) for name, value in vars(one_sample).items()}


def put(ctx: Any, name: str, value: Any) -> None:
    """Sets a field of ours, on what is behind ctxs that pass on what they are given."""
    while isinstance(ctx, (WithoutDirty, WrappedCtx)):
        ctx = ctx._torchlayers_ctx if isinstance(ctx, WithoutDirty) else ctx._pt_inner_ctx
    vars(ctx)[name] = value


class _AroundContext:
    """ctx, of which a class of this one changes a part."""

    __slots__ = ("_torchlayers_ctx",)

    def __init__(self, ctx: Any) -> None:
        object.__setattr__(self, "_torchlayers_ctx", ctx)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._torchlayers_ctx, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._torchlayers_ctx, name, value)


class WithoutDirty(_AroundContext):
    """ctx for a Function that returns what it has written instead of writing it."""

    __slots__ = ()

    def mark_dirty(self, *tensors: Any) -> None:
        pass


class WithoutLast(_AroundContext):
    """ctx for a Function that knows nothing of its last operand."""

    __slots__ = ()

    @property
    def needs_input_grad(self) -> tuple[bool, ...]:
        return tuple(self._torchlayers_ctx.needs_input_grad[:-1])


def check_name(name: str, owner: str) -> None:
    """Raises FunctionError where a user's field has a name of ours."""
    if name.startswith(RESERVED):
        raise FunctionError(
            f"torchlayers: {owner} sets ctx.{name}, and names that begin with {RESERVED} are "
            "torchlayers' own. Give the field another name."
        )
