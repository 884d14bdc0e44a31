"""The layer of laplacian: value, Jacobian and Laplacian go through each operator together.

For ``y = g(x, ...)``, with the Jacobian's rows J[i] (one a direction) and weights W[i, j]:

    rows:       J_y[i] = Dg J[i]
    Laplacian:  L_y    = Dg L + sum over i, j of W[i, j] D2g[J[i], J[j]]

so L stays one column, however many directions there are. W is the identity for the Laplacian.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchlayers.core.torch_private import fake_mode
from torchlayers.transforms.laplacian.rows import (
    Diagonal,
    Rows,
    aligned,
    converted,
    dense,
)
from torchlayers.transforms.layers.layer import Layer
from torchlayers.transforms.layers.layer_tensor import LayerTensor
from torchlayers.transforms.layers.operator_call import OperatorCall
from torchlayers.transforms.vmap import vmap

# The squares of so many rows are added one by one, without a tensor of all squares.
_FEW = 4


class Parts:
    """The derivatives of a value of shape S.

    Attributes:
        rows: the Jacobian, of shape ``(k, *S)``. It is computed when it is first read: the
            Laplacian does not need the Jacobian behind the last nonlinear operator. In a captured
            function it is computed at once: a loop body that reads it may run uncaptured.
        laplacian: of shape S; None for zeros.
    """

    __slots__ = ("_deferred", "_rows", "laplacian")

    def __init__(self, rows: Rows | Callable[[], Tensor], laplacian: Tensor | None) -> None:
        self._rows: Rows | None = None
        self._deferred: Callable[[], Tensor] | None = None
        if isinstance(rows, (Tensor, Diagonal)):
            self._rows = rows
        elif fake_mode() is not None:
            self._rows = rows()
        else:
            self._deferred = _in_this_grad_mode(rows)
        self.laplacian = laplacian

    @property
    def rows(self) -> Rows:
        if self._rows is None:
            assert self._deferred is not None
            self._rows, self._deferred = self._deferred(), None
        return self._rows

    @property
    def are_dense(self) -> bool:
        """Whether the rows are, or will be, one tensor."""
        return not isinstance(self._rows, Diagonal)


def _in_this_grad_mode(make: Callable[[], Tensor]) -> Callable[[], Tensor]:
    is_enabled = torch.is_grad_enabled()

    def make_in_mode() -> Tensor:
        with torch.set_grad_enabled(is_enabled):
            return make()

    return make_in_mode


class ForwardLaplacian(Layer):
    """Propagates value, Jacobian and weighted Laplacian; see this module's docstring.

    Args:
        weights: W: None for the identity, a vector for a diagonal matrix, or a symmetric matrix.
        is_paired: W is 1/2 between row i and row i + k/2, and 0 elsewhere.
    """

    name = "laplacian"

    def __init__(self, weights: Tensor | None = None, is_paired: bool = False) -> None:
        self.weights = weights
        self.is_paired = is_paired

    def result(
        self, value: Tensor, rows: Rows | Callable[[], Tensor], laplacian: Tensor | None
    ) -> LayerTensor:
        """A tensor of the layer; the derivatives have the value's dtype."""
        if isinstance(rows, (Tensor, Diagonal)):
            rows = converted(rows, value.dtype)
        if laplacian is not None and laplacian.dtype != value.dtype:
            laplacian = laplacian.to(value.dtype)
        return self.tensor(value, Parts(rows, laplacian))

    def _rewritten_parts(
        self, before: Any, after: LayerTensor, with_history: Callable[[Tensor, Tensor], Tensor]
    ) -> Any:
        parts: Parts | None = after.parts
        if before is None or parts is None:
            return parts
        value, new = after.value, parts  # of the same shape as before

        def rows() -> Tensor:
            return with_history(dense(before.rows, value), dense(new.rows, value))

        laplacian = parts.laplacian
        if before.laplacian is not None:
            zeros = torch.zeros_like(before.laplacian)
            laplacian = with_history(before.laplacian, zeros if laplacian is None else laplacian)
        return Parts(rows, laplacian)

    def _parts_as_tree(self, parts: Parts | None) -> Any:
        if parts is None:
            return None
        rows = parts.rows
        if isinstance(rows, Diagonal):  # is_one changes from step to step
            rows = rows.replaced(rows.scale)
        return rows, parts.laplacian

    def _parts_of_tree(self, tree: Any) -> Parts | None:
        return None if tree is None else Parts(*tree)

    def weighted(self, rows: Tensor) -> Tensor:
        """W times the rows."""
        if self.is_paired:
            return 0.5 * torch.cat(rows.chunk(2)[::-1])
        if self.weights is None:
            return rows
        if self.weights.dim() == 1:
            return rows * self.weights.view(-1, *[1] * (rows.dim() - 1))
        product: Tensor = torch.tensordot(self.weights.to(rows.dtype), rows, 1)
        return product

    def squares(self, rows: Rows, shape: torch.Size) -> Tensor:
        """The sum of W[i, j] J[i] J[j], elementwise, for a value of this shape."""
        if not isinstance(rows, Diagonal):
            if self.is_paired:
                left, right = rows.chunk(2)
                return (left * right).sum(0)
            if self.weights is None and 0 < len(rows) <= _FEW:
                first, *rest = rows.unbind()
                total = first * first
                for row in rest:
                    total = torch.addcmul(total, row, row)
                return total
            return (rows * self.weighted(rows)).sum(0)
        squared = rows.scale * rows.scale
        if self.weights is None:
            return squared
        weights = self.weights if self.weights.dim() == 1 else self.weights.diagonal()
        return squared * weights[rows.start : rows.start + squared.numel()].view(shape)

    def products(self, left: Tensor, right: Tensor, ndim: int) -> Tensor:
        """The sum of W[i, j] A[i] B[j], elementwise, with the rows broadcast to ndim dimensions."""
        return (aligned(left, ndim) * aligned(self.weighted(right), ndim)).sum(0)


class Call(OperatorCall):
    """A call of an operator, by the derivatives of the tensors that depend on x."""

    def rows(self) -> list[Tensor]:
        return [dense(x.parts.rows, x.value) for x in self.operands]

    def laplacians(self) -> list[Tensor] | None:
        """Their Laplacians; None if all are zero."""
        laplacians = [x.parts.laplacian for x in self.operands]
        if all(laplacian is None for laplacian in laplacians):
            return None
        return [
            torch.zeros_like(value) if laplacian is None else laplacian
            for laplacian, value in zip(laplacians, self.values, strict=True)
        ]


def on_rows(func: Callable[..., Any], *rows: Tensor, out_dims: Any = 0) -> Any:
    """func of one row of each, for all rows at once."""
    return vmap(func, out_dims=out_dims)(*rows)


def is_followed(x: Any) -> bool:
    """Whether an argument is a tensor that depends on the input."""
    return isinstance(x, LayerTensor) and x.parts is not None


def plus(left: Tensor | None, right: Tensor | None) -> Tensor | None:
    """The sum; None stands for zeros."""
    if left is None or right is None:
        return right if left is None else left
    return left + right
