"""Batching: vmap.

A vmap layer is entered; the chosen dimension of every batched argument is hidden
at the layer's level; the function runs as if on one sample; and the hidden
dimension of its results is put where out_dims says. csrc/python/call_vmap.cpp does it.
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor

from torchlayers import _C, chunks, sample_loop, steps, torch_compile, torch_func, tree, whose
from torchlayers.chunks import ChunkSize
from torchlayers.device import RandomState
from torchlayers.distributed import dtensor
from torchlayers.distributed.axes import naming_samples
from torchlayers.distributed.spread import Check, Out, Spread, sequence_number
from torchlayers.errors import DimensionError, NotTensorError, OutDimError, TransformError
from torchlayers.random.arguments import check_key
from torchlayers.stack import transformed

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

# Leaves, their spec, and for each its batch dimension or None.
Batch: TypeAlias = tuple[list[Any], tree.TreeSpec, list[int | None]]
# With the batch size.
Samples: TypeAlias = tuple[list[Any], tree.TreeSpec, list[int | None], int]


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
    if randomness not in ("error", "same", "different", "keyed"):
        raise TransformError(
            "torchlayers: vmap: randomness must be 'error', 'same', 'different' or 'keyed', got "
            f"{randomness!r}."
        )
    if key is not None:
        _check_key_of(randomness, key)
    chunks.check_chunk_size("vmap", chunk_size, memory_budget)
    if fallback is not None or out_dims == "ragged":
        sample_loop.check_fallback(
            fallback, out_dims, axis_name, randomness, is_spread=mesh is not None
        )
        dims = 0 if out_dims == "ragged" else out_dims
        options: dict[str, Any] = {
            "chunk_size": chunk_size,
            "memory_budget": memory_budget,
            "progress": progress,
        }
        batched = vmap(func, in_dims, dims, randomness, **options)
        whole = Vmap(func, in_dims, dims, randomness)
        return transformed(
            func, sample_loop.falling_back(batched, whole, ragged=out_dims == "ragged")
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
        spread = Spread(f"vmap({tree.name_of(func)}, mesh=...)", mesh, out, check)
    elif axis_name is not None:
        named = naming_samples(func, axis_name)
    of_calls = Vmap(named, in_dims, out_dims, randomness, key)

    def run(given: Vmap, samples: Samples, kwargs: dict[str, Any]) -> Any:
        if at_once:
            return _C.call_vmap_of_leaves(given, samples, kwargs)
        run_chunks = functools.partial(
            chunks.run,
            chunk_size=chunk_size,
            memory_budget=memory_budget,
            progress=progress,
            label=f"vmap({tree.name_of(func)})",
        )
        return _vmap_in_chunks(given, samples, kwargs, run_chunks, chunk_size)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if torch_compile.is_tracing():
            torch_compile.refuse(
                "vmap",
                auto_chunks=chunk_size == "auto",
                progress=progress,
                axis_name=axis_name,
                mesh=mesh,
                keyed=randomness == "keyed",
            )
            theirs = torch_func.vmap(
                func, in_dims, out_dims, randomness, chunk_size=cast(int | None, chunk_size)
            )
            return theirs(*args, **kwargs)
        given = of_calls
        if randomness == "keyed" and key is None:
            given = given._replace(key=torch.randint(2**63 - 1, ()))
        if at_once and spread is None:
            return _C.call_vmap(given, args, kwargs)
        if spread is not None:
            return _vmap_over_ranks(spread, given, axis_name, args, kwargs, run)
        if torch_compile.is_exporting():
            return torch_compile.exported(_vmap, given, args, kwargs, run)
        return _vmap(given, args, kwargs, run)

    return transformed(func, wrapper)


def _check_key_of(randomness: str, key: Tensor) -> None:
    if randomness != "keyed":
        raise TransformError(
            f"torchlayers: vmap: a key is given, and randomness={randomness!r} draws by none. Give "
            "randomness='keyed' with it."
        )
    check_key("vmap", key)


class Vmap(NamedTuple):
    """A function, and how to batch it.

    The call is C++, which reads the fields. It calls a method where the dimensions are not an int
    for all, or for each argument, or where something has to be refused.
    """

    func: Callable[..., Any]
    in_dims: Any
    out_dims: Any
    randomness: str
    key: Tensor | None = None  # where it is keyed
    first: int = 0  # the place of the first sample in the whole batch, which may be in chunks

    def check_out_dims(self) -> None:
        if isinstance(self.out_dims, int):
            return
        for dim in tree.leaves(self.out_dims):
            if not (dim is None or isinstance(dim, int)):
                raise DimensionError(
                    f"{self._returned()}: out_dims must be an int, None or a pytree of these, got "
                    f"{dim!r}."
                )

    def flat_arguments(self, args: tuple[Any, ...]) -> Samples:
        """The arguments flattened, with dimensions that are there and of one size."""
        if process := steps.replaced(steps.VMAP).get("_process_batched_inputs"):
            batch_size, dims, leaves, spec = process(self.in_dims, args, self.func)
            return leaves, spec, dims, batch_size
        if not isinstance(self.in_dims, (int, tuple)):
            hint = (
                f" For one argument write ({self.in_dims!r},)."
                if isinstance(self.in_dims, (list, dict))
                else ""
            )
            raise DimensionError(
                f"{self._call()}: in_dims must be an int or a tuple that fits the arguments, got "
                f"{type(self.in_dims).__name__}.{hint}"
            )
        if not args:
            raise DimensionError(
                f"{self._call()}: got no positional arguments, so there is nothing to batch."
            )
        leaves, spec = tree.flatten(args)
        dims = tree.broadcast(self.in_dims, spec)
        if dims is None:
            raise DimensionError(
                f"{self._call()}: in_dims don't fit the arguments: in_dims are "
                f"{tree.describe(tree.flatten(self.in_dims)[1])}, the arguments "
                f"{tree.describe(spec)} (* stands for a leaf)."
            )
        sizes = {}
        for i, (leaf, dim) in enumerate(zip(leaves, dims, strict=True)):
            if dim is not None:
                dims[i] = self._in_dim(args, i, leaf, dim)
                sizes[i] = leaf.size(dims[i])
        if not sizes:
            raise DimensionError(
                f"{self._call()}: no argument is batched: at least one in_dim must be an int."
            )
        first, batch_size = next(iter(sizes.items()))
        if any(size != batch_size for size in sizes.values()):
            other = next(i for i, size in sizes.items() if size != batch_size)
            raise DimensionError(
                f"{self._call()}: Expected all tensors to have the same size in the mapped "
                "dimension, but "
                + " and ".join(
                    f"{tree.leaf_name('argument', args, i)} has {sizes[i]} in dim {dims[i]}"
                    for i in (first, other)
                )
                + "."
            )
        return leaves, spec, dims, batch_size

    def whose(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], tensor: Tensor, level: int
    ) -> str:
        """What an error calls a tensor that the function has not made."""
        return whose.words(self.func, args, kwargs, tensor, level)

    def flat_results(self, results: Any, level: int) -> Batch:
        """What the function returned flattened, with the dimensions where the batch's go."""
        leaves, spec = tree.flatten(results)
        prefix = self.out_dims
        if isinstance(results, Tensor) and isinstance(prefix, tuple) and len(prefix) == 1:
            prefix = prefix[0]  # a one-tuple is allowed for a single tensor
        dims = tree.broadcast(prefix, spec)
        if dims is None:
            raise DimensionError(
                f"{self._returned()}: out_dims don't fit the results: out_dims are "
                f"{tree.describe(tree.flatten(self.out_dims)[1])}, the results "
                f"{tree.describe(spec)} (* stands for a leaf)."
            )
        for leaf, dim in zip(leaves, dims, strict=True):
            self._check_out_dim(results, leaf, dim, level)
        return leaves, spec, dims

    def _in_dim(self, args: tuple[Any, ...], i: int, leaf: Any, dim: Any) -> int:
        if not isinstance(dim, int):
            raise DimensionError(
                f"{self._call()}: in_dim {dim!r} of {tree.leaf_name('argument', args, i)} must be "
                "an int or None."
            )
        if not isinstance(leaf, Tensor):
            raise NotTensorError(
                f"{self._call()}: in_dim {dim} was given for "
                f"{tree.leaf_name('argument', args, i)}, a {type(leaf).__name__}: only tensors can "
                "be batched. Give None for it."
            )
        dims = leaf.dim()
        if not -dims <= dim < dims:
            name = tree.leaf_name("argument", args, i)
            raise DimensionError(
                f"{self._call()}: in_dim {dim} is out of range for {name} of shape "
                f"{tuple(leaf.shape)}: it must lie in [{-dims}, {dims - 1}]."
                if dims
                else f"{self._call()}: {name} has no dimensions, so in_dim {dim} is out of range. "
                "Give None for it, or a tensor with a batch dimension."
            )
        return dim % dims

    def _check_out_dim(self, results: Any, leaf: Any, dim: int | None, level: int) -> None:
        if dim is None:
            if isinstance(leaf, Tensor) and _C.is_batched(leaf, level):
                raise DimensionError(
                    f"{self._returned()}: a result whose out_dim is None depends on the batch. "
                    "Give an int for it."
                )
            return
        if not isinstance(leaf, Tensor):
            advice = (
                "A function that only has side effects returns nothing to batch: give "
                "out_dims=None."
                if results is None
                else "Give out_dims=None for it to return it as it is."
            )
            raise NotTensorError(
                f"torchlayers: vmap({tree.name_of(self.func)}): the function must return only "
                f"tensors, got {type(leaf).__name__}. {advice}"
            )
        dims = leaf.dim() + 1
        if not -dims <= dim < dims:
            raise OutDimError(
                f"{self._returned()}: out_dim {dim} is out of range for a result that has {dims} "
                f"dimensions with the batch's: it must lie in [{-dims}, {dims - 1}]."
            )

    def _call(self) -> str:
        return f"torchlayers: vmap({tree.name_of(self.func)}, in_dims={self.in_dims!r})"

    def _returned(self) -> str:
        return f"torchlayers: vmap({tree.name_of(self.func)}, out_dims={self.out_dims!r})"


