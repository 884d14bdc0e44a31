"""ctx as one sample sees it, where a Function is made batched.

setup_context, backward and jvp run under a vmap, and so meet tensors batched at its level. The
real ctx outlives that vmap. So what they keep on ctx is kept with the batch in sight, and is
hidden again when they ask for it.
"""

from typing import Any, NamedTuple

from torchlayers.autograd_function.batching import Dims, batched, unbatched

_KEPT = "_torchlayers_kept"


class Kept(NamedTuple):
    """What the rule itself keeps on ctx."""

    out_dims: Dims
    input_shapes: list[Any]
    saved_dims: tuple[Any, ...]
    saved_for_forward_dims: tuple[Any, ...] | None


class Held(NamedTuple):
    """An attribute of ctx that holds batched tensors."""

    value: Any
    dims: Any


class OneSample:
    """ctx in backward and jvp. What is not about batches is the real ctx's."""

    def __init__(self, ctx: Any, level: int) -> None:
        vars(self).update(_ctx=ctx, _level=level)

    @staticmethod
    def kept_by(ctx: Any) -> Kept:
        kept: Kept = getattr(ctx, _KEPT)
        return kept

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        kept = self.kept_by(self._ctx)
        dims = kept.saved_for_forward_dims
        if dims is None or self._ctx.saved_for_forward is None:
            dims = kept.saved_dims
        return tuple(batched(self._ctx.saved_tensors, dims))

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._ctx, name)
        return batched([value.value], [value.dims])[0] if isinstance(value, Held) else value

    def __setattr__(self, name: str, value: Any) -> None:
        (kept,), (dims,) = unbatched([value], self._level)
        setattr(self._ctx, name, value if dims is None else Held(kept, dims))


class OneSampleSaving(OneSample):
    """ctx in setup_context."""

    def __init__(self, ctx: Any, level: int) -> None:
        super().__init__(ctx, level)
        vars(self).update(_saved_dims=(), _saved_for_forward_dims=None)

    def save_for_backward(self, *tensors: Any) -> None:
        values, vars(self)["_saved_dims"] = unbatched(tensors, self._level)
        self._ctx.save_for_backward(*values)

    def save_for_forward(self, *tensors: Any) -> None:
        values, vars(self)["_saved_for_forward_dims"] = unbatched(tensors, self._level)
        self._ctx.save_for_forward(*values)

    def mark_dirty(self, *tensors: Any) -> None:
        self._ctx.mark_dirty(*unbatched(tensors, self._level)[0])

    def mark_non_differentiable(self, *tensors: Any) -> None:
        self._ctx.mark_non_differentiable(*unbatched(tensors, self._level)[0])

    def keep(self, out_dims: Dims, input_shapes: list[Any]) -> None:
        kept = Kept(out_dims, input_shapes, self._saved_dims, self._saved_for_forward_dims)
        setattr(self._ctx, _KEPT, kept)
