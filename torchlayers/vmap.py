"""Batching: vmap.

A vmap layer is entered; the chosen dimension of every batched argument is hidden
at the layer's level; the function runs as if on one sample; and the hidden
dimension of its results is put where out_dims says.
"""

import functools
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch._functorch.predispatch import lazy_load_decompositions

from torchlayers import _C, chunks, compiled, steps, torch_func, tree
from torchlayers.chunks import ChunkSize
from torchlayers.errors import DimensionError, NotTensorError, OutDimError, TransformError
from torchlayers.stack import VmapEntry, transformed
from torchlayers.steps import Replaced


def vmap(
    func: Callable[..., Any],
    in_dims: Any = 0,
    out_dims: Any = 0,
    randomness: str = "error",
    *,
    chunk_size: ChunkSize = None,
    memory_budget: int | None = None,
    progress: bool = False,
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
        randomness: what random operators do: "error", "same" for every sample, or
            "different".
        chunk_size: how many samples at a time, to save memory: an int, None for all at once,
            or "auto" for as many as the memory budget allows.
        memory_budget: with "auto", the bytes that one chunk may take at its peak, results of
            earlier chunks not counted. None is half of what is free on the device.
        progress: show a progress bar over the chunks (needs tqdm).
    Returns:
        A function with func's arguments, whose results have a dimension more, of the batch's
        size.
    Raises:
        DimensionError: in_dims or out_dims don't fit, or batch sizes differ; an OutDimError,
            which is an IndexError too, where an out_dim is out of range.
        NotTensorError: a batched argument or a result is not a tensor.
        TransformError: no such randomness.
        TypeError: chunk_size is neither an int, nor None, nor "auto".
        ValueError: chunk_size or memory_budget is not positive.
    Example:
        >>> vmap(torch.dot)(torch.ones(3, 2), torch.ones(3, 2))
        tensor([2., 2., 2.])
        >>> vmap(torch.dot, in_dims=(1, None))(torch.ones(2, 3), torch.ones(2)).shape
        torch.Size([3])

    Source: torch.func.vmap.
    """
    if randomness not in ("error", "same", "different"):
        raise TransformError(
            "torchlayers: vmap: randomness must be 'error', 'same' or 'different', got "
            f"{randomness!r}."
        )
    chunks.check_chunk_size("vmap", chunk_size, memory_budget)
    at_once = chunk_size is None and not progress

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if compiled.is_tracing():
            compiled.refuse("vmap", auto_chunks=chunk_size == "auto", progress=progress)
            theirs = torch_func.vmap(
                func, in_dims, out_dims, randomness, chunk_size=cast(int | None, chunk_size)
            )
            return theirs(*args, **kwargs)
        if at_once:
            return vmap_at_once(func, in_dims, out_dims, randomness, args, kwargs)
        return _vmap_in_chunks(
            func,
            in_dims,
            out_dims,
            randomness,
            args,
            kwargs,
            functools.partial(
                chunks.run,
                chunk_size=chunk_size,
                memory_budget=memory_budget,
                progress=progress,
                label=f"vmap({tree.name_of(func)})",
            ),
        )

    return transformed(func, wrapper)


def vmap_at_once(
    func: Callable[..., Any],
    in_dims: Any,
    out_dims: Any,
    randomness: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """``vmap(func, in_dims, out_dims, randomness)(*args, **kwargs)``."""
    result = _C.call_vmap(func, args, kwargs, in_dims, out_dims, randomness, _unbatch)
    if result is not NotImplemented:
        return result
    if compiled.is_exporting():
        return compiled.exported(vmap_at_once, func, in_dims, out_dims, randomness, args, kwargs)
    replaced = steps.replaced(steps.VMAP)
    leaves, spec, dims, batch_size = _prepare(func, in_dims, out_dims, args, replaced)
    return _run(func, leaves, spec, dims, batch_size, out_dims, randomness, kwargs, replaced)


def _vmap_in_chunks(
    func: Callable[..., Any],
    in_dims: Any,
    out_dims: Any,
    randomness: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    run_chunks: Callable[..., list[Any]],
) -> Any:
    if compiled.is_exporting():
        return compiled.exported(
            _vmap_in_chunks, func, in_dims, out_dims, randomness, args, kwargs, run_chunks
        )
    steps.replaced(steps.CHUNKS)  # none can be, but refused
    replaced = steps.replaced(steps.VMAP)
    leaves, spec, dims, batch_size = _prepare(func, in_dims, out_dims, args, replaced)
    draw_again = _restart_random(leaves) if randomness == "same" else lambda: None

    def run_chunk(start: int, size: int) -> tuple[list[Any], tree.TreeSpec]:
        draw_again()
        chunk = _narrow(leaves, dims, start, size)
        return tree.flatten(
            _run(func, chunk, spec, dims, size, out_dims, randomness, kwargs, replaced)
        )

    return _join(run_chunks(run_chunk, batch_size, device=_device(leaves)), out_dims)


def _prepare(
    func: Callable[..., Any],
    in_dims: Any,
    out_dims: Any,
    args: tuple[Any, ...],
    replaced: Replaced,
) -> tuple[list[Any], tree.TreeSpec, list[int | None], int]:
    # torch.func registers some of torch's batching rules at its first vmap.
    lazy_load_decompositions()
    _check_out_dims(func, out_dims)
    if process := replaced.get("_process_batched_inputs"):
        batch_size, dims, leaves, spec = process(in_dims, args, func)
        return leaves, spec, dims, batch_size
    return _batch(func, in_dims, args)


def _run(
    func: Callable[..., Any],
    leaves: list[Any],
    spec: tree.TreeSpec,
    dims: list[int | None],
    batch_size: int,
    out_dims: Any,
    randomness: str,
    kwargs: dict[str, Any],
    replaced: Replaced,
) -> Any:
    with VmapEntry(batch_size, randomness) as level:
        if create := replaced.get("_create_batched_inputs"):
            batched = create(dims, leaves, level, spec)
        else:
            batched = tree.unflatten(
                [
                    leaf if dim is None else _C.add_batch_dim(leaf, dim)
                    for leaf, dim in zip(leaves, dims, strict=True)
                ],
                spec,
            )
        outputs = func(*batched, **kwargs)
        if unwrap := replaced.get("_unwrap_batched"):
            return unwrap(outputs, out_dims, level, batch_size, func)
        return _unbatch(func, outputs, out_dims, level, batch_size)


def _narrow(leaves: list[Any], dims: list[int | None], start: int, size: int) -> list[Any]:
    return [
        leaf if dim is None else leaf.narrow(dim, start, size)
        for leaf, dim in zip(leaves, dims, strict=True)
    ]


def _device(leaves: list[Any]) -> torch.device:
    return next(leaf.device for leaf in leaves if isinstance(leaf, Tensor))


def _restart_random(leaves: list[Any]) -> Callable[[], None]:
    """With randomness="same" every chunk has to draw what the first one drew."""
    host = torch.get_rng_state()
    devices = {leaf.device for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_cuda}
    states = [(device, torch.cuda.get_rng_state(device)) for device in devices]

    def restart() -> None:
        torch.set_rng_state(host)
        for device, state in states:
            torch.cuda.set_rng_state(state, device)

    return restart


def _join(results: list[tuple[list[Any], tree.TreeSpec]], out_dims: Any) -> Any:
    spec = results[0][1]
    dims = tree.broadcast(out_dims, spec)
    if dims is None:  # a one-tuple for a single tensor
        dims = list(out_dims)
    remaining = iter(dims)

    def join(parts: list[Any]) -> Any:
        dim = next(remaining)
        # None: the result does not depend on the batch, so any chunk's stands for all.
        return parts[0] if dim is None else torch.cat(parts, dim=dim)

    parts = [leaves for leaves, _ in results]
    results.clear()
    return tree.unflatten(chunks.joined(parts, join), spec)


def _batch(
    func: Callable[..., Any], in_dims: Any, args: tuple[Any, ...]
) -> tuple[list[Any], tree.TreeSpec, list[int | None], int]:
    """The arguments' leaves, their spec, each one's batch dimension, and the batch size."""
    if not isinstance(in_dims, (int, tuple)):
        hint = (
            f" For one argument write ({in_dims!r},)." if isinstance(in_dims, (list, dict)) else ""
        )
        raise DimensionError(
            f"{_call(func, in_dims)}: in_dims must be an int or a tuple that fits the arguments, "
            f"got {type(in_dims).__name__}.{hint}"
        )
    if not args:
        raise DimensionError(
            f"{_call(func, in_dims)}: got no positional arguments, so there is nothing to batch."
        )
    leaves, spec = tree.flatten(args)
    dims = tree.broadcast(in_dims, spec)
    if dims is None:
        raise DimensionError(
            f"{_call(func, in_dims)}: in_dims don't fit the arguments: in_dims are "
            f"{tree.describe(tree.flatten(in_dims)[1])}, the arguments "
            f"{tree.describe(spec)} (* stands for a leaf)."
        )
    sizes = {}
    for i, (leaf, dim) in enumerate(zip(leaves, dims, strict=True)):
        if dim is None:
            continue
        dims[i] = _check_in_dim(func, in_dims, args, i, leaf, dim)
        sizes[i] = leaf.size(dims[i])
    if not sizes:
        raise DimensionError(
            f"{_call(func, in_dims)}: no argument is batched: at least one in_dim must be an int."
        )
    batch_size = next(iter(sizes.values()))
    if any(size != batch_size for size in sizes.values()):
        first = next(iter(sizes))
        other = next(i for i, size in sizes.items() if size != batch_size)
        raise DimensionError(
            f"{_call(func, in_dims)}: Expected all tensors to have the same size in the mapped "
            "dimension, but "
            + " and ".join(
                f"{tree.leaf_name('argument', args, i)} has {sizes[i]} in dim {dims[i]}"
                for i in (first, other)
            )
            + "."
        )
    return leaves, spec, dims, batch_size


def _check_in_dim(
    func: Callable[..., Any], in_dims: Any, args: tuple[Any, ...], i: int, leaf: Any, dim: Any
) -> int:
    if not isinstance(dim, int):
        raise DimensionError(
            f"{_call(func, in_dims)}: in_dim {dim!r} of {tree.leaf_name('argument', args, i)} "
            "must be an int or None."
        )
    if not isinstance(leaf, Tensor):
        raise NotTensorError(
            f"{_call(func, in_dims)}: in_dim {dim} was given for "
            f"{tree.leaf_name('argument', args, i)}, a {type(leaf).__name__}: only tensors can be "
            "batched. Give None for it."
        )
    dims = leaf.dim()
    if not -dims <= dim < dims:
        name = tree.leaf_name("argument", args, i)
        raise DimensionError(
            f"{_call(func, in_dims)}: in_dim {dim} is out of range for {name} of shape "
            f"{tuple(leaf.shape)}: it must lie in [{-dims}, {dims - 1}]."
            if dims
            else f"{_call(func, in_dims)}: {name} has no dimensions, so in_dim {dim} is out of "
            "range. Give None for it, or a tensor with a batch dimension."
        )
    return dim % dims


def _check_out_dims(func: Callable[..., Any], out_dims: Any) -> None:
    if isinstance(out_dims, int):
        return
    for dim in tree.leaves(out_dims):
        if not (dim is None or isinstance(dim, int)):
            raise DimensionError(
                f"{_returned(func, out_dims)}: out_dims must be an int, None or a pytree of "
                f"these, got {dim!r}."
            )


def _unbatch(
    func: Callable[..., Any], outputs: Any, out_dims: Any, level: int, batch_size: int
) -> Any:
    flat, spec = tree.flatten(outputs)
    dims: Any
    if isinstance(outputs, Tensor) and isinstance(out_dims, tuple) and len(out_dims) == 1:
        dims = tree.broadcast(out_dims[0], spec)  # a one-tuple is allowed for a single tensor
    else:
        dims = tree.broadcast(out_dims, spec)
    if dims is None:
        raise DimensionError(
            f"{_returned(func, out_dims)}: out_dims don't fit the results: out_dims are "
            f"{tree.describe(tree.flatten(out_dims)[1])}, the results {tree.describe(spec)} "
            "(* stands for a leaf)."
        )
    return tree.unflatten(
        [
            _unbatch_one(func, outputs, out_dims, leaf, dim, level, batch_size)
            for leaf, dim in zip(flat, dims, strict=True)
        ],
        spec,
    )


def _unbatch_one(
    func: Callable[..., Any],
    outputs: Any,
    out_dims: Any,
    leaf: Any,
    dim: int | None,
    level: int,
    batch_size: int,
) -> Any:
    if dim is None:
        if isinstance(leaf, Tensor) and _C.is_batched(leaf, level):
            raise DimensionError(
                f"{_returned(func, out_dims)}: a result whose out_dim is None depends on the "
                "batch. Give an int for it."
            )
        return leaf
    if not isinstance(leaf, Tensor):
        advice = (
            "A function that only has side effects returns nothing to batch: give out_dims=None."
            if outputs is None
            else "Give out_dims=None for it to return it as it is."
        )
        raise NotTensorError(
            f"torchlayers: vmap({tree.name_of(func)}): the function must return only tensors, got "
            f"{type(leaf).__name__}. {advice}"
        )
    if dim and not -(dims := leaf.dim() + 1) <= dim < dims:
        raise OutDimError(
            f"{_returned(func, out_dims)}: out_dim {dim} is out of range for a result that has "
            f"{dims} dimensions with the batch's: it must lie in [{-dims}, {dims - 1}]."
        )
    return _C.remove_batch_dim(leaf, level, batch_size, dim)


def _call(func: Callable[..., Any], in_dims: Any) -> str:
    return f"torchlayers: vmap({tree.name_of(func)}, in_dims={in_dims!r})"


def _returned(func: Callable[..., Any], out_dims: Any) -> str:
    return f"torchlayers: vmap({tree.name_of(func)}, out_dims={out_dims!r})"
