"""The structure of an operator without a rule, or of an autograd.Function, from its vjp.

The vjp is linear in the cotangent. So a layer inside, whose inputs are the cotangent's elements,
finds which elements of the result each element of an operand gets a gradient from: the transpose
of what is wanted. Operands have the mark of values that vary, so that the structure holds for all
of their values. For a Function, this is the structure of its backward, which says what its
derivative is, and not of its forward.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchlayers.core import pytree
from torchlayers.transforms.sparse.bookkeeping import bookkeeping
from torchlayers.transforms.sparse.detection.index_sets import IndexSets, entries, singletons
from torchlayers.transforms.sparse.detection.layer import (
    Sparsity,
    is_differentiable,
    plain_value,
)
from torchlayers.transforms.vjp import vjp


class _OfCotangent(Sparsity):
    """Its inputs are a cotangent's elements; the operands vary, but are no inputs."""

    def inputs(  # type: ignore[override]
        self, operands: Sequence[Tensor], cotangents: Sequence[Tensor]
    ) -> tuple[Any, dict[str, Any]]:
        def varying(x: Tensor) -> Tensor:
            with bookkeeping():
                ids = torch.full(x.shape, self.count + 1)
            return self.tensor(x, IndexSets(ids, self.table))

        wrapped, first = [], 0
        for cotangent in cotangents:
            with bookkeeping():
                sets = singletons(cotangent.shape, first, self.table)
            wrapped.append(self.tensor(cotangent, sets))
            first += cotangent.numel()
        return ([varying(x) for x in operands], wrapped), {}


class Detector(Sparsity):
    """The layer of sparsity."""

    name = "sparsity"

    def structure_of(
        self, func: Callable[..., Any], operands: Sequence[Tensor], results: Sequence[Tensor]
    ) -> list[IndexSets] | None:
        """Which elements of func's results each element of its operands affects.

        Args:
            func: takes the operands; returns a pytree of tensors.
            operands: floating-point or complex tensors, of the layers below, and then others.
            results: func's results that have derivatives.
        Returns:
            For each operand of the first kind, for each of its elements, the positions in the
            flattened results, and a mark; None if the vjp can't be had, or calls unknown operators
            itself.
        """
        differentiated = [x for x in operands if is_differentiable(x)]
        count = sum(x.numel() for x in results)
        layer = _OfCotangent(count, is_local=False)

        def pulled(operands: Sequence[Tensor], cotangents: Sequence[Tensor]) -> Any:
            count = len(differentiated)

            def differentiable(*chosen: Tensor) -> list[Tensor]:
                leaves = pytree.leaves(func(*chosen, *operands[count:]))
                return [x for x in leaves if isinstance(x, Tensor) and is_differentiable(x)]

            _, pull = vjp(differentiable, *operands[:count])
            return list(pull([*cotangents]))

        try:
            values, sets = layer(pulled)(operands, _nonzero(results))
        except Exception:  # whatever the user's backward raises
            return None
        if layer.unknown or layer.reads:
            return None
        with bookkeeping():
            if not all(_is_linear(*pair, layer) for pair in zip(values, sets, strict=True)):
                return None
            none = IndexSets(torch.zeros((), dtype=torch.int64), layer.table)
            return [
                none.expand(x.shape) if is_dependent is None else is_dependent
                for x, is_dependent in zip(differentiated, sets, strict=True)
            ]


def _nonzero(results: Sequence[Tensor]) -> list[Tensor]:
    return [torch.full_like(x, 1 + 1 / (2 + i)) for i, x in enumerate(results)]


def _is_linear(value: Tensor, sets: IndexSets | None, layer: Sparsity) -> bool:
    """Whether elements that depend on no cotangent are zero, as those of a linear function are.

    Others were computed without the layer, such as by NumPy.
    """
    known = plain_value(value)
    if known is None:
        return False
    if sets is None:
        return not bool((known != 0).any())
    sizes = sets.table.sizes.clone()
    rows, members = entries(IndexSets(torch.arange(sets.table.size), sets.table))
    sizes.index_add_(0, rows, -(members == layer.count).long())
    return not bool((known[sizes[sets.ids] == 0] != 0).any())
