"""Control flow captured inside layers written in Python: their rules for the operators.

NOTE [Control flow in a layer written in Python]
A tensor of such a layer is a value and parts. For a captured loop or branch it is taken apart: into
the value and the tensors among the parts, and a layout, which has all else: the structure of the
parts, and the plain data in it. The function of the loop becomes one that takes these tensors below
the layer. It enters a copy of the layer, puts the tensors of the layer together, runs there, and
takes the results apart. Tensors among the layer's attributes are captured ones of the function.

The carry has one layout in all steps, and the results of two branches have one. A constant may have
to become a tensor of the layer for that. It is lifted, or selected by torch.where from itself and a
tensor of zeros of the other layout, for which the layer has a rule. A carry starts with the layout
of the initial one, and steps run on fake tensors until the layout of the next one does not differ.
"""

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from torchlayers import _C
from torchlayers.control_flow.traced.closure_conversion import capture_paused, traced_as
from torchlayers.control_flow.traced.layer_state import own_attributes
from torchlayers.control_flow.traced.loop import TracedLoop, TracedScan
from torchlayers.control_flow.traced.transformed import OnTensors, Tensors
from torchlayers.core import pytree
from torchlayers.core.errors import DataDependentError, location
from torchlayers.core.torch_private import is_forward_mode_on, set_forward_mode
from torchlayers.transforms.functionalize import level_of_functional

# A carry whose layout still changes after this many steps has none that is fixed.
_MAX_STEPS = 10
# Longer than any dimension: it shows where a dimension has been inserted.
_LENGTH = 1_000_003
_PLAIN_DATA = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


class LayoutError(Exception):
    """A layer's tensors have no layout, or none that is the same in all steps or branches: a scan
    is unrolled, and both branches of a cond run."""


class Layout:
    """How a tensor is taken apart, in a layer written in Python.

    Attributes:
        parts: the structure of the parts; None for a tensor that is not of the layer.
        kinds: the shape, dtype and device of the value, and of each tensor among the parts.
    """

    def __init__(self, layer: Any, x: Any) -> None:
        self.parts: pytree.TensorLeaves | None = None
        self.tensors: list[Tensor] = [x]
        if layer._owns(x):
            self.parts = pytree.TensorLeaves(layer._parts_as_tree(x.parts))
            self.tensors = [x.value, *self.parts.tensors]
            _check_plain([*self.parts.constants.values()])
        self.kinds = [(x.shape, x.dtype, x.device) for x in self.tensors]

    def has_structure_of(self, other: "Layout") -> bool:
        if self.parts is None or other.parts is None:
            return self.parts is other.parts
        return (self.parts.spec, self.parts.constants) == (other.parts.spec, other.parts.constants)

    @property
    def data(self) -> dict[int, Any]:
        """The plain data in the parts, by position."""
        constants = {} if self.parts is None else self.parts.constants
        return {i: constant for i, constant in constants.items() if constant is not None}

    def has_data_of(self, other: "Layout") -> bool:
        if self.parts is None or other.parts is None:
            return False
        return (self.parts.spec, self.data) == (other.parts.spec, other.data)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Layout) and self.has_structure_of(other) and self.kinds == other.kinds
        )

    __hash__ = None  # type: ignore[assignment]

    def put_together(self, layer: Any, tensors: Iterator[Tensor]) -> Tensor:
        """A tensor of this layout; its tensors come from the iterator."""
        value = next(tensors)
        if self.parts is None:
            return value
        parts = self.parts.put_in([next(tensors) for _ in self.parts.tensors])
        tensor: Tensor = layer.tensor(value, layer._parts_of_tree(parts))
        return tensor

    def zeros(self) -> list[Tensor]:
        return [torch.zeros(shape, dtype=dtype, device=at) for shape, dtype, at in self.kinds]

    def inserted(self, dims: Sequence[int], size: Any) -> "Layout":
        """The layout with a dimension of this size inserted into the shape of each tensor."""
        longer = copy.copy(self)
        longer.kinds = [
            (torch.Size([*shape[:dim], size, *shape[dim:]]), dtype, device)
            for (shape, dtype, device), dim in zip(self.kinds, dims, strict=True)
        ]
        return longer


