"""Sparse Jacobians and Hessians: a product for each colour, decompressed into sparse matrices.

    J (m, n)  --products by columns: J @ seed, of size m-->  \\
              --products by rows:    seed @ J, of size n-->  /  --read-->  the entries' values

A seed has a 1 for each column, or row, of its colour. The products run under vmap, in chunks.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from torch import Tensor

from torchlayers import _C
from torchlayers.core import pytree, tracing_state
from torchlayers.core.annotations import Randomness
from torchlayers.core.argnums import Argnums, are_numbers, by_names
from torchlayers.core.errors import StructureError
from torchlayers.core.layer_stack import transformed
from torchlayers.remat.budget import budgeted
from torchlayers.transforms.batching_options import BatchingOptions
from torchlayers.transforms.grad import GradSpec, by_argnums
from torchlayers.transforms.jacobian.basis import refuse_complex
from torchlayers.transforms.jacobian.outputs import with_dense_outputs
from torchlayers.transforms.sparse.assembly import Layout, blocks_of, check_layout
from torchlayers.transforms.sparse.bookkeeping import bookkeeping
from torchlayers.transforms.sparse.check import check_product
from torchlayers.transforms.sparse.coloring import Coloring
from torchlayers.transforms.sparse.detection import detect_hessian, detect_jacobian
from torchlayers.transforms.sparse.entries import matrix
from torchlayers.transforms.sparse.kept_colorings import KeptColorings
from torchlayers.transforms.sparse.pattern import PatternLike, SparsityPattern
from torchlayers.transforms.sparse.products import (
    Products,
    as_constant,
    column_product,
    products_by_columns,
    products_by_rows,
    row_product,
)

__all__ = ["Sparse", "sparse_hessian", "sparse_jacobian"]

# True to detect the pattern; or a pattern, in any form; or a colouring.
Sparse: TypeAlias = bool | Coloring | PatternLike


def sparse_jacobian(
    api: str,
    func: Callable[..., Any],
    argnums: Argnums | None,
    sparse: Sparse,
    layout: str,
    options: BatchingOptions,
    *,
    has_aux: bool,
    memory_budget: int | float | None = None,
    randomness: Randomness = "error",
) -> Callable[..., Any]:
    """jacfwd or jacrev with sparse=."""
    by_rows = api == "jacrev"
    colorings = KeptColorings(
        api,
        sparse,
        partial(detect_jacobian, has_aux=has_aux, api=api),
        "rows" if by_rows else "columns",
        ("rows", "columns", "bidirectional", "star", "acyclic"),
    )
    return _Transform(
        api, colorings, layout, options, has_aux, by_rows, False, memory_budget, randomness
    ).transform(func, argnums)


def sparse_hessian(
    func: Callable[..., Any],
    argnums: Argnums,
    sparse: Sparse,
    layout: str,
    options: BatchingOptions,
    memory_budget: int | float | None,
) -> Callable[..., Any]:
    """hessian with sparse=: the Jacobian of the gradient, which is symmetric."""
    detect = partial(detect_hessian, api="hessian")
    colorings = KeptColorings("hessian", sparse, detect, "star", ("star", "acyclic", "columns"))
    return _Transform(
        "hessian", colorings, layout, options, False, False, True, memory_budget, "error"
    ).transform(func, argnums)


@dataclass(frozen=True)
class _Transform:
    """The options of a sparse derivative.

    Attributes:
        api: its name.
        colorings: the colourings of its calls.
        layout, has_aux, randomness: as for the user.
        options: chunks, and whether to check.
        by_rows: whether products of a symmetric matrix are by rows, and not by columns.
        of_gradient: whether the function is the gradient of func, and not func.
        memory_budget: func's.
    """

    api: str
    colorings: KeptColorings
    layout: Any
    options: BatchingOptions
    has_aux: bool
    by_rows: bool
    of_gradient: bool
    memory_budget: int | float | None
    randomness: Randomness

    def __post_init__(self) -> None:
        check_layout(self.api, self.layout)
        if self.options.mesh is not None:
            raise ValueError(
                f"torchlayers: {self.api}: mesh= and sparse= can't be combined. Leave one out."
            )
        if self.options.check not in (True, False, "first"):
            raise ValueError(
                f"torchlayers: {self.api}: with sparse=, check must be True or False, got "
                f"{self.options.check!r}."
            )

    def transform(self, func: Callable[..., Any], argnums: Argnums | None) -> Callable[..., Any]:
        if argnums is not None and not are_numbers(argnums):
            return by_names(self.api, self.transform, func, argnums)
        dense = with_dense_outputs(func, self.has_aux)
        within = budgeted(self.api, dense, self.memory_budget)

        def wrapper(*args: Any) -> Any:
            if tracing_state.is_tracing() or tracing_state.is_exporting():
                tracing_state.refuse(self.api, sparse=True)
            refuse_complex(self.api, "argument", args)
            places = argnums if argnums is not None else tuple(range(len(args)))
            return self.evaluate(within, places, args)

        return transformed(func, wrapper)

    def evaluate(
        self, func: Callable[..., Any], argnums: int | tuple[int, ...], args: tuple[Any, ...]
    ) -> Any:
        """The derivative at these arguments."""
        places = pytree.positions(self.api, argnums, len(args))
        primals, primal_spec = pytree.flatten(pytree.pick(args, places))
        coloring = self.colorings.coloring_for(func, args, argnums, places)
        differentiated = func
        if self.of_gradient:
            spec = GradSpec(self.api, func, argnums, False)

            def differentiated(*args: Any) -> Any:
                return _C.call_grad(spec, args, {})[0]

        products = self.products(coloring, differentiated, argnums, args)
        widths = [primal.numel() for primal in primals]
        heights = [output.numel() for output in products.outputs]
        self._check_shape(coloring, sum(heights), sum(widths))
        with bookkeeping():
            places_of_values = coloring.places
            sizes = tuple(heights), tuple(widths)
            if sizes not in coloring.blocks:
                coloring.blocks[sizes] = blocks_of(coloring.pattern, *sizes)
            blocks = coloring.blocks[sizes]
            _prepare(blocks, self.layout)
        places_of_values = as_constant(places_of_values).to(primals[0].device)
        values = products.flat().index_select(0, places_of_values)
        values = _solved(values, coloring)
        if self.options.check is True:
            by_rows = coloring.mode == "rows" or (coloring.is_symmetric and self.by_rows)
            product = (row_product if by_rows else column_product)(
                self.api, differentiated, argnums, args, self.has_aux
            )
            check_product(self.api, coloring.pattern, values, product, by_rows=by_rows)
        rows = []
        for line, output in zip(blocks, products.outputs, strict=True):
            parts = [(pattern, _part(values, inside, output)) for pattern, inside in line]
            if self.layout == "dense":
                leaves = [
                    _dense_block(pattern, part).view(output.shape + primal.shape)
                    for (pattern, part), primal in zip(parts, primals, strict=True)
                ]
            else:
                leaves = [matrix(self.api, pattern, part, self.layout) for pattern, part in parts]
            rows.append(by_argnums(pytree.unflatten(leaves, primal_spec), argnums))
        jacobian = pytree.unflatten(rows, products.spec)
        return (jacobian, products.aux) if self.has_aux else jacobian

    def products(
        self,
        coloring: Coloring,
        func: Callable[..., Any],
        argnums: int | tuple[int, ...],
        args: tuple[Any, ...],
    ) -> Products:
        """The products of all colours."""
        columns, rows = coloring.column_colors, coloring.row_colors
        if coloring.is_symmetric and self.by_rows:
            columns, rows = None, columns
        run = partial(self.options.run, label=self.api)
        call = self.api, run, func, argnums, args, self.has_aux
        with bookkeeping():
            of_columns = coloring.num_columns
            of_rows = of_columns if coloring.is_symmetric else coloring.num_rows
        products = None
        if columns is not None:
            products = products_by_columns(*call, columns, of_columns, self.randomness)
        if rows is not None:
            by_rows = products_by_rows(*call, rows, of_rows)
            products = by_rows if products is None else products.joined(by_rows)
        assert products is not None
        return products

    def _check_shape(self, coloring: Coloring, height: int, width: int) -> None:
        if coloring.pattern.shape != (height, width):
            raise StructureError(
                f"torchlayers: {self.api}: the pattern has shape {coloring.pattern.shape}, but the "
                f"{'Hessian' if self.of_gradient else 'Jacobian'} has {height} rows (elements of "
                f"the outputs) and {width} columns (elements of the differentiated arguments)."
            )


def _solved(values: Tensor, coloring: Coloring) -> Tensor:
    """The entries' values from what was read; they differ for an acyclic colouring."""
    reading = coloring.reading
    for sign, sources, targets in reading.steps:
        added = values.index_select(0, sources.to(values.device))
        values = values.index_add(0, targets.to(values.device), added, alpha=sign)
    if reading.unknown_of_entry is not None:
        values = values.index_select(0, reading.unknown_of_entry.to(values.device))
    return values


def _prepare(blocks: list[list[tuple[SparsityPattern, Tensor | None]]], layout: Layout) -> None:
    """Computes the indices of a layout, once, where no capture or layer sees it."""
    for pattern, _ in itertools.chain.from_iterable(blocks):
        if layout == "coo":
            _ = pattern.indices
        elif layout == "csr":
            _ = pattern.row_starts
        elif layout == "dense":
            _ = pattern.flat_indices


def _part(values: Tensor, inside: Tensor | None, output: Tensor) -> Tensor:
    """A block's values, in the dtype of its output."""
    if inside is not None:
        values = values.index_select(0, inside.to(values.device))
    return values.to(output.dtype)


def _dense_block(pattern: SparsityPattern, values: Tensor) -> Tensor:
    """The flattened dense matrix with these values, in the pattern's order."""
    height, width = pattern.shape
    places = as_constant(pattern.flat_indices).to(values.device)
    return values.new_zeros(height * width).index_copy_(0, places, values)
