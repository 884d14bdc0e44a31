"""Values that a captured function stores, as recipes: how each call makes them again."""

import collections
import enum
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from torchlayers.compiler.capture.state.guarded_place import is_constant
from torchlayers.compiler.capture.state.state_holders import (
    Slots,
    holds_fake,
    is_plain_object,
    original_of,
    slots_of,
    unwrapped,
)
from torchlayers.compiler.capture.values.tensor_arrays import TensorArray
from torchlayers.compiler.capture.values.traced_numbers import TensorNumber, is_host
from torchlayers.core.tensors.inspection import is_batched
from torchlayers.core.torch_private import FakeTensor
from torchlayers.fx.size_steps import SYMBOLIC

_SEQUENCES = (list, tuple, set, frozenset, collections.deque)
_DICTS = (dict, collections.OrderedDict, collections.defaultdict)
_ALWAYS_THE_SAME = (type, types.ModuleType, types.BuiltinFunctionType, enum.Enum, Tensor)


class NotRepeatableError(Exception):
    """A value holds a tensor of the capture in a way that calls can't make again."""


class Recipe:
    """How a call makes a value.

    Attributes:
        kind: ``"constant"``: ``value`` itself. ``"input"``, ``"output"``: the tensor of this index
            among the graph's inputs, or among its outputs. ``"float"``: the number in the output of
            this index. ``"number"``: computed from the numbers
            that the call has read. ``"items"``, ``"dict"``: a container;
            ``value`` has its class, and its ``maxlen`` or ``default_factory``. ``"object"``: an
            instance of the class ``value``.
        parts: recipes; of a dict, pairs; of an object, by name.
    """

    __slots__ = ("kind", "parts", "value")

    def __init__(self, kind: str, value: Any) -> None:
        self.kind = kind
        self.value = value
        self.parts: Any = ()


class RecipeWriter:
    """Writes the recipes of one capture.

    Args:
        existed: whether an object was there before the capture.
        place: the index of a tensor among the graph's inputs, or None.
        computed: makes a tensor one of the graph's outputs; returns its index.

    Attributes:
        outputs: the indices of the outputs that are stored.
        floats: the ids of the traced floats that are stored.
        existing: the ids of objects that were there before the capture.
        once: whether a value was met that can't be made again, but holds no tensor: it is stored
            as it is, and the graph is good for this call alone.
    """

    def __init__(
        self,
        existed: Callable[[Any], bool],
        place: Callable[[Tensor], int | None],
        computed: Callable[[Any], int],
    ) -> None:
        self._existed = existed
        self._place = place
        self._computed = computed
        self._written: dict[int, tuple[Any, Recipe]] = {}
        self.once = False
        self.outputs = set[int]()
        self.floats = set[int]()
        self.existing = set[int]()

    def write(self, value: Any) -> Recipe:
        """Returns the recipe of a value; the same for the same object."""
        value = original_of(value)
        if type(value) is TensorArray:
            raise NotRepeatableError
        if is_host(value):
            return Recipe("number", value.expression)
        if type(value) is TensorNumber:
            index = self._computed(unwrapped(value.tensor))
            self.outputs.add(index)
            self.floats.add(id(value))
            return Recipe("float", index)
        if isinstance(value, SYMBOLIC):
            self.outputs.add(self._computed(value))
            return Recipe("output", self._computed(value))
        if is_constant(value):
            return Recipe("constant", value)
        if id(value) not in self._written:
            kind, of = self._kind(value)
            recipe = Recipe(kind, of)
            self._written[id(value)] = value, recipe
            recipe.parts = self._parts(kind, value)
        return self._written[id(value)][1]

    def _kind(self, value: Any) -> tuple[str, Any]:
        if isinstance(value, Tensor):
            return self._of_tensor(unwrapped(value), value)
        if self._existed(value) or isinstance(value, _ALWAYS_THE_SAME):
            self.existing.add(id(value))
            return "constant", value
        kind: Any = type(value)
        if kind in _SEQUENCES or (issubclass(kind, tuple) and hasattr(kind, "_fields")):
            return "items", (getattr(kind, "_make", kind), getattr(value, "maxlen", None))
        if kind in _DICTS:
            return "dict", (kind, getattr(value, "default_factory", None))
        if is_plain_object(value):
            return "object", kind
        if holds_fake(value):
            raise NotRepeatableError
        self.once = self.once or not isinstance(value, types.FunctionType)
        return "constant", value

    def _of_tensor(self, tensor: Tensor, stored: Tensor) -> tuple[str, Any]:
        if isinstance(tensor, FakeTensor) and (is_batched(stored) or isinstance(stored, Parameter)):
            raise NotRepeatableError
        if (place := self._place(tensor)) is not None:
            return "input", place
        if isinstance(tensor, FakeTensor):
            index = self._computed(tensor)
            self.outputs.add(index)
            return "output", index
        return "constant", tensor

    def _parts(self, kind: str, value: Any) -> Any:
        if kind == "items":
            return [self.write(item) for item in value]
        if kind == "dict":
            return [(self.write(key), self.write(item)) for key, item in value.items()]
        if kind == "object":
            slots = Slots(value, slots_of(type(value))).now()
            attributes = {**slots, **getattr(value, "__dict__", {})}
            return {name: self.write(item) for name, item in attributes.items()}
        return ()