def _check_plain(constants: Sequence[Any]) -> None:
    for constant in constants:
        items = constant if isinstance(constant, (set, frozenset)) else [constant]
        if not all(isinstance(item, _PLAIN_DATA) for item in items):
            raise LayoutError(f"the parts hold {type(constant).__name__}, which is no plain data")


class InLayer:
    """Runs functions in copies of a layer, on what the layer's tensors consist of.

    Args:
        layer: a layer that is processing a Function.
    Attributes:
        state: the tensors among the layer's attributes.
    """

    def __init__(self, layer: Any) -> None:
        self._layer = layer
        self._attributes = pytree.TensorLeaves(own_attributes(layer))
        self.state = self._attributes.tensors
        # A Function's forward, in which bodies are captured, disables both.
        self._modes = torch.is_grad_enabled(), is_forward_mode_on()

    def layouts(self, tensors: Tensors) -> list[Layout]:
        return [Layout(self._layer, x) for x in tensors]

    def flat(self, tensors: Tensors) -> list[Tensor]:
        """What the tensors consist of."""
        return [tensor for layout in self.layouts(tensors) for tensor in layout.tensors]

    def put_together(self, tensors: Tensors, layouts: Sequence[Layout]) -> list[Tensor]:
        """The layer's tensors, as a Function's results."""
        parts = iter(tensors)
        results = [layout.put_together(self._layer, parts) for layout in layouts]
        # An outer functionalize has made constants functional: as CustomLayer::wrap_functional.
        wrap = self._layer._active().wrap
        return [
            wrap(x) if layout.parts is None and level_of_functional(x) else x
            for x, layout in zip(results, layouts, strict=True)
        ]

    def on_parts(
        self, func: OnTensors, layouts: Sequence[Layout], expected: Sequence[Layout] | None
    ) -> OnTensors:
        """Returns func as a function of what its arguments consist of, and of the layer's state.

        Args:
            layouts: those of func's arguments.
            expected: the layouts of func's results; None for their values alone.
        """

        def run(inputs: Tensors) -> list[Tensor]:
            with self._running(func, layouts, inputs) as (layer, results):
                if expected is None:
                    return [layer._value(x) for x in results]
                pairs = zip(results, expected, strict=True)
                results = [_brought_to(layout, x, layer) for x, layout in pairs]
            return [x for result in results for x in Layout(layer, result).tensors]

        return traced_as(func, run)

    def layouts_of(self, func: OnTensors, layouts: Sequence[Layout]) -> list[Layout]:
        """Runs func on fake tensors; returns the layouts of its results."""
        with capture_paused():
            inputs = [x for layout in layouts for x in layout.zeros()]
            with self._running(func, layouts, [*inputs, *self.state]) as (layer, results):
                pass
            return [Layout(layer, x) for x in results]

    def common(self, one: Layout, other: Layout) -> Layout:
        """A layout that tensors of either can be brought to."""
        if one == other:
            return one
        lifted = [self._lifted(x) if x.parts is None else x for x in (one, other)]
        if lifted[0] == lifted[1]:
            return lifted[0]
        (joined,) = self.layouts_of(_selected, [one, other])
        # Zeros stand for a tensor that is absent, but nothing for other data.
        if joined.data and not all(x.has_data_of(joined) for x in lifted):
            raise LayoutError("not all steps or branches give a tensor the same plain data")
        return joined

    def fixed(
        self, step: OnTensors, carry: Sequence[Layout], others: Sequence[Layout]
    ) -> tuple[list[Layout], list[Layout]]:
        """Runs steps until the carry's layouts do not change; returns these, and those of the
        results behind the next carry."""
        carry = [*carry]
        for _ in range(_MAX_STEPS):
            results = self.layouts_of(step, [*carry, *others])
            new = [self.common(*pair) for pair in zip(carry, results, strict=False)]
            if new == carry:
                return carry, results[len(carry) :]
            carry = new
        raise LayoutError("the carry's layout changes in each step")

    def brought_to(self, expected: Sequence[Layout], tensors: Tensors) -> list[Tensor]:
        """What the layer's tensors consist of in other layouts."""
        convert = self.on_parts(list, self.layouts(tensors), expected)
        return convert([*self.flat(tensors), *self.state])

    def _lifted(self, plain: Layout) -> Layout:
        with capture_paused():
            inputs = [*plain.zeros(), *self.state]
            with self._running(list, [plain], inputs) as (layer, (x,)), _C.Below():
                return Layout(layer, layer.lifted(x))

    @contextlib.contextmanager
    def _running(
        self, func: OnTensors, layouts: Sequence[Layout], tensors: Tensors
    ) -> Iterator[tuple[Any, list[Tensor]]]:
        """Enters a copy of the layer and runs func in it."""
        parts = iter(tensors)
        layer = copy.copy(self._layer)
        grad, forward = self._modes
        with torch.set_grad_enabled(grad), set_forward_mode(forward), layer._new_entry() as level:
            layer._level = level
            wrapped = [layout.put_together(layer, parts) for layout in layouts]
            vars(layer).update(self._attributes.put_in(parts))
            yield layer, layer.apply(func, wrapped)


