"""Counts the costs of a derivative in each mode, on graphs captured without computing anything."""

import contextlib
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from torchlayers import _C
from torchlayers.compiler.capture.record import record
from torchlayers.compiler.costs import Costs, costs
from torchlayers.compiler.jacobian.differentiated import DifferentiatedFunction
from torchlayers.core import pytree
from torchlayers.core.device import CPU, device_rates, free_memory
from torchlayers.core.errors import message_of
from torchlayers.core.html_table import html_lines, html_table
from torchlayers.core.tensors.shape_dtype import ShapeDtypeStruct, fake_tensors
from torchlayers.core.text_table import aligned
from torchlayers.core.torch_private import dispatch_modes
from torchlayers.transforms.sparse.coloring import Coloring

# Seconds of a call, and of each operator in it: what layers, vmap and Python take, measured on a
# CPU (benchmarks/jacobians.py). In forward mode the operators of the function itself run under
# vmap, too, and those of a Hessian under two layers more; in sparse mode the products are set up
# and read.
_OF_CALL = {
    "jacobian": {"forward": 6e-5, "reverse": 1.2e-4, "sparse": 3e-4},
    "hessian": {"forward": 6e-5, "reverse": 7e-5, "sparse": 3e-4},
}
_OF_OPERATOR = {
    "jacobian": {"forward": 6e-6, "reverse": 4.5e-6, "sparse": 6e-6},
    "hessian": {"forward": 8.5e-6, "reverse": 6.5e-6, "sparse": 8.5e-6},
}


class ModeCosts(NamedTuple):
    """What a Jacobian or Hessian costs in one mode.

    Attributes:
        mode: "forward", "reverse" or "sparse".
        products: the number of jvps, vjps, or of both.
        operators, flops, bytes_moved, peak_bytes: of one call, as counted on its graph.
        seconds: an estimate from these; it is for comparing modes, not for predicting times.
        refusal: why this mode is not possible, or was not tried; empty if it was counted.
    """

    mode: str
    products: int = 0
    operators: int = 0
    flops: int = 0
    bytes_moved: int = 0
    peak_bytes: int = 0
    seconds: float = math.inf
    refusal: str = ""


class JacobianCosts(NamedTuple):
    """The costs of a Jacobian or Hessian in each mode, and the mode chosen by them. It prints as a
    table.

    Attributes:
        arguments: the leaves of the arguments in short form.
        shape: rows and columns of the derivative as a matrix: for a Jacobian, the elements of the
            outputs and of the differentiated arguments. The first is -1 if it is not known.
        modes: a :class:`ModeCosts` for each mode.
        mode: the chosen one.
        chunk_size: how many products to compute at a time; None for all.
        why: the reason for both.
    """

    arguments: str
    shape: tuple[int, int]
    modes: tuple[ModeCosts, ...]
    mode: str
    chunk_size: int | None
    why: str

    def __repr__(self) -> str:
        table = self._table()
        lines = [self._title(), *(aligned(table, range(1, 7)) if len(table) > 1 else [])]
        return "\n  ".join([*lines, *self._refusals()])

    def _repr_html_(self) -> str:
        table = html_table(self._table(), right=range(1, 7))
        return html_lines([self._title()]) + table + html_lines(self._refusals())

    def _title(self) -> str:
        height, width = self.shape
        size = f"{'?' if height < 0 else height} x {width}"
        return f"({self.arguments}) -> {size}: {self.mode}, {self.why}"

    def _table(self) -> list[tuple[str, ...]]:
        header = ("", "products", "operators", "flops", "bytes", "peak bytes", "estimate")
        counted = [
            (
                mode.mode,
                *(f"{number:,}" for number in mode[1:6]),
                f"{mode.seconds * 1e6:,.0f} us",
            )
            for mode in self.modes
            if not mode.refusal
        ]
        return [header, *counted]

    def _refusals(self) -> list[str]:
        return [f"{mode.mode}: {mode.refusal}" for mode in self.modes if mode.refusal]


@contextlib.contextmanager
def outside_layers() -> Iterator[None]:
    """Leaves the layers and modes that are active, so that they have no part in what is captured.

    Raises:
        RuntimeError: one of them is torch.func's.
    """
    with contextlib.ExitStack() as stack:
        while (layers := _C.current_stack()) and layers[-1] is not None:
            stack.enter_context(_C.Below())
        if layers:
            raise RuntimeError("inside a transform of torch.func")
        stack.enter_context(dispatch_modes._disable_current_modes())
        stack.enter_context(torch.enable_grad())
        yield


