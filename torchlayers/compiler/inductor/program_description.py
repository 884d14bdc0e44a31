"""Programs as data: the calls of a ProgramWriter, which another process can repeat.

Inductor's code is compiled in one process and run in another (worker.py). What travels between
them, and what is kept on disk, is the list of steps that make the program; kernels are named by
their shared libraries.
"""

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

from torchlayers._C import Program, ProgramWriter, RecordedValue
from torchlayers.core.operator_schema import schema_of
from torchlayers.core.torch_private import OpOverload


class Value(NamedTuple):
    """A value of the program: an input, or a result of a step."""

    place: int


class SizeValue(NamedTuple):
    """An integer among the values of the program."""

    place: int


class Kernel(NamedTuple):
    """A C function in a shared library."""

    library: str
    symbol: str

    def address(self) -> int:
        """Loads the library. Raises OSError if it is gone, AttributeError without the function."""
        function = ctypes.CDLL(self.library)[self.symbol]
        address = ctypes.cast(function, ctypes.c_void_p).value
        assert address is not None
        return address


class Step(NamedTuple):
    """A call of the ProgramWriter's method, and the indices of the values that it returns."""

    method: str
    arguments: tuple[Any, ...]
    results: tuple[int, ...]


class ProgramDescription(NamedTuple):
    """The steps of a program; picklable if the constants in it are."""

    inputs: int
    steps: list[Step]
    outputs: list[Any]

    def build(self) -> Program:
        """Makes the program.

        Raises:
            OSError: the library of a kernel is gone.
            AttributeError, TypeError, ValueError: a step is not supported by this process.
        """
        writer = ProgramWriter(self.inputs)
        values = {i: RecordedValue(i) for i in range(self.inputs)}

        def filled(argument: Any) -> Any:
            match argument:
                case Value(place) | SizeValue(place):
                    return values[place]
                case Kernel():
                    return argument.address()
                case ProgramDescription():
                    return argument.build()
                case list() | tuple():
                    return type(argument)(map(filled, argument))
                case dict():
                    return {name: filled(element) for name, element in argument.items()}
                case _:
                    return argument

        for method, arguments, results in self.steps:
            returned = getattr(writer, method)(*map(filled, arguments))
            several = returned if isinstance(returned, list) else [returned]
            values.update(zip(results, several, strict=False))
        return writer.finish(filled(self.outputs))


class ProgramRecorder:
    """Stands in for a ProgramWriter: records the steps."""

    def __init__(self, inputs: int) -> None:
        self._inputs = self._count = inputs
        self._steps: list[Step] = []

    def _step(self, method: str, arguments: tuple[Any, ...], results: int) -> list[Value]:
        places = range(self._count, self._count + results)
        self._count += results
        self._steps.append(Step(method, arguments, tuple(places)))
        return [*map(Value, places)]

    def call(self, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Value]:
        schema = schema_of(op)
        call = (schema.name, schema.overload_name, args, kwargs, str(op))
        return self._step("call", call, len(schema.returns))

    def item(self, many: Value, index: int) -> Value:
        return self._step("item", (many, index), 1)[0]

    def size(self, tensor: Value, dim: int) -> SizeValue:
        return SizeValue(self._step("size", (tensor, dim), 1)[0].place)

    def stride(self, tensor: Value, dim: int) -> SizeValue:
        return SizeValue(self._step("stride", (tensor, dim), 1)[0].place)

    def arithmetic(self, name: str, left: int | SizeValue, right: int | SizeValue) -> SizeValue:
        return SizeValue(self._step("arithmetic", (name, left, right), 1)[0].place)

    def allocate(self, *layout: Any) -> Value:
        return self._step("allocate", layout, 1)[0]

    def reinterpret(self, *layout: Any) -> Value:
        return self._step("reinterpret", layout, 1)[0]

    def check_layout(self, *layout: Any) -> None:
        self._step("check_layout", layout, 0)

    def multiply(self, tensors: list[Any], beta: Any, alpha: Any, description: str) -> None:
        self._step("multiply", (tensors, beta, alpha, description), 0)

    def call_kernel(self, kernel: Kernel, args: list[Any], description: str) -> None:
        self._step("call_kernel", (kernel, args, description), 0)

    def repeat(
        self,
        body: ProgramDescription,
        carried: int,
        sliced: int,
        tensors: list[Any],
        description: str,
    ) -> Value:
        return self._step("repeat", (body, carried, sliced, tensors, description), 1)[0]

    def repeat_while(
        self,
        condition: ProgramDescription,
        body: ProgramDescription,
        carried: int,
        tensors: list[Any],
        description: str,
    ) -> Value:
        loop = (condition, body, carried, tensors, description)
        return self._step("repeat_while", loop, 1)[0]

    def finish(self, outputs: Sequence[Any]) -> ProgramDescription:
        return ProgramDescription(self._inputs, self._steps, [*outputs])
