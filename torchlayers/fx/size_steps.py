"""Steps of a program that compute symbolic numbers from the sizes of its inputs.

A graph that was captured with symbolic sizes becomes one program for all of them: each size that
an operator takes is computed in the run.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import torch
from torch import SymBool, SymFloat, SymInt, Tensor

from torchlayers._C import ProgramWriter, RecordedValue

SYMBOLIC = (SymInt, SymFloat, SymBool)

# A number of a program: known, or computed in the run.
Number: TypeAlias = "int | float | bool | RecordedValue"

_ARITHMETIC = {"FloorDiv": "floordiv", "Mod": "mod", "PythonMod": "mod", "Min": "min", "Max": "max"}


def expression_of(number: Any) -> Any:
    """The sympy expression of a symbolic number, or of a plain one."""
    import sympy  # type: ignore[import-untyped]

    return number.node.expr if isinstance(number, SYMBOLIC) else sympy.sympify(number)


class SizeWriter:
    """Writes the steps for the symbolic numbers of one graph.

    Args:
        writer: of the program.
        inputs: the values of the program's inputs, each with what stands for it in the graph: a
            fake tensor, or a symbolic number.
    """

    def __init__(self, writer: ProgramWriter, inputs: Iterable[tuple[RecordedValue, Any]]) -> None:
        self._writer = writer
        self._inputs = [*inputs]
        self._numbers: dict[Any, Number] = {}  # by expression

    def numbers(self, value: Any) -> Any:
        """Replaces symbolic numbers in a value, also in lists and tuples, by those of the run."""
        if isinstance(value, SYMBOLIC):
            return self.number(value)
        if type(value) in (list, tuple, torch.Size):
            return (
                [*map(self.numbers, value)]
                if type(value) is list
                else tuple(map(self.numbers, value))
            )
        return value

    def number(self, symbolic: Any) -> Number:
        return self._number_of(expression_of(symbolic), type(symbolic))

    def _number_of(self, expression: Any, kind: type = SymInt) -> Number:
        if expression not in self._numbers:
            self._numbers[expression] = self._compute(expression, kind)
        return self._numbers[expression]

    def _compute(self, expression: Any, kind: type) -> Number:
        if not expression.free_symbols:
            return _PLAIN[kind](expression)  # type: ignore[no-any-return]
        if expression.is_Symbol:
            return self._symbol(expression)
        name = type(expression).__name__
        if kind is SymInt and (name in ("Add", "Mul") or name in _ARITHMETIC):
            operands = [self._number_of(operand) for operand in expression.args]
            operation = _ARITHMETIC.get(name, name.lower())
            return functools.reduce(functools.partial(self._arithmetic, operation), operands)
        return self._in_python(expression, kind)

    def _arithmetic(self, operation: str, left: Any, right: Any) -> RecordedValue:
        return self._writer.arithmetic(operation, left, right)

    def _symbol(self, symbol: Any) -> Number:
        for value, like in self._inputs:
            if isinstance(like, SYMBOLIC) and expression_of(like) == symbol:
                return value
        tensors = [(value, like) for value, like in self._inputs if isinstance(like, Tensor)]
        reads: Sequence[tuple[Callable[[Any], Sequence[Any]], Any]] = (
            (lambda like: like.shape, self._writer.size),
            (_strides, self._writer.stride),
        )
        for layout_of, read in reads:
            for value, like in tensors:
                for dim, number in enumerate(layout_of(like)):
                    if isinstance(number, SymInt) and expression_of(number) == symbol:
                        return read(value, dim)  # type: ignore[no-any-return]
        raise ValueError(f"torchlayers: no input of the graph has the size {symbol}")

    def _in_python(self, expression: Any, kind: type) -> RecordedValue:
        """Writes a step that evaluates an expression of other functions."""
        import sympy

        symbols = sorted(expression.free_symbols, key=str)
        values = [self._number_of(symbol) for symbol in symbols]

        def compute(*numbers: int) -> Any:
            known = dict(zip(symbols, map(sympy.Integer, numbers), strict=True))
            return _PLAIN[kind](expression.xreplace(known))

        return self._writer.call_python(compute, values, str(expression))  # type: ignore[arg-type]


def _strides(like: Tensor) -> Sequence[Any]:
    return like.stride() if like.layout is torch.strided else ()


_PLAIN: dict[type, Callable[[Any], Any]] = {SymInt: int, SymFloat: float, SymBool: bool}
