"""Compiled functions: their programs, guards and calls."""

from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any

import torch
from torch import Tensor

class OneDnn:
    WHERE_FASTER: OneDnn
    ALWAYS: OneDnn
    NEVER: OneDnn

def multiply_with(when: OneDnn) -> OneDnn: ...

class RecordedValue:
    def __init__(self, input: int) -> None: ...

class ProgramWriter:
    def __init__(self, inputs: int) -> None: ...
    def call(
        self,
        name: str,
        overload: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        description: str,
    ) -> list[RecordedValue]: ...
    def call_python(
        self, function: Callable[..., Any], values: list[RecordedValue], description: str
    ) -> RecordedValue: ...
    def item(self, list: RecordedValue, index: int) -> RecordedValue: ...
    def lay_out(
        self, tensor: RecordedValue, strides: Sequence[int | RecordedValue]
    ) -> RecordedValue: ...
    def size(self, tensor: RecordedValue, dim: int) -> RecordedValue: ...
    def stride(self, tensor: RecordedValue, dim: int) -> RecordedValue: ...
    def arithmetic(
        self, name: str, left: int | RecordedValue, right: int | RecordedValue
    ) -> RecordedValue: ...
    def allocate(
        self,
        sizes: Sequence[int | RecordedValue],
        strides: Sequence[int | RecordedValue],
        dtype: torch.dtype,
    ) -> RecordedValue: ...
    def reinterpret(
        self,
        tensor: RecordedValue,
        sizes: Sequence[int | RecordedValue],
        strides: Sequence[int | RecordedValue],
        offset: int | RecordedValue,
    ) -> RecordedValue: ...
    def check_layout(
        self,
        tensor: RecordedValue,
        sizes: Sequence[int | RecordedValue],
        strides: Sequence[int | RecordedValue],
    ) -> None: ...
    def multiply(
        self,
        tensors: list[RecordedValue | Tensor],
        beta: float,
        alpha: float,
        description: str,
    ) -> None: ...
    def call_kernel(
        self, function: int, given: list[RecordedValue | Tensor | int], description: str
    ) -> None: ...
    def repeat(
        self,
        body: Program,
        carried: int,
        sliced: int,
        tensors: list[RecordedValue | Tensor],
        description: str,
    ) -> RecordedValue: ...
    def repeat_while(
        self,
        condition: Program,
        body: Program,
        carried: int,
        tensors: list[RecordedValue | Tensor],
        description: str,
    ) -> RecordedValue: ...
    def finish(self, outputs: list[Any]) -> Program: ...

class Program:
    def __call__(self, inputs: Sequence[Any], /) -> list[Any]: ...
    @property
    def num_slots(self) -> int: ...
    @property
    def steps(self) -> list[str]: ...

class Guards:
    def __new__(
        cls, *guards: tuple[str, Any, tuple[Any, ...], tuple[Any, ...], tuple[bool | None, ...]]
    ) -> Guards: ...
    def hold(self) -> bool: ...
    def failed(self) -> tuple[int, int] | None: ...

def guards_ignore(kind: type) -> None: ...

class RanCode:
    codes: list[tuple[CodeType, dict[str, Any]]]
    def __init__(self) -> None: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...

class CompiledEntry:
    run: Callable[[list[Tensor]], Sequence[Any]]
    calls: int
    is_recorded: bool

class CompiledCall:
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def _add(
        self,
        entry: CompiledEntry,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        is_static: list[bool],
        /,
    ) -> None: ...
    def _drop(self, entry: CompiledEntry, /) -> None: ...

def torch_settings() -> int: ...
def call_at_once(derived: type[CompiledCall]) -> None: ...
