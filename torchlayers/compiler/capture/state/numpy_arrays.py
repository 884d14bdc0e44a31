"""NumPy arrays of which a function reads and sets elements: a log of losses, counts, an average.

During a second capture a stand-in takes the place of an array. An element or a part that is read is
read by calls before the graph runs; those that are set are set after it. Anything else that the
function does with the array makes the second capture fail, and the function runs uncompiled.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchlayers.compiler.capture.state.recipes import Recipe, RecipeWriter, StoredValues
from torchlayers.compiler.capture.state.state_holders import StandIn
from torchlayers.compiler.capture.values.tensor_arrays import TensorArray
from torchlayers.compiler.capture.values.traced_numbers import (
    HostNumber,
    TensorNumber,
    UnknownArrayUseError,
    is_host,
    plain_number,
)

_DESCRIBING = ("shape", "ndim", "size", "dtype", "itemsize", "nbytes")
_KINDS = {"float64": (int, float), "int64": (int,)}
Index = tuple[Any, ...]


def element(array: Any, *index: int) -> Any:
    return array[index]


def all_elements(array: Any) -> Any:
    return array.copy()


class ArrayStandIn(StandIn):
    """Stands for an array.

    Args:
        read: notes that an element of the array is read, and returns it as a traced number.

    Attributes:
        written: the indices and the values that were set, in order.
    """

    def __init__(self, array: Any, read: Callable[..., Any]) -> None:
        super().__init__(array)
        self._read = read
        self.written: list[tuple[Index, Any]] = []
        self.is_used = False

    def __len__(self) -> int:
        return len(self.original)

    def __getitem__(self, key: Any) -> Any:
        index = self._index(key)
        if not self._is_element(index):
            if self.written:
                raise UnknownArrayUseError  # it may be a part that has been set
            return self._read(all_elements, self.original)[key]
        for other, value in reversed(self.written):
            if [*map(_key, other)] == [*map(_key, index)]:
                return value
            is_known = self._is_element(other)
            if not is_known or any(type(each) is HostNumber for each in (*other, *index)):
                raise UnknownArrayUseError  # it may be the same element
        return self._read(element, self.original, *map(plain_number, index))

    def __setitem__(self, key: Any, value: Any) -> None:
        index, dtype = self._index(key), self.original.dtype
        if not self._is_element(index):
            self.written.append((index, self._part(index, value)))
            return
        example = value.value if type(value) is HostNumber else value
        is_like = getattr(example, "dtype", None) == dtype and not isinstance(value, Tensor)
        if not (is_like or isinstance(example, _KINDS.get(str(dtype), ()))):
            raise UnknownArrayUseError
        self.original[(*map(_value, index),)]  # it exists
        is_integer = isinstance(example, int) and str(dtype) == "float64"
        self.written.append((index, value * 1.0 if is_integer else value))

    def __getattr__(self, name: str) -> Any:
        if name in _DESCRIBING:
            return getattr(self.original, name)
        raise UnknownArrayUseError

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise UnknownArrayUseError

    def _index(self, key: Any) -> Index:
        self.is_used = True
        index = key if type(key) is tuple else (key,)
        if not self._is_element(index):
            return index
        pairs = zip(index, self.original.shape, strict=True)
        return (*(number if _value(number) >= 0 else size + number for number, size in pairs),)

    def _is_element(self, index: Index) -> bool:
        return len(index) == self.original.ndim and all(
            isinstance(each, int) and not isinstance(each, bool) for each in index
        )

    def _part(self, index: Index, value: Any) -> Any:
        """Returns what is put into a part of the array."""
        plain = (*(each.value if type(each) is HostNumber else each for each in index),)
        shape = self.original[plain].shape  # it exists
        if type(value) in (list, tuple) and shape == (len(value),):
            value = TensorArray(torch.tensor(value, dtype=torch.float64))
        if type(value) is TensorArray:
            value = value.tensor.clone()  # it may be written to later
        example = value.value if is_host(value) else value
        is_known = is_host(value) or type(value) in (int, float, TensorNumber)
        if isinstance(value, Tensor):
            is_known = value.shape == shape
        if not is_known or not all(map(_is_constant_index, index)):
            raise UnknownArrayUseError
        if getattr(example, "shape", ()) not in ((), shape):
            raise UnknownArrayUseError
        return value


def _is_constant_index(each: Any) -> bool:
    return type(each) in (int, HostNumber, type(None), type(...)) or (
        type(each) is slice
        and all(type(part) in (int, type(None)) for part in (each.start, each.stop, each.step))
    )


def _value(number: Any) -> Any:
    return number.value if type(number) is HostNumber else operator.index(number)


def _key(number: Any) -> Any:
    return number.expression if type(number) is HostNumber else operator.index(number)


class ArrayWrite(NamedTuple):
    """Elements of an array that a function sets.

    Attributes:
        elements: the recipes of the indices, and those of the values.
    """

    name: str
    array: Any
    elements: list[tuple[list[Recipe], Recipe]]
    may_settle: bool = True
    changes_length: bool = False

    @classmethod
    def of(cls, name: str, stand_in: ArrayStandIn, recipes: RecipeWriter) -> "ArrayWrite":
        elements = [
            ([*map(recipes.write, index)], recipes.write(value))
            for index, value in stand_in.written
        ]
        return cls(name, stand_in.original, elements)

    @property
    def place(self) -> tuple[Any, Any]:
        return id(self.array), None

    @property
    def grows(self) -> Any:
        return self.place

    def forgetting(self) -> "ArrayWrite":
        return self

    def writer(self) -> Callable[[StoredValues], None]:
        array, elements = self.array, self.elements

        def write(values: StoredValues) -> None:
            writes = [
                ((*map(values.make, index),), values.make(element)) for index, element in elements
            ]
            for index, _ in writes:
                array[index]  # it exists: an error must come before the first write
            for index, value in writes:
                array[index] = value.numpy() if isinstance(value, Tensor) else value

        return write

    def outputs(self, numbers: Sequence[Any] = ()) -> Any:
        """Yields what the array holds now of the numbers that are outputs of the graph."""
        for index, recipe in self.elements:
            if recipe.kind == "output" and all(each.kind == "constant" for each in index):
                part = self.array[(*(each.value for each in index),)]
                yield recipe.value, torch.from_numpy(part)
            if recipe.kind == "float" and all(each.kind == "constant" for each in index):
                value = self.array[(*(each.value for each in index),)]
                yield recipe.value, torch.tensor(value, dtype=torch.float64)
