"""Inductor's code without its Python: kernels called by a program.

For the CPU inductor writes kernels in C++, and a Python function that allocates memory and calls
them one after the other. At small sizes that function takes longer than the kernels. It is a list
of few kinds of statements, which are read here and become the steps of a program in C++. Where
there is another kind, as for another device, inductor's function stays. Sizes that are symbols are
read from the inputs: such a function is read anew for other sizes.
"""

import ast
import ctypes
import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._ops import OpOverload

from torchlayers._C import Program, ProgramWriter, RecordedValue
from torchlayers.compiler.inductor.kernels import Kernel
from torchlayers.core.device import HOST

_aten = torch.ops.aten
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")
# Of one tensor. The second, since 2.15, has a dtype too: where an operator's is another than it
# says, the first call's results show it.
_LAYOUT_CHECKS = ("assert_size_stride", "assert_tensor_metadata")


_ARITHMETIC: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


class _UnknownError(Exception):
    """The function has something that isn't known here."""


class Layout(NamedTuple):
    size: tuple[int, ...]
    stride: tuple[int, ...]


def program_of(
    code: Any,
    bodies: Mapping[str, Any] | None = None,
    apart: Mapping[int, OpOverload] | None = None,
    inputs: Sequence[Layout] = (),
) -> Program | None:
    """What inductor compiled, as a program; None where it is more than is known here.

    Args:
        code: a CompiledFxGraph.
        bodies: what its scans run, by name.
        apart: of results that are to be tensors of their own, what makes them that: inductor
            returns one tensor for several.
        inputs: what it will be given, where sizes are symbols to it.
    """
    try:
        if code.inputs_to_check or set(code.device_types) != {HOST.type}:
            return None
        function = code.current_callable.__func__
        module = _parsed(function.__code__.co_filename)
        return _Reader(module, function, bodies or {}, inputs).program(apart or {})
    except (_UnknownError, AttributeError, OSError, KeyError, TypeError, ValueError):
        return None


@functools.lru_cache(32)  # read anew for each size
def _parsed(path: str) -> ast.Module:
    with open(path, encoding="utf-8") as file:
        return ast.parse(file.read())


