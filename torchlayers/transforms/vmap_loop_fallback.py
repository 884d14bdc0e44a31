"""vmap's fallback: a loop over samples, for functions that need the data of a single sample."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchlayers.core import pytree
from torchlayers.core.device import RandomState
from torchlayers.core.errors import (
    DimensionError,
    NotTensorError,
    StructureError,
    TransformError,
    location,
    location_of,
    warn,
)
from torchlayers.core.torch_private import functorch, stack_depth
from torchlayers.transforms.vmap_dims import VmapSpec

# Parts of vmap's errors for a function that only runs on one sample, and what the function does.
_FALLBACK_REASONS = {
    "you're calling .item() on a Tensor": "asks for the value of a batched tensor",
    "samples to one Python bool": "asks for the value of a batched tensor",
    "access to memory: inside it": "asks for the memory of a batched tensor",
    "can't tell the memory format of a single sample": "asks for the memory of a batched tensor",
    "has no `data` of its own": "asks for the memory of a batched tensor",
    "samples would differ in size": "has a size that depends on data",
    "provide an explicit positive num_classes": "has a size that depends on data",
    "Batching rule not implemented for": "calls an operator that can't run on a batch",
}


def check_fallback(
    fallback: str | None, out_dims: Any, axis_name: str | None, *, is_spread: bool
) -> None:
    if fallback not in (None, "loop"):
        raise TransformError(
            f"torchlayers: vmap: fallback must be None or 'loop', got {fallback!r}."
        )
    if fallback is None and out_dims == "ragged":
        raise TransformError(
            "torchlayers: vmap: out_dims='ragged' is for results of different sizes, which require "
            "a loop over samples. Pass fallback='loop' too."
        )
    if fallback is not None and axis_name is not None:
        raise TransformError(
            f"torchlayers: vmap: the samples of axis_name={axis_name!r} have to run at once, and "
            "fallback='loop' runs one at a time. Leave one of them out."
        )
    if is_spread:
        raise TransformError(
            "torchlayers: vmap: with a mesh, fallback='loop' could run on one rank and not on "
            "another. Leave one of them out."
        )


def with_loop_fallback(
    batched: Callable[..., Any], vmap_spec: VmapSpec, ragged: bool
) -> Callable[..., Any]:
    """Returns a function that calls `batched`, and loops over samples if that can't be batched.

    Args:
        batched: the vmapped function.
        given: the function, and how to batch it.
        ragged: return results as jagged nested tensors.
    """

    def either(*args: Any, **kwargs: Any) -> Any:
        random = RandomState()
        try:
            results = batched(*args, **kwargs)
        except RuntimeError as error:
            if (reason := _reason(error)) is None:
                raise
            random.restore()
            warn(
                f"torchlayers: vmap({pytree.name_of(vmap_spec.func)}) runs one sample at a time, "
                f"because it {reason}.{location_of(error)}",
            )
        else:
            if not ragged:
                return results
            return pytree.map_tensors(
                lambda x: x if x.dim() < 2 else _make_jagged(vmap_spec, x.unbind()), results
            )
        return _loop(vmap_spec, args, kwargs, ragged)

    return either


def _reason(error: BaseException) -> str | None:
    """Returns why the function can't be batched; None if the error is of another kind.

    Only errors of this vmap, the next level to be entered, or of layers inside it count.
    """
    text = str(error)
    if "torchlayers: " not in text and error.__cause__ is not None:
        return _reason(error.__cause__)  # torch.testing raises its own error from ours
    layer = re.search(r"torchlayers: \w+ \(level (\d+)\)", text)
    if layer is None or int(layer[1]) <= stack_depth():
        return None
    return next((reason for asks, reason in _FALLBACK_REASONS.items() if asks in text), None)


def _loop(vmap_spec: VmapSpec, args: tuple[Any, ...], kwargs: dict[str, Any], ragged: bool) -> Any:
    leaves, spec, dims, batch_size = vmap_spec.flat_arguments(args)
    columns = [
        [leaf] * batch_size if dim is None else leaf.unbind(dim)
        for leaf, dim in zip(leaves, dims, strict=True)
    ]
    random = RandomState() if vmap_spec.randomness == "same" else None
    vmap_spec = vmap_spec.with_key()
    rows: list[list[Any]] = []
    out_spec: pytree.TreeSpec | None = None
    for place, sample in enumerate(zip(*columns, strict=True)):
        if random is not None:
            random.restore()
        results, its_spec = pytree.flatten(
            vmap_spec.of_sample(place)(*pytree.unflatten(sample, spec), **kwargs)
        )
        if out_spec is not None and its_spec != out_spec:
            raise StructureError(
                f"torchlayers: vmap({pytree.name_of(vmap_spec.func)}): all samples must return the "
                f"same structure, but they returned {pytree.describe(out_spec)} and "
                f"{pytree.describe(its_spec)} (* is a leaf)."
            )
        out_spec = its_spec
        rows.append(results)
    if out_spec is None:
        raise DimensionError(
            f"torchlayers: vmap({pytree.name_of(vmap_spec.func)}): can't loop over an empty batch."
        )
    out_dims = (
        [0] * out_spec.num_leaves if ragged else pytree.broadcast(vmap_spec.out_dims, out_spec)
    )
    if out_dims is None:
        vmap_spec.flat_results(pytree.unflatten(rows[0], out_spec), 0)  # raises the error
    assert out_dims is not None
    joined = [
        _join_column(vmap_spec, list(column), dim, ragged)
        for column, dim in zip(zip(*rows, strict=True), out_dims, strict=True)
    ]
    return pytree.unflatten(joined, out_spec)


def _join_column(vmap_spec: VmapSpec, column: list[Any], dim: int | None, ragged: bool) -> Any:
    """Joins the values of one result over all samples."""
    if dim is None:  # the result does not depend on the sample
        return column[0]
    if all(isinstance(leaf, (bool, int, float, complex)) for leaf in column):
        return torch.tensor(column)
    for leaf in column:
        if not isinstance(leaf, Tensor):
            raise NotTensorError(
                f"torchlayers: vmap({pytree.name_of(vmap_spec.func)}): the function must return "
                f"only tensors and numbers, got {type(leaf).__name__}."
            )
    if ragged and column[0].dim():
        return _make_jagged(vmap_spec, column)
    for leaf in column:
        if leaf.shape != column[0].shape:
            raise DimensionError(
                f"torchlayers: vmap({pytree.name_of(vmap_spec.func)}): samples have results of "
                f"different sizes, {tuple(column[0].shape)} and {tuple(leaf.shape)}. With "
                "out_dims='ragged' they come back as a jagged nested tensor."
            )
    return torch.stack(column, dim)


def _make_jagged(vmap_spec: VmapSpec, results: Sequence[Tensor]) -> Tensor:
    """Returns the samples' results as a jagged nested tensor, even if their sizes are equal."""
    if any(functorch.maybe_get_level(result) > 0 for result in results):
        raise TransformError(
            f"torchlayers: vmap({pytree.name_of(vmap_spec.func)}): out_dims='ragged' was used "
            f"inside a transform, which torch's nested tensors do not support.{location()} Give "
            "all results the same size (pad them), or differentiate with plain autograd, which "
            "nested tensors support."
        )
    return torch.nested.as_nested_tensor(list(results), layout=torch.jagged)
