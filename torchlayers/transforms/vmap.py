"""Batching: vmap.

A vmap layer is entered; the chosen dimension of every batched argument is hidden
at the layer's level; the function runs as if on one sample; and the hidden
dimension of its results is put where out_dims says. csrc/python/call_vmap.cpp does it.
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor

from torchlayers import _C
from torchlayers.core import pytree, torch_func, tracing_state
from torchlayers.core.errors import TransformError
from torchlayers.core.layer_stack import transformed
from torchlayers.distributed.axes import naming_samples
from torchlayers.distributed.mesh import Check, Out, Spread, sequence_number
from torchlayers.random.arguments import check_key
from torchlayers.transforms import chunking, patched_torch_func, vmap_loop_fallback
from torchlayers.transforms.chunking import ChunkSize
from torchlayers.transforms.vmap_chunked import run_in_chunks
from torchlayers.transforms.vmap_dims import Samples, Vmap, check_randomness, dims_of

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def vmap(
    func: Callable[..., Any],
    in_dims: Any = 0,
    out_dims: Any = 0,
    randomness: str = "error",
    *,
    chunk_size: ChunkSize = None,
    memory_budget: int | None = None,
    progress: bool = False,
    axis_name: str | None = None,
    mesh: "DeviceMesh | None" = None,
    out: Out = "dtensor",
    check: Check = "first",
    fallback: str | None = None,
    key: Tensor | None = None,
) -> Callable[..., Any]:
    """Vectorized map: runs a function written for one sample on a whole batch.

    Args:
        func: takes tensors and pytrees of tensors; returns tensors, or a pytree of them.
        in_dims: which dimension of each positional argument is the batch's: an int for all,
            or a tuple with one entry an argument, each an int, None (the argument is not
            batched), or a pytree of these. Negative ints count from the end. Keyword
            arguments are not batched.
        out_dims: where the batch's dimension goes in each result: an int for all, or a
            pytree that fits the results. None returns a result that does not depend on the
            batch as it is.
        randomness: what random operators do: "error", "same" for every sample, "different",
            or "keyed": each sample draws by a key of its own (:mod:`torchlayers.random`), of
            the call and of its place in the batch, so that it draws the same numbers whatever
            the batch's size, and in chunks.
        chunk_size: how many samples at a time, to save memory: an int, None for all at once,
            or "auto" for as many as the memory budget allows.
        memory_budget: with "auto", the bytes that one chunk may take at its peak, results of
            earlier chunks not counted. None is half of what is free on the device.
        progress: show a progress bar over the chunks (needs tqdm).
        axis_name: what the samples are called inside func by collectives,
            ``torchlayers.distributed.psum(x, axis_name)`` and its relatives.
        mesh: spreads the batch over the ranks of a DeviceMesh of one dimension, ``mesh["dp"]``.
            A batched DTensor is used as it lies, or brought to ``Shard(in_dim)``; a batched plain
            tensor is one that all ranks hold, and each takes its part as torch.chunk cuts. What
            is not batched is replicated, and its gradient summed over the ranks, in one
            collective for all of it. chunk_size is for each rank.
        out: with mesh, what batched results are: a "dtensor" that is sharded along the batch, the
            "local" part, or the "full" batch on each rank.
        check: with mesh, when the ranks compare what they were called with, in a small collective:
            at the "first" call, "always", or "never".
        fallback: "loop" runs a function that asks for what only one sample has (``.item()``,
            ``if x > 0``, ``x[x > 0]``) again from its start, a sample at a time, with a warning
            that names the line. Results of different sizes come back as jagged nested tensors
            with ``out_dims="ragged"``. docs/control-flow.md has the ways to do without.
        key: with "keyed", the key of every call. None draws one of torch's generator at each
            call, so that torch.manual_seed makes it come again.
    Returns:
        A function with func's arguments, whose results have a dimension more, of the batch's
        size.
    Raises:
        DimensionError: in_dims or out_dims don't fit, or batch sizes differ; an OutDimError,
            which is an IndexError too, where an out_dim is out of range.
        NotTensorError: a batched argument or a result is not a tensor.
        TransformError: no such randomness, fallback, out or check; an axis_name with chunks; ranks
            that were called with different arguments; a DTensor on another mesh; a tensor
            differentiated outside that is no argument, with a mesh; a fallback with a mesh.
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
    check_randomness("vmap", randomness)
    if key is not None:
        _check_key_of(randomness, key)
    chunking.check_chunk_size("vmap", chunk_size, memory_budget)
    if fallback is not None or out_dims == "ragged":
        vmap_loop_fallback.check_fallback(fallback, out_dims, axis_name, is_spread=mesh is not None)
        dims = 0 if out_dims == "ragged" else out_dims
        options: dict[str, Any] = {
            "chunk_size": chunk_size,
            "memory_budget": memory_budget,
            "progress": progress,
            "key": key,
        }
        batched = vmap(func, in_dims, dims, randomness, **options)
        whole = Vmap(func, in_dims, dims, randomness, key)
        return transformed(
            func, vmap_loop_fallback.falling_back(batched, whole, ragged=out_dims == "ragged")
        )
    at_once = chunk_size is None and not progress
    if axis_name is not None and not at_once:
        raise TransformError(
            f"torchlayers: vmap: the samples of axis_name={axis_name!r} have to run at once, and "
            "chunk_size or progress runs some at a time: a psum would miss the others. Leave "
            "one of them out."
        )
    if mesh is not None and randomness == "keyed" and key is None:
        raise TransformError(
            "torchlayers: vmap: with a mesh, randomness='keyed' needs a key that all ranks have "
            "alike: give key=torchlayers.random.key(seed)."
        )
    spread = None
    named = func
    if mesh is not None:
        spread = Spread(f"vmap({pytree.name_of(func)}, mesh=...)", mesh, out, check)
    elif axis_name is not None:
        named = naming_samples(func, axis_name)
    of_calls = Vmap(named, in_dims, out_dims, randomness, key)

    def run(given: Vmap, samples: Samples, kwargs: dict[str, Any]) -> Any:
        if at_once:
            return _C.call_vmap_of_leaves(given, samples, kwargs)
        run_chunks = functools.partial(
            chunking.run,
            chunk_size=chunk_size,
            memory_budget=memory_budget,
            progress=progress,
            label=f"vmap({pytree.name_of(func)})",
        )
        return run_in_chunks(given, samples, kwargs, run_chunks, chunk_size)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if tracing_state.is_tracing():
            tracing_state.refuse(
                "vmap",
                auto_chunks=chunk_size == "auto",
                progress=progress,
                axis_name=axis_name,
                mesh=mesh,
                keyed=randomness == "keyed",
            )
            tracing_state.copy_parameters_outside()
            theirs = torch_func.vmap(
                func, in_dims, out_dims, randomness, chunk_size=cast(int | None, chunk_size)
            )
            return theirs(*args, **kwargs)
        given = of_calls if randomness != "keyed" else of_calls.with_key()
        if at_once and spread is None:
            return _C.call_vmap(given, args, kwargs)
        if spread is not None:
            return _vmap_over_ranks(spread, given, axis_name, args, kwargs, run)
        if tracing_state.is_exporting():
            return tracing_state.exported(_vmap, given, args, kwargs, run)
        return _vmap(given, args, kwargs, run)

    return transformed(func, wrapper)


