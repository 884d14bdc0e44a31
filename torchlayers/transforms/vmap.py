"""Batching: vmap.

A vmap layer is entered, and the chosen dimension of every batched argument is hidden
at the layer's level; the function runs as if on one sample; then the hidden
dimension of its results is moved to out_dims. The implementation is in
csrc/python/calls/call_vmap.cpp.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NoReturn, cast

from torch import Tensor

from torchlayers import _C
from torchlayers.core import pytree, torch_func, tracing_state
from torchlayers.core.annotations import P, R, Randomness
from torchlayers.core.errors import TransformError
from torchlayers.core.jax_names import refuse_keywords, without_others
from torchlayers.core.layer_stack import transformed
from torchlayers.distributed.axes import naming_samples
from torchlayers.distributed.mesh import Check, MeshExecution, Out, sequence_number
from torchlayers.random.arguments import check_key
from torchlayers.transforms import chunking, patched_torch_func, vmap_loop_fallback
from torchlayers.transforms.batching_options import BatchingOptions
from torchlayers.transforms.chunking import ChunkSize
from torchlayers.transforms.vmap_chunked import run_in_chunks
from torchlayers.transforms.vmap_dims import (
    FlatArguments,
    InDims,
    OutDims,
    VmapSpec,
    check_randomness,
    resolve_out_dims,
)

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_AS_TORCH = ("error", "different", "same")


@without_others
def vmap(
    func: Callable[P, R],
    in_dims: int | tuple[InDims, ...] = 0,
    out_dims: OutDims = 0,
    randomness: Randomness = "error",
    *,
    chunk_size: ChunkSize = None,
    memory_budget: int | None = None,
    progress: bool = False,
    axis_name: str | None = None,
    mesh: "DeviceMesh | None" = None,
    out: Out = "dtensor",
    check: Check = "first",
    fallback: Literal["loop"] | None = None,
    key: Tensor | None = None,
    **others: NoReturn,
) -> Callable[P, R]:
    """Vectorized map: runs a function written for one sample on a whole batch.

    Args:
        func: takes tensors and pytrees of tensors; returns tensors, or a pytree of them.
        in_dims: the batch dimension of each positional argument: an int for all, or a tuple
            with one entry per argument, each an int, None (the argument is not batched), or a
            pytree of these. Negative ints count from the end. Keyword arguments are not
            batched.
        out_dims: where the batch dimension goes in each result: an int for all, or a pytree
            prefix of the results. A result whose entry is None must not depend on the batch,
            and is returned unchanged.
        randomness: how random operators behave: "error", "same" for every sample, "different",
            or "keyed": each sample draws with its own key (:mod:`torchlayers.random`), derived
            from the call's key and the sample's index in the batch, so that its numbers depend
            neither on the batch size nor on chunks.
        chunk_size: how many samples to run at a time, to save memory: an int, None for all at
            once, or "auto" for as many as the memory budget allows.
        memory_budget: with "auto", the peak memory of one chunk in bytes, not counting the
            results of earlier chunks. None is half of the free memory of the device.
        progress: show a progress bar over the chunks (needs tqdm).
        axis_name: the name of the batch axis for collectives inside func, such as
            ``torchlayers.distributed.psum(x, axis_name)``.
        mesh: spreads the batch over the ranks of a one-dimensional DeviceMesh, ``mesh["dp"]``.
            A batched DTensor keeps its sharding, or is redistributed to ``Shard(in_dim)``; a
            batched plain tensor must be the same on all ranks, and each takes its part as
            torch.chunk splits it. An unbatched argument is replicated, and its gradient is summed
            over the ranks, in a single collective for all such arguments. chunk_size is per rank.
        out: with mesh, the form of batched results: a "dtensor" sharded along the batch, the
            "local" part, or the "full" batch on each rank.
        check: with mesh, when the ranks compare the arguments of the call, in a small collective:
            at the "first" call, "always", or "never".
        fallback: "loop": if func needs something that only a single sample has (``.item()``,
            ``if x > 0``, ``x[x > 0]``), it is run again from its start, one sample at a time, with
            a warning that names the line. With ``out_dims="ragged"``, results of different sizes
            are returned as jagged nested tensors. docs/control-flow.md shows how to avoid the loop.
        key: with "keyed", the key used by every call. None draws a key from torch's generator at
            each call, so that torch.manual_seed reproduces it.
    Returns:
        A function with func's arguments, whose results have one more dimension, of the batch
        size.
    Raises:
        DimensionError: in_dims or out_dims don't match, or batch sizes differ; an OutDimError,
            which is also an IndexError, if an out_dim is out of range.
        NotTensorError: a batched argument or a result is not a tensor.
        TransformError: an invalid randomness, fallback, out or check; an axis_name with chunks;
            ranks called with different arguments; a DTensor on another mesh; with a mesh, a tensor
            that is differentiated outside and is not an argument, or a fallback.
        AxisError: mesh has several dimensions.
        TypeError: chunk_size is neither an int, nor None, nor "auto".
        ValueError: chunk_size or memory_budget is not positive.
    Example:
        >>> vmap(torch.dot)(torch.ones(3, 2), torch.ones(3, 2))
        tensor([2., 2., 2.])
        >>> vmap(torch.dot, in_dims=(1, None))(torch.ones(2, 3), torch.ones(2)).shape
        torch.Size([3])

    Source: torch.func.vmap.
    """
    if others:
        refuse_keywords(vmap, others)
    if (
        randomness in _AS_TORCH
        and chunk_size is None
        and memory_budget is None
        and not progress
        and axis_name is None
        and mesh is None
        and fallback is None
        and key is None
        and out_dims != "ragged"
    ):
        return _vmap_like_torch(func, in_dims, out_dims, randomness)
    options = BatchingOptions(chunk_size, memory_budget, progress, mesh, out, check)
    return _vmap_with_options(
        func, in_dims, out_dims, randomness, key, axis_name, fallback, options
    )


def _vmap_like_torch(
    func: Callable[..., Any], in_dims: Any, out_dims: Any, randomness: Randomness
) -> Callable[..., Any]:
    """vmap with torch.func.vmap's arguments alone, the usual one: other options cost it nothing."""
    spec = VmapSpec(func, in_dims, out_dims, randomness)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if tracing_state.is_tracing():
            return _traced_vmap(func, in_dims, out_dims, randomness, None)(*args, **kwargs)
        return _C.call_vmap(spec, args, kwargs)

    return transformed(func, wrapper)


