"""torch's private vmap, which ``torch.autograd`` has for batches of cotangents and tangents.

``torch.autograd.grad(is_grads_batched=True)`` and ``torch.autograd.functional`` with
``vectorize=True`` call it. It counts its own levels, so that inside a transform that differentiates
it unwraps another layer's tensors. There our vmap runs in its place.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from torchlayers import _C
from torchlayers.core import tracing_state
from torchlayers.core.errors import TransformError, location
from torchlayers.transforms.vmap import vmap


def legacy_vmap_of(torchs: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces torch._vmap_internals._vmap."""

    @tracing_state.uncompiled
    def legacy_vmap(
        func: Callable[..., Any],
        in_dims: Any = 0,
        out_dims: Any = 0,
        allow_none_pass_through: bool = False,
    ) -> Callable[..., Any]:
        legacy = torchs(func, in_dims, out_dims, allow_none_pass_through)

        @tracing_state.uncompiled
        def wrapper(*args: Any) -> Any:
            if tracing_state.is_tracing() or not any(map(_differentiates, _C.current_stack())):
                return legacy(*args)
            top = _C.top()
            if top is not None and not _differentiates(top):
                raise TransformError(
                    "torchlayers: vectorize=True of torch.autograd.functional, and "
                    f"is_grads_batched=True, don't work in {top[0]} inside a transform that "
                    "differentiates. Leave them out, or use torchlayers.jacrev, jacfwd or "
                    f"hessian.{location()}"
                )
            return _with_missing(func, in_dims, out_dims, args)

        return wrapper

    return legacy_vmap


def _differentiates(layer: Any) -> bool:
    return layer is not None and layer[0] in ("grad", "jvp")


def _with_missing(func: Callable[..., Any], in_dims: Any, out_dims: Any, args: Any) -> Any:
    """Calls our vmap of a function some of whose results are None: unused inputs' gradients."""
    is_missing: list[bool] = []

    def without_missing(*samples: Any) -> Any:
        results = func(*samples)
        if isinstance(results, Tensor):
            return results
        is_missing[:] = [result is None for result in results]
        return tuple(result for result in results if result is not None)

    batched = vmap(without_missing, in_dims, out_dims)(*args)
    if isinstance(batched, Tensor):
        return batched
    remaining = iter(batched)
    return tuple(None if missing else next(remaining) for missing in is_missing)