def _check_key_of(randomness: str, key: Tensor) -> None:
    if randomness != "keyed":
        raise TransformError(
            f"torchlayers: vmap: a key is given, and randomness={randomness!r} draws by none. Give "
            "randomness='keyed' with it."
        )
    check_key("vmap", key)


def _vmap(
    given: Vmap, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[..., Any]
) -> Any:
    patched_torch_func.replaced(patched_torch_func.CHUNKS)  # none can be, but refused
    given.check_out_dims()
    return run(given, given.flat_arguments(args), kwargs)


def _vmap_over_ranks(
    spread: Spread,
    given: Vmap,
    axis_name: str | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    run: Callable[..., Any],
) -> Any:
    """Each rank's samples there."""

    captured = spread.captured(given.func)

    def facts() -> dict[str, str]:
        given.check_out_dims()
        leaves, _, dims, batch_size = given.flat_arguments(args)
        return spread.facts(args, leaves, captured) | {
            "the batch size": str(batch_size),
            "in_dims": str(dims),
            "out_dims": str(given.out_dims),
            "randomness": given.randomness,
            "key": str(None if given.key is None else given.key.tolist()),
        }

    is_first = spread.agree(facts)
    given.check_out_dims()
    leaves, spec, dims, batch_size = given.flat_arguments(args)
    since = sequence_number()
    own = spread.samples(leaves, dims, batch_size)
    shared = spread.shared(captured.tensors)
    start, size = spread.part(batch_size)
    given = given._replace(func=captured.replaced(shared), first=start)
    if axis_name is not None:
        axis = spread.named(axis_name, batch_size)
        given = given._replace(func=naming_samples(given.func, axis_name, axis))
    with spread.inside(given.randomness, is_checked=is_first):
        results = run(given, (own, spec, dims, size), kwargs)
        flat, result_spec = pytree.flatten(results)
        if is_first:
            spread.refuse_captured([*own, *shared], flat, since)
        out_dims = dims_of(given.out_dims, result_spec)
        together = [
            spread.put_together(part, dim, batch_size)
            for part, dim in zip(flat, out_dims, strict=True)
        ]
    return pytree.unflatten(together, result_spec)
