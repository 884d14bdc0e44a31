"""Sparsity detection: which inputs each output of a function depends on.

A layer is entered in which each tensor carries index sets; the inputs get those of one index each;
the function runs; its results' sets are the rows of the pattern. The rules of operators are in
rules/.
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchlayers.core import pytree
from torchlayers.core.errors import DtypeError, NotTensorError, instead
from torchlayers.transforms.grad import grad
from torchlayers.transforms.sparse.bookkeeping import bookkeeping
from torchlayers.transforms.sparse.detection.by_vjp import Detector
from torchlayers.transforms.sparse.detection.index_sets import IndexSets, entries
from torchlayers.transforms.sparse.detection.layer import Sparsity, is_differentiable
from torchlayers.transforms.sparse.detection.observer import observer
from torchlayers.transforms.sparse.detection.trial_run import trial_run
from torchlayers.transforms.sparse.pattern import SparsityPattern

__all__ = ["detect_hessian", "detect_jacobian"]


def detect_jacobian(
    func: Callable[..., Any],
    args: tuple[Any, ...],
    argnums: int | tuple[int, ...] = 0,
    *,
    local: bool = False,
    has_aux: bool = False,
    api: str = "sparsity",
) -> SparsityPattern:
    """The pattern of func's Jacobian. See :func:`torchlayers.sparsity`.

    Args:
        func, args, argnums, local, has_aux: as there.
        api: the caller's name in errors.
    """
    # At the first call: a program without one need not wait for the rules.
    from torchlayers.transforms.sparse.detection import rules as rules

    places = pytree.positions(api, argnums, len(args))
    leaves = [leaf for place in places for leaf in pytree.leaves(args[place])]
    _check_inputs(api, args, places, leaves)
    width = sum(leaf.numel() for leaf in leaves)
    layer = Detector(width, local)

    def outputs_of(*inputs: Any) -> Any:
        result = func(*inputs)
        output = pytree.split_aux(api, result)[0] if has_aux else result
        pytree.check_outputs(api, pytree.leaves(output))
        return output

    with observer.during(), trial_run():
        values, sets = layer(outputs_of)(args, places)
    _check_outputs(api, pytree.leaves(values))
    _warn_of_reads(api, layer)
    with bookkeeping():
        return _pattern(pytree.leaves(values), sets, width, tuple(layer.unknown))


def detect_hessian(
    func: Callable[..., Any],
    args: tuple[Any, ...],
    argnums: int | tuple[int, ...] = 0,
    *,
    local: bool = False,
    has_aux: bool = False,
    api: str = "sparsity",
) -> SparsityPattern:
    """The pattern of the Hessian of func, whose output is a scalar, made symmetric."""
    gradient = grad(func, argnums, has_aux=has_aux)
    pattern = detect_jacobian(gradient, args, argnums, local=local, has_aux=has_aux, api=api)
    with bookkeeping():
        return pattern | pattern.T


def _pattern(
    values: list[Tensor],
    sets_of_values: list[IndexSets | None],
    width: int,
    unknown: tuple[str, ...],
) -> SparsityPattern:
    rows, cols, height = [], [], 0
    for value, sets in zip(values, sets_of_values, strict=True):
        if sets is not None and is_differentiable(value):
            row, col = entries(sets)
            is_input = col < width  # not the mark
            rows.append(row[is_input] + height)
            cols.append(col[is_input])
        height += value.numel()
    none = [torch.zeros(0, dtype=torch.int64)]
    return SparsityPattern.from_coo(
        torch.cat(rows or none), torch.cat(cols or none), (height, width), unknown
    )


def _check_inputs(
    api: str, args: tuple[Any, ...], places: tuple[int, ...], leaves: list[Any]
) -> None:
    for i, leaf in enumerate(leaves):
        name = pytree.leaf_name("argument", args, i, places)
        if not isinstance(leaf, Tensor):
            raise NotTensorError(
                f"torchlayers: {api}: {name} must be a tensor, got {type(leaf).__name__}. Convert "
                f"it to a tensor, or {instead(api)}."
            )
        if not leaf.is_floating_point():
            raise DtypeError(
                f"torchlayers: {api}: {name} must be floating-point and real, got {leaf.dtype}. "
                f"Convert it, or {instead(api)}."
            )


def _check_outputs(api: str, values: list[Any]) -> None:
    for value in values:
        if value.is_complex():
            raise DtypeError(
                f"torchlayers: {api}: the output must be real, got {value.dtype}. Return "
                "torch.view_as_real of it."
            )


def _warn_of_reads(api: str, layer: Sparsity) -> None:
    if layer.reads:
        warnings.warn(
            f"torchlayers: {api}: the pattern holds only for inputs that take the same path "
            "through the function, which reads values that depend on them (item(), `if x > 0`): "
            f"{'; '.join(layer.reads)}",
            stacklevel=4,
        )