class StoredValues:
    """Makes the values that one call stores; values that are the same object stay so.

    Args:
        tensors: the graph's inputs.
        computed: its outputs.
        numbers: that the call has read.
    """

    def __init__(
        self, tensors: Sequence[Tensor], computed: Sequence[Tensor], numbers: Sequence[Any]
    ) -> None:
        self._tensors = tensors
        self._computed = computed
        self._numbers = numbers
        self._made: dict[int, Any] | None = None

    def make(self, recipe: Recipe) -> Any:
        kind = recipe.kind
        if kind == "output":
            return self._computed[recipe.value]
        if kind == "input":
            return self._tensors[recipe.value]
        if kind == "number":
            return recipe.value.compute(self._numbers)
        if kind == "float":
            return self._computed[recipe.value].item()
        if kind == "constant":
            return recipe.value
        self._made = {} if self._made is None else self._made
        if id(recipe) not in self._made:
            self._fill(recipe, self._made)
        return self._made[id(recipe)]

    def _fill(self, recipe: Recipe, known: dict[int, Any]) -> None:
        """Makes an object and what it holds, which may hold the object itself."""
        made: Any
        if recipe.kind == "object":
            made = known[id(recipe)] = recipe.value.__new__(recipe.value)
            for name, part in recipe.parts.items():
                object.__setattr__(made, name, self.make(part))
            return
        kind, detail = recipe.value
        if recipe.kind == "dict":
            made = kind(detail) if detail is not None else kind()
            known[id(recipe)] = made
            made.update((self.make(key), self.make(part)) for key, part in recipe.parts)
        elif kind in (list, set, collections.deque):
            made = known[id(recipe)] = kind() if detail is None else kind(maxlen=detail)
            getattr(made, "update" if kind is set else "extend")(map(self.make, recipe.parts))
        else:
            known[id(recipe)] = kind([self.make(part) for part in recipe.parts])


def outputs_in(recipe: Recipe, value: Any) -> Iterator[tuple[int, Tensor]]:
    """Yields the tensors of a value that its recipe takes from the graph's outputs, by index."""
    if recipe.kind == "output":
        yield recipe.value, unwrapped(value)
    elif recipe.kind == "float":
        yield recipe.value, torch.tensor(value, dtype=torch.float64)
    elif recipe.kind == "items" and isinstance(value, (list, tuple, collections.deque)):
        for part, item in zip(recipe.parts, value, strict=False):
            yield from outputs_in(part, item)
    elif recipe.kind == "dict":
        for (_, part), item in zip(recipe.parts, value.values(), strict=False):
            yield from outputs_in(part, item)
    elif recipe.kind == "object":
        for name, part in recipe.parts.items():
            yield from outputs_in(part, getattr(value, name))
