"""Sparse matrices among the results of a function, as dicts of their values and their pattern."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from torchlayers.compiler.capture.errors import name_of
from torchlayers.core import pytree
from torchlayers.core.errors import TransformError
from torchlayers.transforms.sparse.entries import SparseEntries


def with_dense_results(func: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that returns a dict for each sparse matrix in func's result.

    It has the dense ``values``, whose order is that of the pattern: ``indices``, of shape (2, nnz),
    or ``crow_indices`` and ``col_indices`` of a compressed matrix.
    """

    @functools.wraps(func)
    def dense(*args: Any, **kwargs: Any) -> Any:
        return pytree.map_leaves(_as_dict, func(*args, **kwargs), is_leaf=_is_sparse)

    dense.__name__ = name_of(func)
    if isinstance(func, nn.Module):  # whose __call__ names no arguments
        dense.__signature__ = inspect.signature(func.forward)  # type: ignore[attr-defined]
    return dense


def _is_sparse(value: Any) -> bool:
    return isinstance(value, SparseEntries) or (
        isinstance(value, Tensor) and value.layout is not torch.strided
    )


def _as_dict(leaf: Any) -> Any:
    if not _is_sparse(leaf):
        return leaf
    if isinstance(leaf, SparseEntries):
        return {"values": leaf.values(), **leaf.index_tensors()}
    if leaf.layout is torch.sparse_coo:
        samples = leaf.shape[:-2]  # one pattern for all of them
        values = leaf.values().unflatten(0, (*samples, -1)) if samples else leaf.values()
        return {"values": values, "indices": leaf.indices()[-2:, : values.shape[-1]]}
    if leaf.layout is torch.sparse_csr:
        indices = {"crow_indices": leaf.crow_indices(), "col_indices": leaf.col_indices()}
        return {"values": leaf.values(), **indices}
    raise TransformError(
        f"torchlayers: export: the result has the layout {leaf.layout}, which no target knows. "
        "Return its values and indices."
    )
