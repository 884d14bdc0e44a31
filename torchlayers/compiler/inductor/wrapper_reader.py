"""Reads the statements of Inductor's wrapper, and records the steps of a program for them."""

import ast
import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchlayers.compiler.inductor import kernels, program_description
from torchlayers.compiler.inductor.program_description import (
    ProgramDescription,
    ProgramRecorder,
    SizeValue,
    Value,
)
from torchlayers.core.operators import aten
from torchlayers.core.torch_private import OpOverload

_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")
# Checks of one tensor. The second, since torch 2.15, also has a dtype, which is ignored: if an
# operator's result had another, the comparison of the first results would show it.
_LAYOUT_CHECKS = ("assert_size_stride", "assert_tensor_metadata")


_ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
}
_OF_INTEGERS: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "min": min,
    "max": max,
}


class UnsupportedCodeError(Exception):
    """The wrapper contains something that is not supported here."""


class _Condition(NamedTuple):
    """The result of a function that a loop asks whether to go on."""

    name: str
    written: list[str]  # the operands, as they are written
    operands: list[Any]


class Layout(NamedTuple):
    """The layout of an input, None for numbers that are symbolic."""

    size: tuple[int | None, ...]
    stride: tuple[int | None, ...]


class WrapperReader:
    """Reads the wrapper and describes the program."""

    def __init__(
        self,
        module: ast.Module,
        function: Callable[..., Any],
        bodies: Mapping[str, ProgramDescription | None],
        inputs: Sequence[Layout],
    ) -> None:
        self.module = module
        self.bodies = bodies
        self.layouts = inputs
        self.globals: dict[str, Any] = function.__globals__
        functions = [
            node
            for node in ast.walk(module)
            if isinstance(node, ast.FunctionDef) and node.name == function.__name__
        ]
        if len(functions) != 1:
            raise UnsupportedCodeError
        self.body = functions[0].body
        self.parameter = functions[0].args.args[-1].arg
        self.kinds = _parameter_kinds(module)
        # What each name is bound to: a value, several results of an operator, a constant, a size.
        self.values: dict[str, Any] = {}
        self.lists: dict[str, list[str]] = {}  # how lists were written
        self.known: dict[str, Layout] = {}  # the layouts of inputs

    def program(self, apart: Mapping[int, OpOverload]) -> ProgramDescription:
        unpacked, *rest = self.body
        match unpacked:
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Name(id=self.parameter)) if (
                all(isinstance(name, ast.Name) for name in names)
            ):
                pass
            case _:
                raise UnsupportedCodeError
        self.writer = ProgramRecorder(len(names))
        for i, name in enumerate(names):
            self.values[name.id] = Value(i)  # type: ignore[attr-defined]
        self.inputs = {*self.values}
        self.known = dict(zip(self.values, self.layouts, strict=False))
        for statement in rest:
            match statement:
                case ast.Delete():  # the program frees a value after its last use
                    pass
                case ast.Assign(
                    targets=[ast.Name(id=target)],
                    value=ast.BinOp(
                        left=ast.List(elts=[ast.Constant(value=None)]),
                        op=ast.Mult(),
                        right=ast.Constant(value=int(count)),
                    ),
                ):
                    self.values[target] = [None] * count
                case ast.Assign(
                    targets=[
                        ast.Subscript(
                            value=ast.Name(id=target), slice=ast.Constant(value=int(place))
                        )
                    ],
                    value=value,
                ):
                    self.values[target][place] = self.value(value)
                case ast.Assign(
                    targets=[ast.Tuple(elts=[ast.Name(id=target)])],
                    value=ast.Call(func=ast.Name(id=asked), args=[ast.Name(id=operands)]),
                ):
                    self.values[target] = _Condition(
                        asked, self.lists[operands], self.values[operands]
                    )
                case ast.If(
                    test=ast.UnaryOp(op=ast.Not(), operand=ast.Name(id=target)), orelse=[]
                ) if isinstance(self.values.get(target), _Condition):
                    pass  # a loop without iterations: its program returns copies
                case ast.While(test=ast.Name(id=target), body=body, orelse=[]) if isinstance(
                    self.values.get(target), _Condition
                ):
                    self.loop(self.values[target], body)
                case ast.Assign(targets=[ast.Name(id=target)], value=value):
                    if isinstance(value, ast.List):
                        self.lists[target] = [*map(ast.dump, value.elts)]
                    self.values[target] = self.value(value)
                    self.inputs.discard(target)
                case ast.Expr(value=ast.Call() as call):
                    self.call(call)
                case ast.Return(value=ast.Tuple(elts=results)):
                    returned = [self.value(result) for result in results]
                    for place, op in apart.items():
                        returned[place] = self.operator(op, (returned[place],), {})
                    return self.writer.finish(returned)
                case _:
                    raise UnsupportedCodeError
        raise UnsupportedCodeError

    def loop(self, condition: "_Condition", statements: list[ast.stmt]) -> None:
        """Writes a loop whose body sets its operands, runs a function, and then the condition."""
        match statements:
            case [
                ast.Assign(targets=[ast.Name(id=named)], value=ast.List(elts=operands)),
                ast.Assign(
                    targets=[ast.Tuple(elts=results)],
                    value=ast.Call(func=ast.Name(id=name), args=[ast.Name(id=named_operands)]),
                ),
                ast.Assign(value=ast.List(elts=of_condition)),
                ast.Assign(
                    targets=[ast.Tuple(elts=[ast.Name(id=answer)])],
                    value=ast.Call(func=ast.Name(id=asked)),
                ),
                ast.Assign(value=ast.Name(id=answered)),
            ]:
                pass
            case _:
                raise UnsupportedCodeError
        carried = len(results)
        carry = [*map(ast.dump, operands[:carried])]
        is_same = (
            named == named_operands
            and asked == condition.name
            and answer == answered
            and [*map(ast.dump, operands)] == condition.written
            and [*map(ast.dump, of_condition)] == condition.written
            and [ast.dump(stored).replace("Store()", "Load()") for stored in results] == carry
        )
        if not is_same:
            raise UnsupportedCodeError
        asks, runs = self.subprogram(condition.name), self.subprogram(name)
        many = self.writer.repeat_while(asks, runs, carried, condition.operands, "while_loop")
        for i, result in enumerate(results):
            match result:
                case ast.Subscript(value=ast.Name(id=target), slice=ast.Constant(value=int(place))):
                    self.values[target][place] = self.writer.item(many, i)
                case _:
                    raise UnsupportedCodeError

    def subprogram(self, name: str) -> ProgramDescription:
        """The program of a function of the wrapper's module."""
        function = self.globals[name]
        return WrapperReader(self.module, function, self.bodies, ()).program({})

    def value(self, node: ast.expr) -> Any:
        """Evaluates an expression, and writes the steps for it."""
        match node:
            case ast.Name(id=name) if name in self.values:
                return self.values[name]
            case ast.Call():
                return self.call(node)
            case ast.Subscript(value=whole, slice=ast.Constant(value=int(index))):
                value = self.value(whole)
                return self.writer.item(value, index) if _is_value(value) else value[index]
            case ast.Tuple(elts=elements):
                return tuple(map(self.value, elements))
            case ast.List(elts=elements):
                return [*map(self.value, elements)]
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                return self.arithmetic(_ARITHMETIC[type(op)], self.value(left), self.value(right))
            case _:
                return self.constant(node)

    def constant(self, node: ast.expr) -> Any:
        """Evaluates a number, or the name of an object such as a torch dtype."""
        match node:
            case ast.Constant(value=value):
                return value
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=value)):
                return -value  # type: ignore[operator]
            case ast.Name(id=name) if name in self.globals:
                return self.globals[name]
            case ast.Attribute(value=owner, attr=name):
                return getattr(self.constant(owner), name)
            case _:
                raise UnsupportedCodeError

    def call(self, node: ast.Call) -> Any:
        match node.func:
            case ast.Attribute(value=ast.Name(id=self.parameter), attr="clear"):
                return None
            case ast.Attribute(value=ast.Name(id=name), attr="size" | "stride" as which) if (
                name in self.inputs and not node.args
            ):
                return self.layout(name, which)
            case ast.Name(id=("min" | "max") as name):
                numbers = map(self.value, node.args)
                return functools.reduce(functools.partial(self.arithmetic, name), numbers)
            case ast.Name(id=name):
                return self.call_named(name, node)
            case ast.Attribute(value=ast.Name(id="extern_kernels"), attr="convolution"):
                return self.call_operator(aten.convolution.default, node)
            case ast.Attribute(value=ast.Name(id="extern_kernels"), attr=name) if name in _PRODUCTS:
                return self.multiply(name, node)
            case _:
                function = self.constant(node.func)
                if not isinstance(function, OpOverload):
                    raise UnsupportedCodeError
                return self.call_operator(function, node)

    def layout(self, name: str, which: str) -> tuple[int | SizeValue, ...]:
        """The size or the strides of an input."""
        read = self.writer.size if which == "size" else self.writer.stride
        numbers = getattr(self.known[name], which)
        return tuple(
            read(self.values[name], dim) if number is None else number
            for dim, number in enumerate(numbers)
        )

    def arithmetic(self, name: str, left: Any, right: Any) -> int | SizeValue:
        if not all(type(number) in (int, SizeValue) for number in (left, right)):
            raise UnsupportedCodeError
        if type(left) is int and type(right) is int:
            return _OF_INTEGERS[name](left, right)
        return self.writer.arithmetic(name, left, right)

    def call_named(self, name: str, node: ast.Call) -> Any:
        if name in _LAYOUT_CHECKS and isinstance(node.args[0], ast.Name):
            self.check_layout(node.args[0], *map(self.value, node.args[1:3]))
            return None
        if name == "assert_size_stride_grouped":  # checks several tensors, since torch 2.15
            tensors, sizes, strides = node.args[0], *map(self.value, node.args[1:3])
            if not isinstance(tensors, ast.Tuple):
                raise UnsupportedCodeError
            for tensor, size, stride in zip(tensors.elts, sizes, strides, strict=True):
                self.check_layout(tensor, size, stride)
            return None
        if name == "assert_alignment":  # CPU kernels do not need aligned memory
            return None
        args = [self.value(arg) for arg in node.args]
        if node.keywords:
            raise UnsupportedCodeError
        if name == "empty_strided_cpu":
            _check_numbers(*args[:2])
            return self.writer.allocate(*args)
        if name == "reinterpret_tensor":
            _check_numbers(*args[1:])
            return self.writer.reinterpret(*args)
        if self.kinds.get(name) != [*map(_kind, args)]:
            raise UnsupportedCodeError
        return self.writer.call_kernel(_kernel(self.globals[name]), args, name)

    def check_layout(self, tensor: ast.expr, size: Any, stride: Any) -> None:
        if isinstance(tensor, ast.Name) and tensor.id in self.inputs:
            return  # the call's signature has checked those of the inputs
        self.writer.check_layout(self.value(tensor), size, stride)

    def multiply(self, name: str, node: ast.Call) -> None:
        *added, one, other = map(self.value, node.args)
        named = {str(keyword.arg): self.value(keyword.value) for keyword in node.keywords}
        tensors = [named.pop("out"), one, other, *added]
        beta, alpha = named.pop("beta", 1), named.pop("alpha", 1)
        if named or len(added) != ("add" in name):
            raise UnsupportedCodeError
        self.writer.multiply(tensors, beta, alpha, f"aten.{name}.out")

    def call_operator(self, op: OpOverload, node: ast.Call) -> Any:
        args = tuple(map(self.value, node.args))
        kwargs = {str(keyword.arg): self.value(keyword.value) for keyword in node.keywords}
        if op is torch.ops.torchlayers.repeat.default:
            name, tensors, carried, sliced = args
            body = self.bodies[name]
            if body is None:
                raise UnsupportedCodeError
            return self.writer.repeat(body, carried, sliced, tensors, str(op))
        return self.operator(op, args, kwargs)

    def operator(self, op: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
        results = self.writer.call(op, args, kwargs)
        return results[0] if len(results) == 1 else results


def _is_value(value: Any) -> bool:
    return isinstance(value, Value)


def _check_numbers(*layout: Any) -> None:
    numbers = [
        number for part in layout for number in (part if isinstance(part, tuple) else (part,))
    ]
    if any(_kind(number) != "size" for number in numbers):
        raise UnsupportedCodeError


def _kind(value: Any) -> str:
    if isinstance(value, Value | Tensor):
        return "tensor"
    return "size" if type(value) in (int, SizeValue) else "unknown"


def _parameter_kinds(module: ast.Module) -> dict[str, list[str]]:
    """The kinds of parameters of each kernel in the module that takes only tensors and sizes."""
    kinds = {}
    for statement in module.body:
        match statement:
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.Call(
                    func=ast.Attribute(attr="cpp_pybinding"), args=[ast.List(elts=types), *_]
                ),
            ):
                names = [ast.literal_eval(kind) for kind in types]
                if all(kind.endswith("*") or kind == "const int64_t" for kind in names):
                    kinds[name] = ["tensor" if kind.endswith("*") else "size" for kind in names]
    return kinds


def _kernel(kernel: Any) -> program_description.Kernel:
    """The C function of a kernel, compiled by kernels.py or as a Python module."""
    if isinstance(kernel, kernels.Kernel):
        if kernel.function is None:
            raise UnsupportedCodeError
        return kernel.function
    return program_description.Kernel(kernel.__self__.__file__, "kernel")