def _selected(tensors: Tensors) -> list[Tensor]:
    """The first of two tensors, in a layout that is right for either."""
    one, other = tensors
    return [torch.where(torch.ones((), dtype=torch.bool, device=one.device), one, other)]


def _brought_to(expected: Layout, x: Tensor, layer: Any) -> Tensor:
    if Layout(layer, x) == expected:
        return x
    with _C.Below():
        lifted = layer.lifted(x)
        zeros = expected.zeros()
    if Layout(layer, lifted) == expected:
        return lifted
    other = expected.put_together(layer, iter(zeros))
    (selected,) = layer.apply(_selected, [x, other])
    if Layout(layer, selected) != expected:
        raise LayoutError("the layer has no rule that gives a tensor this layout")
    return selected


class _Stacked:
    """The layout of a tensor that consists of slices along its first dimension.

    Args:
        layout: that of a slice, as far as that is one in a tensor: the Jacobian may be a diagonal
            for a slice, but not for all of them.
    Attributes:
        slice: the layout of a slice in it.
        layout: its own.
        dims: along which dimension the tensors of the slices are stacked, for the value and for
            each tensor among the parts.
    """

    def __init__(self, inside: InLayer, layout: Layout, length: Any) -> None:
        (longer,) = inside.layouts_of(_expanded, [layout])
        if not longer.has_structure_of(layout):
            (layout,) = inside.layouts_of(lambda inputs: _first_slice(_expanded(inputs)), [layout])
        self.dims = [
            next((dim for dim, size in enumerate(shape) if size == _LENGTH), 0)
            for shape, _, _ in longer.kinds
        ]
        if not longer.has_structure_of(layout) or layout.inserted(self.dims, _LENGTH) != longer:
            raise LayoutError("the parts of a tensor are not those of its slices, stacked")
        self.slice = layout
        self.layout = layout.inserted(self.dims, length)

    def slices_first(self, tensors: Tensors) -> list[Tensor]:
        return [x.movedim(dim, 0) for x, dim in zip(tensors, self.dims, strict=True)]

    def slices_back(self, tensors: Tensors) -> list[Tensor]:
        return [x.movedim(0, dim) for x, dim in zip(tensors, self.dims, strict=True)]


