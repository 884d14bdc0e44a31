"""Checks whether a graph with symbolic sizes is right for the sizes of a call."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import SymInt, Tensor

from torchlayers.compiler.runtime.verify import VerifiedRun

Numbers = Sequence[int]

_OPERATORS = {
    "Add": " + ",
    "Mul": " * ",
    "And": " and ",
    "Or": " or ",
    "FloorDiv": " // ",
    "Mod": " % ",
    "PythonMod": " % ",
    "Equality": " == ",
    "Unequality": " != ",
    "StrictLessThan": " < ",
    "LessThan": " <= ",
    "StrictGreaterThan": " > ",
    "GreaterThan": " >= ",
}
_FUNCTIONS = {"Min": "min", "Max": "max"}


class SizeGuard:
    """A function of the symbolic sizes and strides of a call, which C++ calls for new ones.

    Args:
        environment: the shape environment of the capture, with what it assumed of its symbols.
        inputs: fake tensors for the graph's inputs.

    Attributes:
        first: the numbers that alone are right until another call has been compared.
        runs: what runs the entry; it may find that the first result is wrong.
    """

    def __init__(self, environment: Any, inputs: Sequence[Tensor]) -> None:
        self._holds = _condition(environment, inputs)
        self.first: tuple[int, ...] = ()
        self.is_confirmed = False
        self.is_unlike = False
        self.runs: Any = None

    def __call__(self, numbers: Numbers) -> bool:
        if tuple(numbers) != self.first and (not self.is_confirmed or self.is_refuted()):
            return False
        return bool(self._holds(numbers))

    def is_refuted(self) -> bool:
        """Whether the comparison with other sizes failed. NOTE [A size that is a number]."""
        return self.is_unlike or (isinstance(self.runs, VerifiedRun) and bool(self.runs.problem))


def is_symbolic(size: Any) -> bool:
    return isinstance(size, SymInt) and not size.node.expr.is_number


def open_places(like: Tensor) -> list[int]:
    """Which of a tensor's sizes and strides, counted over both, are symbolic."""
    numbers: list[Any] = [*like.shape, *like.stride()]
    return [place for place, number in enumerate(numbers) if is_symbolic(number)]


def _condition(environment: Any, inputs: Sequence[Tensor]) -> Callable[[Numbers], Any]:
    """Compiles what must hold of the numbers as a Python function."""
    import sympy  # type: ignore[import-untyped]

    numbers = [size for like in inputs for size in (*like.shape, *like.stride())]
    symbolic: list[Any] = [number for number in numbers if isinstance(number, SymInt)]
    source = _Source()
    sizes = [*filter(is_symbolic, symbolic)]
    for place, size in enumerate(sizes):
        if size.node._expr.is_Symbol:  # before torch has replaced it by an equal one
            source.names.setdefault(size.node._expr, f"n[{place}]")
    for number in symbolic:
        if not is_symbolic(number):
            source.names.setdefault(number.node._expr, str(number.node.expr))
    conditions = [
        f"{source.write(size.node.expr)} == n[{place}]" for place, size in enumerate(sizes)
    ]
    conditions += [source.write(guard.expr) for guard in environment.guards]
    conditions += [
        f"{source.write(meant)} == {source.names[symbol]}"
        for symbol, meant in environment.replacements.items()
        if symbol in source.names
    ]
    for symbol, name in source.names.items():
        if not symbol.is_Symbol:
            continue
        bounds = environment.var_to_range[symbol]
        conditions.append(f"{int(bounds.lower)} <= {name}")
        if bounds.upper.is_Integer:
            conditions.append(f"{name} <= {int(bounds.upper)}")
    trivial = {f"{name} == {name}" for name in source.names.values()} | {str(sympy.true)}
    text = " and ".join(dict.fromkeys(c for c in conditions if c not in trivial)) or "True"
    return eval(f"lambda n: {text}", source.globals)  # type: ignore[no-any-return]


class _Source:
    """Writes expressions of sympy as Python.

    Attributes:
        names: of the symbols.
        globals: the functions that are called.
    """

    def __init__(self) -> None:
        self.names: dict[Any, str] = {}
        self.globals: dict[str, Any] = {}

    def write(self, expression: Any) -> str:
        kind = type(expression).__name__
        if expression in self.names:
            return self.names[expression]
        if expression.is_Symbol:
            raise ValueError(f"no size of the call is {expression}")
        if expression.is_Integer or kind in ("BooleanTrue", "BooleanFalse"):
            return str(expression)
        if kind == "Not":
            return f"(not {self.write(expression.args[0])})"
        parts = [*map(self.write, expression.args)] if kind in (_OPERATORS | _FUNCTIONS) else []
        if kind in _OPERATORS:
            return f"({_OPERATORS[kind].join(parts)})"
        if kind in _FUNCTIONS:
            return f"{_FUNCTIONS[kind]}({', '.join(parts)})"
        return self._called(expression)

    def _called(self, expression: Any) -> str:
        """Writes the call of a function that evaluates the expression."""
        import sympy

        symbols = sorted(expression.free_symbols, key=str)

        def evaluate(*numbers: int) -> Any:
            result = expression.xreplace(
                dict(zip(symbols, map(sympy.Integer, numbers), strict=True))
            )
            return result == sympy.true if expression.is_Boolean else result

        name = f"f{len(self.globals)}"
        self.globals[name] = evaluate
        return f"{name}({', '.join(map(self.write, symbols))})"