def _vmap_with_options(
    func: Callable[..., Any],
    in_dims: Any,
    out_dims: Any,
    randomness: Randomness,
    key: Tensor | None,
    axis_name: str | None,
    fallback: Literal["loop"] | None,
    options: BatchingOptions,
) -> Callable[..., Any]:
    check_randomness("vmap", randomness)
    if key is not None:
        _check_key_of(randomness, key)
    chunking.check_chunk_size("vmap", options.chunk_size, options.memory_budget)
    if fallback is not None or out_dims == "ragged":
        vmap_loop_fallback.check_fallback(
            fallback, out_dims, axis_name, is_spread=options.mesh is not None
        )
        dims = 0 if out_dims == "ragged" else out_dims
        batched = vmap(
            func,
            in_dims,
            dims,
            randomness,
            chunk_size=options.chunk_size,
            memory_budget=options.memory_budget,
            progress=options.progress,
            key=key,
        )
        whole = VmapSpec(func, in_dims, dims, randomness, key)
        return transformed(
            func, vmap_loop_fallback.with_loop_fallback(batched, whole, ragged=out_dims == "ragged")
        )
    at_once = options.at_once
    if axis_name is not None and not at_once:
        raise TransformError(
            f"torchlayers: vmap: the samples of axis_name={axis_name!r} have to run at once, and "
            "chunk_size or progress runs some at a time: a psum would miss the others. Leave "
            "one of them out."
        )
    if options.mesh is not None and randomness == "keyed" and key is None:
        raise TransformError(
            "torchlayers: vmap: with a mesh, randomness='keyed' needs a key that is the same on "
            "all ranks: pass key=torchlayers.random.key(seed)."
        )
    spread = options.spread("vmap", func)
    named = func
    if spread is None and axis_name is not None:
        named = naming_samples(func, axis_name)
    of_calls = VmapSpec(named, in_dims, out_dims, randomness, key)

    def run(spec: VmapSpec, samples: FlatArguments, kwargs: dict[str, Any]) -> Any:
        if at_once:
            return _C.call_vmap_of_leaves(spec, samples, kwargs)
        return run_in_chunks(spec, samples, kwargs, options)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if tracing_state.is_tracing():
            options.refuse_while_tracing("vmap", any_chunks=False)
            tracing_state.refuse("vmap", axis_name=axis_name, keyed=randomness == "keyed")
            chunks = cast(int | None, options.chunk_size)
            return _traced_vmap(func, in_dims, out_dims, randomness, chunks)(*args, **kwargs)
        call_spec = of_calls if randomness != "keyed" else of_calls.with_key()
        if at_once and spread is None:
            return _C.call_vmap(call_spec, args, kwargs)
        if spread is not None:
            return _vmap_over_ranks(spread, call_spec, axis_name, args, kwargs, run)
        return _vmap(call_spec, args, kwargs, run)

    return transformed(func, wrapper)


