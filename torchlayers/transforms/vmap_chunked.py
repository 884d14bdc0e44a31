"""vmap in chunks of samples; per rank, if the batch is sharded over ranks."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchlayers import _C
from torchlayers.core import pytree
from torchlayers.core.device import RandomState
from torchlayers.core.errors import TransformError
from torchlayers.distributed import dtensor
from torchlayers.transforms import chunking
from torchlayers.transforms.batching_options import BatchingOptions
from torchlayers.transforms.vmap_dims import FlatArguments, VmapSpec, resolve_out_dims


def run_in_chunks(
    spec: VmapSpec,
    samples: FlatArguments,
    kwargs: dict[str, Any],
    options: BatchingOptions,
) -> Any:
    leaves, tree_spec, dims, batch_size = samples
    random = RandomState() if spec.randomness == "same" else None
    if options.chunk_size is not None and dtensor.is_sharded(leaves, dims):
        return _run_in_shards(spec, samples, kwargs, options, random)

    def run_chunk(start: int, size: int) -> tuple[list[Any], pytree.TreeSpec]:
        if random is not None:  # every chunk draws the same numbers as the first
            random.restore()
        chunk = _narrow(leaves, dims, start, size), tree_spec, dims, size
        return pytree.flatten(
            _C.call_vmap_of_leaves(spec._replace(first=spec.first + start), chunk, kwargs)
        )

    results = options.run(run_chunk, batch_size, _device(leaves), _label(spec))
    return _join(results, spec.out_dims)


def _run_in_shards(
    spec: VmapSpec,
    samples: FlatArguments,
    kwargs: dict[str, Any],
    options: BatchingOptions,
    random: RandomState | None,
) -> Any:
    """run_in_chunks for a batch sharded over ranks: each chunk has samples of every rank."""
    leaves, tree_spec, dims, batch_size = samples
    if spec.key is not None:
        raise TransformError(
            f"{spec.call()}: with randomness='keyed', a batch that is sharded over ranks can't "
            "run in chunks of a given size, whose samples would not be contiguous. Leave "
            "chunk_size out."
        )
    parts = dtensor.LocalChunks(leaves, dims, batch_size)

    def run_chunk(start: int, size: int) -> tuple[list[Any], pytree.TreeSpec]:
        if random is not None:
            random.restore()
        chunk = parts.narrow(start, size), tree_spec, dims, parts.size_of(start, size)
        return pytree.flatten(_C.call_vmap_of_leaves(spec, chunk, kwargs))

    if isinstance(options.chunk_size, int):
        options = options._replace(chunk_size=-(-options.chunk_size // parts.ranks))
    results = options.run(
        run_chunk, parts.largest, _device(leaves), _label(spec), parts.largest_of_all
    )
    return _join(results, spec.out_dims, parts.join)


def _label(spec: VmapSpec) -> str:
    return f"vmap({pytree.name_of(spec.func)})"


def _narrow(leaves: list[Any], dims: list[int | None], start: int, size: int) -> list[Any]:
    return [
        leaf if dim is None else leaf.narrow(dim, start, size)
        for leaf, dim in zip(leaves, dims, strict=True)
    ]


def _device(leaves: list[Any]) -> torch.device:
    return next(leaf.device for leaf in leaves if isinstance(leaf, Tensor))


def _join(
    results: list[tuple[list[Any], pytree.TreeSpec]],
    out_dims: Any,
    joined: Callable[[list[Tensor], int], Tensor] = torch.cat,
) -> Any:
    spec = results[0][1]
    remaining = iter(resolve_out_dims(out_dims, spec))

    def join(parts: list[Any]) -> Any:
        dim = next(remaining)
        # None: the result does not depend on the batch, so that of any chunk will do.
        return parts[0] if dim is None else joined(parts, dim)

    parts = [leaves for leaves, _ in results]
    results.clear()
    return pytree.unflatten(chunking.join_leaves(parts, join), spec)