class _Reader:
    """Reads the function, and writes the program."""

    def __init__(
        self,
        module: ast.Module,
        function: Callable[..., Any],
        bodies: Mapping[str, Any],
        inputs: Sequence[Layout],
    ) -> None:
        self.bodies = bodies
        self.layouts = inputs
        self.globals: dict[str, Any] = function.__globals__
        functions = [
            node
            for node in ast.walk(module)
            if isinstance(node, ast.FunctionDef) and node.name == function.__name__
        ]
        if len(functions) != 1:
            raise _UnknownError
        self.body = functions[0].body
        self.parameter = functions[0].args.args[-1].arg
        self.kernels = _kernels(module)
        # What each name is: values, several results of an operator, constants, sizes.
        self.values: dict[str, Any] = {}
        self.known: dict[str, Layout] = {}  # of inputs

    def program(self, apart: Mapping[int, OpOverload]) -> Program:
        unpacked, *rest = self.body
        match unpacked:
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Name(id=self.parameter)) if (
                all(isinstance(name, ast.Name) for name in names)
            ):
                pass
            case _:
                raise _UnknownError
        self.writer = ProgramWriter(len(names))
        for i, name in enumerate(names):
            self.values[name.id] = RecordedValue(i)  # type: ignore[attr-defined]
        self.inputs = {*self.values}
        self.known = dict(zip(self.values, self.layouts, strict=False))
        for statement in rest:
            match statement:
                case ast.Delete():  # a value is freed where it is read last
                    pass
                case ast.Assign(targets=[ast.Name(id=target)], value=value):
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
                    raise _UnknownError
        raise _UnknownError

    def value(self, node: ast.expr) -> Any:
        """What an expression comes to; its steps are written."""
        match node:
            case ast.Name(id=name) if name in self.values:
                return self.values[name]
            case ast.Call():
                return self.call(node)
            case ast.Subscript(value=held, slice=ast.Constant(value=int(index))):
                value = self.value(held)
                return self.writer.item(value, index) if _is_value(value) else value[index]
            case ast.Tuple(elts=elements):
                return tuple(map(self.value, elements))
            case ast.List(elts=elements):
                return [*map(self.value, elements)]
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                return _ARITHMETIC[type(op)](*_ints(self.value(left), self.value(right)))
            case _:
                return self.constant(node)

    def constant(self, node: ast.expr) -> Any:
        """A number, or something of torch's, such as a dtype, by its name."""
        match node:
            case ast.Constant(value=value):
                return value
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=value)):
                return -value  # type: ignore[operator]
            case ast.Name(id=name) if name in self.globals:
                return self.globals[name]
            case ast.Attribute(value=held, attr=name):
                return getattr(self.constant(held), name)
            case _:
                raise _UnknownError

    def call(self, node: ast.Call) -> Any:
        match node.func:
            case ast.Attribute(value=ast.Name(id=self.parameter), attr="clear"):
                return None
            case ast.Attribute(value=ast.Name(id=name), attr="size" | "stride" as which) if (
                name in self.inputs and not node.args
            ):
                return getattr(self.known[name], which)
            case ast.Name(id=("min" | "max") as name):
                return (min if name == "min" else max)(_ints(*map(self.value, node.args)))
            case ast.Name(id=name):
                return self.call_named(name, node)
            case ast.Attribute(value=ast.Name(id="extern_kernels"), attr="convolution"):
                return self.call_operator(_aten.convolution.default, node)
            case ast.Attribute(value=ast.Name(id="extern_kernels"), attr=name) if name in _PRODUCTS:
                return self.multiply(name, node)
            case _:
                function = self.constant(node.func)
                if not isinstance(function, OpOverload):
                    raise _UnknownError
                return self.call_operator(function, node)

    def call_named(self, name: str, node: ast.Call) -> Any:
        if name in _LAYOUT_CHECKS and isinstance(node.args[0], ast.Name):
            self.check_layout(node.args[0], *map(self.value, node.args[1:3]))
            return None
        if name == "assert_size_stride_grouped":  # of several tensors, since 2.15
            tensors, sizes, strides = node.args[0], *map(self.value, node.args[1:3])
            if not isinstance(tensors, ast.Tuple):
                raise _UnknownError
            for tensor, size, stride in zip(tensors.elts, sizes, strides, strict=True):
                self.check_layout(tensor, size, stride)
            return None
        if name == "assert_alignment":  # kernels for the CPU read memory from any address on
            return None
        args = [self.value(arg) for arg in node.args]
        if node.keywords:
            raise _UnknownError
        if name == "empty_strided_cpu":
            return self.writer.allocate(*args)
        if name == "reinterpret_tensor":
            return self.writer.reinterpret(*args)
        if self.kernels.get(name) != [*map(_kind, args)]:
            raise _UnknownError
        return self.writer.call_kernel(_address(self.globals[name]), args, name)

    def check_layout(self, tensor: ast.expr, size: Any, stride: Any) -> None:
        if isinstance(tensor, ast.Name) and tensor.id in self.inputs:
            return  # the call's signature has those of the inputs
        self.writer.check_layout(self.value(tensor), size, stride)

    def multiply(self, name: str, node: ast.Call) -> None:
        *added, one, other = map(self.value, node.args)
        named = {str(keyword.arg): self.value(keyword.value) for keyword in node.keywords}
        tensors = [named.pop("out"), one, other, *added]
        beta, alpha = named.pop("beta", 1), named.pop("alpha", 1)
        if named or len(added) != ("add" in name):
            raise _UnknownError
        self.writer.multiply(tensors, beta, alpha, f"aten.{name}.out")

    def call_operator(self, op: OpOverload, node: ast.Call) -> Any:
        args = tuple(map(self.value, node.args))
        kwargs = {str(keyword.arg): self.value(keyword.value) for keyword in node.keywords}
        if op is torch.ops.torchlayers.repeat.default:
            name, tensors, carried, sliced = args
            body = self.bodies[name]
            if not isinstance(body, Program):
                raise _UnknownError
            return self.writer.repeat(body, carried, sliced, tensors, str(op))
        return self.operator(op, args, kwargs)

    def operator(self, op: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
        schema = op._schema
        results = self.writer.call(schema.name, schema.overload_name, args, kwargs, str(op))
        return results[0] if len(results) == 1 else results


def _is_value(value: Any) -> bool:
    return isinstance(value, RecordedValue)


def _ints(*values: Any) -> tuple[int, ...]:
    if any(type(value) is not int for value in values):
        raise _UnknownError
    return values


def _kind(value: Any) -> str:
    if isinstance(value, RecordedValue | Tensor):
        return "tensor"
    return "size" if type(value) is int else "unknown"


def _kernels(module: ast.Module) -> dict[str, list[str]]:
    """What each kernel of the module takes, of those that take tensors and sizes alone."""
    found = {}
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
                    found[name] = ["tensor" if kind.endswith("*") else "size" for kind in names]
    return found


def _address(kernel: Any) -> int:
    """Where the function in C is, of a kernel alone or of one that has a module for Python."""
    if isinstance(kernel, Kernel):
        address = kernel.address
    else:
        library = ctypes.CDLL(kernel.__self__.__file__)
        address = ctypes.cast(library.kernel, ctypes.c_void_p).value
    if address is None:
        raise _UnknownError
    return address
