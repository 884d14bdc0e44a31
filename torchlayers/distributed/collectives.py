"""psum and related collectives along a named axis, on pytrees of tensors.

Each is an operator that passes through the layers, with rules for tangents, cotangents and batching
(csrc/rules/collectives/axes.cpp). NOTE [Named axes].
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchlayers import _C
from torchlayers.core import pytree
from torchlayers.core.errors import AxisError, DimensionError
from torchlayers.distributed.axes import Axis, resolve

if TYPE_CHECKING:
    from torchlayers.distributed.axes import AxisLike

_ops: Any = torch.ops.torchlayers
_ALONG = ("psum", "psum_invariant", "pvary", "pmax")  # in the order of _C.call_along's index


def psum(x: Any, axis: "AxisLike") -> Any:
    """Sum along an axis.

    Differentiates the sum of the results of all samples or ranks, so psum's transpose is psum. If
    they all share one result, which is differentiated once, use :func:`psum_invariant`.

    Over ranks, a pytree's tensors are sent in one collective for each dtype.

    Args:
        x: a tensor or pytree of tensors; a number counts as the same number on each.
        axis: an axis's name, or a DeviceMesh of one dimension; or a tuple of these, for the sum
            along all of them.
    Returns:
        x's structure, with tensors of the same shapes.
    Raises:
        AxisError: no such axis is bound.
    Example:
        >>> from torchlayers.distributed import psum
        >>> share = torchlayers.vmap(lambda x: x / psum(x, "batch"), axis_name="batch")
        >>> share(torch.tensor([1.0, 3.0]))
        tensor([0.2500, 0.7500])

    Source: jax.lax.psum.
    """
    return _reduced("psum", x, resolve(axis, "psum"))


def psum_invariant(x: Any, axis: "AxisLike") -> Any:
    """Sum along an axis, as one value that all share, with a single cotangent.

    For a loss that all ranks compute from one sum, with gradients that are then summed over ranks.
    Its transpose is :func:`pvary`.

    Args, result and errors are those of :func:`psum`.

    Example:
        >>> from torchlayers.distributed import psum_invariant
        >>> slopes = torchlayers.grad(lambda x: psum_invariant(x**2, "batch"))
        >>> torchlayers.vmap(slopes, axis_name="batch")(torch.tensor([1.0, 3.0]))
        tensor([2., 6.])

    Source: JEP 17111, jax.lax.psum_invariant.
    """
    return _reduced("psum_invariant", x, resolve(axis, "psum_invariant"))


def pmean(x: Any, axis: "AxisLike") -> Any:
    """Mean along an axis: :func:`psum` divided by the axis's size.

    Args, result and errors are those of :func:`psum`.

    Example:
        >>> from torchlayers.distributed import pmean
        >>> centred = torchlayers.vmap(lambda x: x - pmean(x, "batch"), axis_name="batch")
        >>> centred(torch.tensor([1.0, 3.0]))
        tensor([-1.,  1.])

    Source: jax.lax.pmean.
    """
    resolved = resolve(axis, "pmean")
    return _mapped(lambda s: s / resolved.size, _reduced("psum", x, resolved))


def pmax(x: Any, axis: "AxisLike") -> Any:
    """Elementwise maximum along an axis; equal largest elements share the gradient.

    Args, result and errors are those of :func:`psum`.

    Example:
        >>> from torchlayers.distributed import pmax
        >>> below = torchlayers.vmap(lambda x: x - pmax(x, "batch"), axis_name="batch")
        >>> below(torch.tensor([1.0, 3.0]))
        tensor([-2.,  0.])

    Source: jax.lax.pmax, which has no derivative in JAX.
    """
    resolved = resolve(axis, "pmax")
    return _map_leaves(lambda t: _along("pmax", t, resolved), x)


def pmin(x: Any, axis: "AxisLike") -> Any:
    """Elementwise minimum along an axis; equal smallest elements share the gradient.

    Args, result and errors are those of :func:`psum`.

    Example:
        >>> from torchlayers.distributed import pmin
        >>> above = torchlayers.vmap(lambda x: x - pmin(x, "batch"), axis_name="batch")
        >>> above(torch.tensor([1.0, 3.0]))
        tensor([0., 2.])

    Source: jax.lax.pmin, which has no derivative in JAX.
    """
    resolved = resolve(axis, "pmin")

    def smallest(t: Tensor) -> Tensor:
        # The order of integers is reversed by ~, without an overflow.
        reverse = torch.neg if t.is_floating_point() else torch.bitwise_not
        result: Tensor = reverse(_along("pmax", reverse(t), resolved))
        return result

    return _map_leaves(smallest, x)


def pvary(x: Any, axis: "AxisLike") -> Any:
    """Marks a value that all samples or ranks share as used separately by each of them, so that its
    gradient is the sum of theirs.

    Args, result and errors are those of :func:`psum`.

    Example:
        >>> from torchlayers.distributed import psum_invariant, pvary
        >>> def loss(weight, x):
        ...     return psum_invariant(pvary(weight, "batch") * x, "batch")
        >>> slopes = torchlayers.vmap(torchlayers.grad(loss), (None, 0), axis_name="batch")
        >>> slopes(torch.tensor(2.0), torch.tensor([1.0, 3.0]))
        tensor([4., 4.])

    Source: JEP 17111, jax.lax.pvary.
    """
    return _together("pvary", x, resolve(axis, "pvary"), _as_tensor)


def all_gather(x: Any, axis: "AxisLike", dim: int = 0, *, tiled: bool = False) -> Any:
    """Stacks the values of all samples or ranks. Its transpose is :func:`psum_scatter`.

    Args:
        x, axis: as for :func:`psum`; of a tuple of axes, the last varies fastest.
        dim: the position of the new dimension.
        tiled: whether to concatenate the values along ``dim`` instead.
    Returns:
        x's structure, each tensor with an additional dimension of the axis's size.
    Raises:
        AxisError: no such axis is bound.
        DimensionError: x has no such dimension.
    Example:
        >>> from torchlayers.distributed import all_gather
        >>> scores = torchlayers.vmap(lambda x: x * all_gather(x, "batch"), axis_name="batch")
        >>> scores(torch.tensor([1.0, 2.0]))
        tensor([[1., 2.],
                [2., 4.]])

    Source: jax.lax.all_gather.
    """
    if isinstance(axis, tuple):
        resolve(axis, "all_gather")
        for i, along in enumerate(reversed(axis)):
            x = all_gather(x, along, dim, tiled=tiled or i > 0)
        return x
    one = _of_one(axis, "all_gather")

    def gather(t: Tensor) -> Tensor:
        at = _dim("all_gather", t, dim, more=not tiled)
        gathered: Tensor = _ops.all_gather.default(t, at, one.size, one.keys[0])
        return gathered.flatten(at, at + 1) if tiled else gathered

    return _map_leaves(gather, x)


def psum_scatter(x: Any, axis: "AxisLike", dim: int = 0, *, tiled: bool = False) -> Any:
    """Sum along an axis, of which each gets one part. Its transpose is :func:`all_gather`.

    Args:
        x, axis: as for :func:`psum`; x has one part for each sample or rank.
        dim: the dimension of the parts, which the result does not have.
        tiled: whether ``dim`` is split into equal parts of any size instead, and stays.
    Returns:
        x's structure.
    Raises:
        AxisError: no such axis is bound.
        DimensionError: ``dim`` does not fit the axis.
    Example:
        >>> from torchlayers.distributed import psum_scatter
        >>> part = torchlayers.vmap(lambda x: psum_scatter(x, "batch"), axis_name="batch")
        >>> part(torch.tensor([[1.0, 2.0], [30.0, 40.0]]))
        tensor([31., 42.])

    Source: jax.lax.psum_scatter.
    """
    if isinstance(axis, tuple):
        resolve(axis, "psum_scatter")
        for i, along in enumerate(axis):
            x = psum_scatter(x, along, dim, tiled=tiled or i < len(axis) - 1)
        return x
    one = _of_one(axis, "psum_scatter")

    def scatter(t: Tensor) -> Tensor:
        at = _dim("psum_scatter", t, dim)
        fits = t.size(at) % one.size == 0 if tiled else t.size(at) == one.size
        if not fits:
            raise DimensionError(
                f"torchlayers: psum_scatter: dimension {dim} of a tensor of shape "
                f"{tuple(t.shape)} can't be split over axis {one.name!r}: its size must be "
                + (
                    f"a multiple of {one.size}."
                    if tiled
                    else f"{one.size}, or with tiled=True a multiple of that."
                )
            )
        parts = t
        if tiled:
            parts = t.reshape(*t.shape[:at], one.size, t.size(at) // one.size, *t.shape[at + 1 :])
        scattered: Tensor = _ops.psum_scatter.default(parts, at, one.size, one.keys[0])
        return scattered

    return _map_leaves(scatter, x)


def all_to_all(x: Any, axis: "AxisLike", split_dim: int, join_dim: int) -> Any:
    """Splits x along ``split_dim``, sends a part to each, and joins the parts received.

    Its transpose splits along ``join_dim`` and joins along ``split_dim``.

    Args:
        x, axis: as for :func:`psum`.
        split_dim: the dimension that is split, into parts of equal size.
        join_dim: the dimension along which received parts are joined, in the order of senders.
    Returns:
        x's structure.
    Raises:
        AxisError: no such axis is bound.
        DimensionError: ``split_dim`` does not fit the axis.
    Example:
        >>> from torchlayers.distributed import all_to_all
        >>> exchanged = torchlayers.vmap(lambda x: all_to_all(x, "batch", 0, 0), axis_name="batch")
        >>> exchanged(torch.tensor([[1, 2], [30, 40]]))
        tensor([[ 1, 30],
                [ 2, 40]])

    Source: jax.lax.all_to_all, tiled.
    """
    one = _of_one(axis, "all_to_all")

    def exchange(t: Tensor) -> Tensor:
        split, join = (_dim("all_to_all", t, dim) for dim in (split_dim, join_dim))
        if t.size(split) % one.size:
            raise DimensionError(
                f"torchlayers: all_to_all: dimension {split_dim} of a tensor of shape "
                f"{tuple(t.shape)} can't be split over axis {one.name!r} into {one.size} equal "
                "parts."
            )
        exchanged: Tensor = _ops.all_to_all.default(t, split, join, one.size, one.keys[0])
        return exchanged

    return _map_leaves(exchange, x)


def ppermute(x: Any, axis: "AxisLike", perm: Sequence[tuple[int, int]]) -> Any:
    """Sends values along an axis by (from, to) pairs; a place that receives nothing gets zeros.

    Args:
        x, axis: as for :func:`psum`.
        perm: pairs of indices on the axis. Each index may send once and receive once.
    Returns:
        x's structure, with tensors of the same shapes.
    Raises:
        AxisError: no such axis is bound, or the pairs are invalid.
    Example:
        >>> from torchlayers.distributed import ppermute
        >>> to_the_right = lambda x: ppermute(x, "batch", [(0, 1), (1, 2)])
        >>> right = torchlayers.vmap(to_the_right, axis_name="batch")
        >>> right(torch.tensor([1, 2, 3]))
        tensor([0, 1, 2])

    Source: jax.lax.ppermute.
    """
    one = _of_one(axis, "ppermute")
    sources = [-1] * one.size
    for source, to in perm:
        is_place = 0 <= source < one.size and 0 <= to < one.size
        if not is_place or sources[to] >= 0 or source in sources:
            raise AxisError(
                f"torchlayers: ppermute: perm={list(perm)} must be pairs of indices on axis "
                f"{one.name!r} of size {one.size}, each index at most once as source and at most "
                "once as target."
            )
        sources[to] = source
    return _map_leaves(lambda t: _ops.ppermute.default(t, sources, one.keys[0]), x)


def _map_leaves(function: Callable[[Tensor], Any], x: Any) -> Any:
    return _mapped(lambda t: function(_as_tensor(t)), x)


def _as_tensor(t: Any) -> Tensor:
    return t if isinstance(t, Tensor) else torch.tensor(t)


def _mapped(function: Callable[[Any], Any], x: Any) -> Any:
    if isinstance(x, Tensor):
        return function(x)
    leaves, spec = pytree.flatten(x)
    return pytree.unflatten([function(leaf) for leaf in leaves], spec)


def _along(name: str, t: Tensor, axis: Axis) -> Tensor:
    for key in axis.keys:
        result = _C.call_along(_ALONG.index(name), t, key)
        t = getattr(_ops, name).default(t, key) if result is None else result
    return t


def _reduced(name: str, x: Any, axis: Axis) -> Any:
    return _together(name, x, axis, lambda number: number * axis.size)


def _together(name: str, x: Any, axis: Axis, of_number: Callable[[Any], Any]) -> Any:
    """Applies the operator to each tensor in x; over ranks, to all of them in one call."""
    if isinstance(x, Tensor):
        return _along(name, x, axis)
    leaves, spec = pytree.flatten(x)
    leaves = [leaf if isinstance(leaf, Tensor) else of_number(leaf) for leaf in leaves]
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    tensors = [leaves[i] for i in places]
    for key in axis.keys if tensors else ():
        if key.startswith("#"):  # the samples of a vmap
            tensors = [getattr(_ops, name).default(tensor, key) for tensor in tensors]
        else:
            tensors = getattr(_ops, name + "_each").default(tensors, key)
    for i, tensor in zip(places, tensors, strict=True):
        leaves[i] = tensor
    return pytree.unflatten(leaves, spec)


def _of_one(axis: "AxisLike", api: str) -> Axis:
    if isinstance(axis, tuple):
        raise AxisError(f"torchlayers: {api}: an axis is a name or a DeviceMesh here, not a tuple.")
    resolved = resolve(axis, api)
    if len(resolved.keys) > 1:
        raise AxisError(
            f"torchlayers: {api}: the samples of {resolved.name!r} are spread over ranks, in parts "
            "that may differ in size: only psum, pmean, pmax, pmin and axis_index support such an "
            "axis."
        )
    return resolved


def _dim(api: str, t: Tensor, dim: int, *, more: bool = False) -> int:
    dims = t.dim() + more
    if not -dims <= dim < dims:
        raise DimensionError(
            f"torchlayers: {api}: dimension {dim} is out of range for a tensor of shape "
            f"{tuple(t.shape)}: it must lie in [{-dims}, {dims - 1}]."
        )
    return dim % dims