def _traced_vmap(
    func: Callable[..., Any], in_dims: Any, out_dims: Any, randomness: str, chunk_size: int | None
) -> Callable[..., Any]:
    """What Dynamo traces in place of vmap."""
    tracing_state.copy_parameters_outside()
    return torch_func.vmap(func, in_dims, out_dims, randomness, chunk_size=chunk_size)


def _check_key_of(randomness: str, key: Tensor) -> None:
    if randomness != "keyed":
        raise TransformError(
            f"torchlayers: vmap: a key is given, but randomness={randomness!r} does not use it. "
            "Pass randomness='keyed' as well."
        )
    check_key("vmap", key)


@tracing_state.exported_below
def _vmap(
    spec: VmapSpec, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[..., Any]
) -> Any:
    patched_torch_func.patched_steps(patched_torch_func.CHUNKS)  # raises if one is replaced
    spec.check_out_dims()
    return run(spec, spec.flat_arguments(args), kwargs)


def _vmap_over_ranks(
    spread: MeshExecution,
    spec: VmapSpec,
    axis_name: str | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    run: Callable[..., Any],
) -> Any:
    """Runs each rank's part of the batch on that rank."""

    captured = spread.captured(spec.func)

    def facts() -> dict[str, str]:
        spec.check_out_dims()
        leaves, _, dims, batch_size = spec.flat_arguments(args)
        return spread.facts(args, leaves, captured) | {
            "the batch size": str(batch_size),
            "in_dims": str(dims),
            "out_dims": str(spec.out_dims),
            "randomness": spec.randomness,
            "key": str(None if spec.key is None else spec.key.tolist()),
        }

    is_first = spread.agree(facts)
    spec.check_out_dims()
    leaves, tree_spec, dims, batch_size = spec.flat_arguments(args)
    since = sequence_number()
    local = spread.samples(leaves, dims, batch_size)
    shared = spread.shared(captured.tensors)
    start, size = spread.part(batch_size)
    spec = spec._replace(func=captured.replaced(shared), first=start)
    if axis_name is not None:
        axis = spread.named(axis_name, batch_size)
        spec = spec._replace(func=naming_samples(spec.func, axis_name, axis))
    with spread.inside(spec.randomness, is_checked=is_first):
        results = run(spec, (local, tree_spec, dims, size), kwargs)
        flat, result_spec = pytree.flatten(results)
        if is_first:
            spread.refuse_captured([*local, *shared], flat, since)
        out_dims = resolve_out_dims(spec.out_dims, result_spec)
        together = [
            spread.gather(part, dim, batch_size) for part, dim in zip(flat, out_dims, strict=True)
        ]
    return pytree.unflatten(together, result_spec)