def describe_arguments(args: tuple[Any, ...]) -> str:
    """The leaves in short form: ``float32[3, 2], 1``."""
    return ", ".join(
        f"{str(leaf.dtype).removeprefix('torch.')}{[*leaf.shape]}"
        if isinstance(leaf, (Tensor, ShapeDtypeStruct))
        else repr(leaf)
        for leaf in pytree.leaves(args)
    )


class ModeCounter:
    """Counts the costs of a function's Jacobian or Hessian at arguments of given shapes.

    Args:
        differentiated: the function.
        args: its arguments, of which only shapes and dtypes are used.

    Attributes:
        width: the elements of the differentiated arguments, the columns of the derivative.
        outputs: the elements of the outputs, once a mode was counted; -1 before.
    """

    def __init__(self, differentiated: DifferentiatedFunction, args: tuple[Any, ...]) -> None:
        self.differentiated = differentiated
        self.args = args
        places = pytree.positions(differentiated.api, differentiated.argnums, len(args))
        inputs = pytree.leaves(pytree.pick(args, places))
        self.width = sum(math.prod(leaf.shape) for leaf in inputs if hasattr(leaf, "shape"))
        self.device = next((leaf.device for leaf in inputs if hasattr(leaf, "device")), CPU)
        self.outputs = -1

    @property
    def height(self) -> int:
        """The rows of the derivative; -1 before a mode was counted."""
        return -1 if self.outputs < 0 else self.differentiated.rows(self.outputs, self.width)

    def count(self, mode: str, coloring: Coloring | None = None) -> ModeCosts:
        """The costs in this mode; its refusal says what went wrong if it can't be captured."""
        noting = self.differentiated.with_function(self._note_outputs)
        call = noting.in_mode(mode) if coloring is None else noting.sparse(coloring)
        try:
            with outside_layers():
                counted = costs(record(call, fakes(self.args), writes=False).graph)
        except Exception as error:
            return ModeCosts(mode, refusal=f"can't be captured: {first_line(error)}")
        if coloring is not None:
            products = coloring.num_colors
        else:
            products = self.width if mode == "forward" else self.height
        return ModeCosts(mode, products, *counted, self._seconds(mode, counted))

    def _seconds(self, mode: str, counted: Costs) -> float:
        rates, api = device_rates(self.device), self.differentiated.api
        return (
            _OF_CALL[api][mode]
            + _OF_OPERATOR[api][mode] * counted.operators
            + counted.flops / rates.flops
            + counted.bytes_moved / rates.bytes
        )

    def seconds_in_chunks(self, mode: ModeCosts, chunk_size: int | None) -> float:
        """The estimate for products in chunks, each of which calls the operators once."""
        chunks = 1 if chunk_size is None else math.ceil(mode.products / chunk_size)
        of_operator = _OF_OPERATOR[self.differentiated.api][mode.mode]
        return mode.seconds + (chunks - 1) * of_operator * mode.operators

    def chunk_size(self, mode: ModeCosts, memory_budget: int | None) -> int | None:
        """How many products fit into the budget; None if all do."""
        budget = memory_budget
        if budget is None:
            try:
                budget = free_memory(self.device) // 2
            except RuntimeError:
                return None
        if mode.peak_bytes <= budget or mode.products <= 1:
            return None
        return max(1, mode.products * budget // mode.peak_bytes)

    def _note_outputs(self, *args: Any) -> Any:
        result = self.differentiated.func(*args)
        output = result[0] if self.differentiated.has_aux else result
        tensors = [leaf for leaf in pytree.leaves(output) if isinstance(leaf, Tensor)]
        self.outputs = sum(leaf.numel() for leaf in tensors)
        return result


def fakes(args: tuple[Any, ...]) -> Any:
    """The arguments with tensors without values in place of tensors and of their descriptions.

    Raises:
        TypeError: a tensor is of a subclass, or sparse.
    """

    def struct(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            if type(leaf) not in (Tensor, Parameter) or leaf.layout != torch.strided:
                raise TypeError(f"an argument is a {type(leaf).__name__} of layout {leaf.layout}")
            return ShapeDtypeStruct.of(leaf)
        return leaf

    return fake_tensors(pytree.map_leaves(struct, args))


def first_line(error: Exception) -> str:
    """The first line of what an error says; its class if it says nothing."""
    return (message_of(error).strip() or type(error).__name__).splitlines()[0]