def _vmap(
    given: Vmap, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[..., Any]
) -> Any:
    steps.replaced(steps.CHUNKS)  # none can be, but refused
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

    def facts() -> dict[str, str]:
        given.check_out_dims()
        leaves, _, dims, batch_size = given.flat_arguments(args)
        return spread.facts(args, leaves) | {
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
    start, size = spread.part(batch_size)
    given = given._replace(first=start)
    if axis_name is not None:
        axis = spread.named(axis_name, batch_size)
        given = given._replace(func=naming_samples(given.func, axis_name, axis))
    with spread.inside(given.randomness, is_checked=is_first):
        results = run(given, (own, spec, dims, size), kwargs)
        flat, result_spec = tree.flatten(results)
        if is_first:
            spread.refuse_captured(own, flat, since)
        out_dims = _dims_of(given.out_dims, result_spec)
        together = [
            spread.put_together(part, dim, batch_size)
            for part, dim in zip(flat, out_dims, strict=True)
        ]
    return tree.unflatten(together, result_spec)


def _vmap_in_chunks(
    given: Vmap,
    samples: Samples,
    kwargs: dict[str, Any],
    run_chunks: Callable[..., list[Any]],
    chunk_size: ChunkSize,
) -> Any:
    leaves, spec, dims, batch_size = samples
    random = RandomState() if given.randomness == "same" else None
    # Found by measuring, sizes may differ between ranks, which have to run as many chunks.
    if isinstance(chunk_size, int) and dtensor.is_sharded(leaves, dims):
        return _vmap_in_shards(given, samples, kwargs, run_chunks, chunk_size, random)

    def run_chunk(start: int, size: int) -> tuple[list[Any], tree.TreeSpec]:
        if random is not None:  # every chunk draws what the first one drew
            random.restore()
        chunk = _narrow(leaves, dims, start, size), spec, dims, size
        return tree.flatten(
            _C.call_vmap_of_leaves(given._replace(first=given.first + start), chunk, kwargs)
        )

    return _join(run_chunks(run_chunk, batch_size, device=_device(leaves)), given.out_dims)


def _vmap_in_shards(
    given: Vmap,
    samples: Samples,
    kwargs: dict[str, Any],
    run_chunks: Callable[..., list[Any]],
    chunk_size: int,
    random: RandomState | None,
) -> Any:
    """The same of a batch that is spread over ranks: so many samples of each rank at a time."""
    leaves, spec, dims, batch_size = samples
    if given.key is not None:
        raise TransformError(
            f"{given._call()}: with randomness='keyed', a batch that is spread over ranks can't "
            "run in chunks of a given size, whose samples are not next to each other. Leave "
            "chunk_size out."
        )
    parts = dtensor.LocalChunks(leaves, dims, batch_size)

    def run_chunk(start: int, size: int) -> tuple[list[Any], tree.TreeSpec]:
        if random is not None:
            random.restore()
        chunk = parts.narrow(start, size), spec, dims, parts.size_of(start, size)
        return tree.flatten(_C.call_vmap_of_leaves(given, chunk, kwargs))

    of_each = -(-chunk_size // parts.ranks)
    results = run_chunks(run_chunk, parts.largest, chunk_size=of_each, device=_device(leaves))
    return _join(results, given.out_dims, parts.join)


def _dims_of(out_dims: Any, spec: tree.TreeSpec) -> list[int | None]:
    """One for each result that a vmap has returned."""
    dims = tree.broadcast(out_dims, spec)
    return list(out_dims) if dims is None else dims  # a one-tuple for a single tensor


def _narrow(leaves: list[Any], dims: list[int | None], start: int, size: int) -> list[Any]:
    return [
        leaf if dim is None else leaf.narrow(dim, start, size)
        for leaf, dim in zip(leaves, dims, strict=True)
    ]


def _device(leaves: list[Any]) -> torch.device:
    return next(leaf.device for leaf in leaves if isinstance(leaf, Tensor))


def _join(
    results: list[tuple[list[Any], tree.TreeSpec]],
    out_dims: Any,
    joined: Callable[[list[Tensor], int], Tensor] = torch.cat,
) -> Any:
    spec = results[0][1]
    remaining = iter(_dims_of(out_dims, spec))

    def join(parts: list[Any]) -> Any:
        dim = next(remaining)
        # None: the result does not depend on the batch, so any chunk's stands for all.
        return parts[0] if dim is None else joined(parts, dim)

    parts = [leaves for leaves, _ in results]
    results.clear()
    return tree.unflatten(chunks.joined(parts, join), spec)