def scan(
    layer: Any,
    steps: TracedScan,
    tensors: Tensors,
    run: Callable[[TracedScan, Tensors], list[Tensor]],
) -> list[Tensor]:
    """The rule for a scan: a scan over what the layer's tensors consist of.

    Args:
        run: runs a scan on the layers below.
    """
    inside = InLayer(layer)
    carried, uncaptured = steps.carried, steps.uncaptured
    length = tensors[carried].size(0)
    layouts = inside.layouts(tensors)
    firsts = [inside.layouts_of(_first_slice, [x])[0] for x in layouts[carried:uncaptured]]
    xs = [_Stacked(inside, layout, length) for layout in firsts]
    others = [*(x.slice for x in xs), *layouts[uncaptured:]]
    carry, results = inside.fixed(steps.body, layouts[:carried], others)
    ys = [_Stacked(inside, layout, length) for layout in results]
    body = inside.on_parts(steps.body, [*carry, *others], [*carry, *(y.slice for y in ys)])

    begin = inside.brought_to(carry, tensors[:carried])
    sliced: list[Tensor] = []
    for tensor, x in zip(tensors[carried:uncaptured], xs, strict=True):
        sliced += x.slices_first(inside.brought_to([x.layout], [tensor]))
    on_parts = TracedScan(body, len(begin), len(sliced))
    outputs = run(on_parts, [*begin, *sliced, *inside.flat(tensors[uncaptured:]), *inside.state])
    rest = iter(outputs[len(begin) :])
    stacked = [x for y in ys for x in y.slices_back([next(rest) for _ in y.dims])]
    return inside.put_together(
        [*outputs[: len(begin)], *stacked], [*carry, *(y.layout for y in ys)]
    )


def _expanded(tensors: Tensors) -> list[Tensor]:
    return [tensors[0].expand(_LENGTH, *tensors[0].shape)]


def _first_slice(tensors: Tensors) -> list[Tensor]:
    return [tensors[0].select(0, 0)]


def cond(
    layer: Any,
    branches: tuple[OnTensors, OnTensors],
    pred: Tensor,
    tensors: Tensors,
    choose: Callable[..., list[Tensor]],
) -> list[Tensor]:
    """The rule for a cond: one between branches on what the layer's tensors consist of.

    Args:
        choose: runs a cond on the layers below.
    """
    inside = InLayer(layer)
    layouts = inside.layouts(tensors)
    pairs = zip(*(inside.layouts_of(branch, layouts) for branch in branches), strict=True)
    results = [inside.common(*pair) for pair in pairs]
    true, false = (inside.on_parts(branch, layouts, results) for branch in branches)
    flat = choose(layer._value(pred), (true, false), [*inside.flat(tensors), *inside.state])
    return inside.put_together(flat, results)


def while_loop(
    layer: Any,
    loop: TracedLoop,
    tensors: Tensors,
    run: Callable[[TracedLoop, Tensors], list[Tensor]],
) -> list[Tensor]:
    """The rule for a while_loop: one that carries what the layer's tensors consist of.

    Args:
        run: runs a while_loop on the layers below; returns the carry and the number of trips.
    """
    inside = InLayer(layer)
    layouts = inside.layouts(tensors)
    others = layouts[loop.carried :]
    try:
        carry, _ = inside.fixed(loop.body, layouts[: loop.carried], others)
    except LayoutError as error:
        raise DataDependentError(
            "torchlayers: while_loop: its trip count depends on the value of a tensor, and a layer "
            f"written in Python ({layer.name}) does not support this loop during capture: {error}."
            f"{location()} Use scan, or fori_loop with bounds that are ints."
        ) from error
    goes_on = inside.on_parts(lambda inputs: [loop.cond(inputs)], [*carry, *others], None)
    body = inside.on_parts(loop.body, [*carry, *others], carry)
    begin = inside.brought_to(carry, tensors[: loop.carried])
    on_parts = TracedLoop(lambda inputs: goes_on(inputs)[0], body, len(begin), loop.counts)
    captured = inside.flat(tensors[loop.carried :])
    *flat, trips = run(on_parts, [*begin, *captured, *inside.state])
    return [*inside.put_together(flat, carry), trips]
