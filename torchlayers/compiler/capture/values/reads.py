"""Reads of tensor values during capture: the points where the captured graph is split.

At a read the value is computed on the tensors of the call, and the function goes on with it. The
graph gets a node for the read, at which runtime/ splits it: what follows holds for calls that read
the same answer.
"""

import struct
import types
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.experimental import proxy_tensor
from torch.nn import Module

from torchlayers.compiler.capture.bytecode import name_accesses
from torchlayers.compiler.capture.errors import RaisedInCaptureError
from torchlayers.compiler.capture.values.evaluation import Evaluation, NoValueError, plainly
from torchlayers.compiler.capture.values.traced_numbers import TensorNumber
from torchlayers.core import pytree
from torchlayers.core.errors import location, warn
from torchlayers.core.operators import aten
from torchlayers.core.torch_private import FakeTensor
from torchlayers.fx.fake_tensors import fake_like

# The most elements whose floats are traced one by one.
_FLOATS = 64
# The most reads of one call.
_MOST = 256
_MASKS = (torch.bool, torch.uint8)


class Read(NamedTuple):
    """One read of a captured function.

    Attributes:
        node: calls the operator that reads, on its operands; it stands where the function read.
        answer: the result as a key: see answer_of.
        line: of the user's code.
    """

    node: Node
    answer: Any
    line: str


class RaisedAfterReadError(RaisedInCaptureError):
    """An exception of the function itself, after it had read these values of tensors.

    If ``why`` is not empty, it says why no call of the function can be captured.
    """

    def __init__(self, reads: list[Read], why: str = "", line: str = "") -> None:
        super().__init__()
        self.reads = reads
        self.why = why
        self.line = line or (reads[-1].line if reads else "")


class UntraceableError(Exception):
    """The reason why a function can't be captured with the values that it reads."""


def warn_of_reads(name: str, why: str, line: str) -> None:
    """Warns that a function runs uncompiled where it reads values that it has not read before."""
    warn(
        f"torchlayers: compile: {name} reads values of tensors, and runs uncompiled where it reads "
        f"new ones: {why}, most recently here: {line} Use torch.where, torchlayers.cond or "
        "torchlayers.while_loop, or compile the code before and after that line."
    )


def answer_of(result: Any) -> Any:
    """The result of a read as a key of a dict: a number, or the shapes and strides of tensors."""
    kind = type(result)
    if kind in (bool, int, str):
        return result
    if kind is float:  # as bytes: nan equals nan, and 0.0 differs from -0.0
        return struct.pack("d", result)
    if kind is complex:
        return struct.pack("dd", result.real, result.imag)
    if isinstance(result, Tensor):
        return tuple(result.shape), result.stride()
    if kind is tuple or kind is list:
        return tuple(map(answer_of, result))
    return result.dtype.str, result.shape, result.tobytes()  # an array


def read_array(x: Tensor) -> Any:
    """Returns the values of a tensor as an array of NumPy with its own memory."""
    return x.detach().resolve_conj().resolve_neg().cpu().numpy().copy()


def read_text(x: Tensor) -> str:
    """Returns ``repr(x)``."""
    return repr(x)


class TensorReads:
    """The reads of one capture.

    Args:
        answers: what the first reads are to return; None where that is left to the tensors. What
            runs a call may have computed a number that is rounded otherwise than here.
        traces_floats: trace floats as far as possible: see traced_numbers.py.

    Attributes:
        defers_arrays: whether ``x.numpy()`` is to be put into an array: see numpy_arrays.py.
    """

    defers_arrays = False

    def __init__(self, answers: Sequence[Any] = (), *, traces_floats: bool = True) -> None:
        self.performed: list[Read] = []
        self.any_float = False  # whether there is a TensorNumber
        self._answers = answers
        self.traces_floats = traces_floats
        self._floats: list[weakref.ref[TensorNumber]] = []
        self._wanted: list[Tensor] | None = None  # tensors of which only the graph needs numbers
        self._arrays: list[tuple[Any, bytes]] = []  # with their values when they were read
        self._evaluation: Evaluation

    def start(self, root: Module) -> None:
        """Starts to read from the graph that is captured now, whose attributes the root has."""
        mode: Any = proxy_tensor.get_proxy_mode()
        self._tracer = mode.tracer
        self._evaluation = Evaluation(root)

    def stop(self) -> None:
        self._evaluation.restore()

    def add_input(self, node: Node, value: Tensor) -> None:
        self._evaluation.add_input(node, value)

    def read(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Returns the result of an operator that depends on data, or NotImplemented.

        Masks are read as the positions where they are true, so that only these split the graph.
        """
        mode: Any = proxy_tensor.get_proxy_mode()
        if mode is None or mode.tracer is not self._tracer:
            return NotImplemented  # in a branch or a loop's body, for instance
        if self._wanted is not None and func is aten._local_scalar_dense.default:
            self._wanted.append(args[0])
            return 0.5 if args[0].is_floating_point() else 0
        if func is aten.masked_select.default:
            x, mask = args
            shape = torch.broadcast_shapes(x.shape, mask.shape)  # type: ignore[no-untyped-call]
            mask = aten.reshape.default(aten.expand.default(mask, shape), [-1])
            places = self._read(aten.nonzero.default, (mask,), {})
            if places is NotImplemented:
                return NotImplemented
            x = aten.reshape.default(aten.expand.default(x, shape), [-1])
            return aten.index_select.default(x, 0, aten.select.int(places, 1, 0))
        if func is aten.index.Tensor:
            return self._indexed(*args)
        return self._read(func, args, kwargs)

    def check_errors(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Replaces the check of linear algebra for errors, where the function may catch them.

        Whether there is one is read. Where it can't be, the check is captured.
        """
        any_error = aten.any.default(aten.ne.Scalar(args[0], 0))
        is_error = self.read(aten._local_scalar_dense.default, (any_error,), {})
        if is_error is NotImplemented:
            return func(*args, **kwargs)
        if is_error:
            slot: Any = proxy_tensor.get_proxy_slot(args[0], self._tracer)
            with plainly():
                func(*self._evaluation.values([slot.proxy.node]), *args[1:], **kwargs)
            raise torch.linalg.LinAlgError(  # type: ignore[attr-defined]
                f"{args[1]}: the input is singular"
            )
        return None

    def item(self, x: Tensor) -> Any:
        """Replaces ``x.item()``: a float is traced."""
        if not (self.traces_floats and x.is_floating_point()):
            return x.item()
        number, tensor = self._without_value(x)
        if tensor is None:
            return number
        self.any_float = True
        return TensorNumber(tensor.detach().reshape(()).to(torch.float64), self._floats)

    def numbers(self, x: Tensor) -> Any:
        """Replaces ``x.tolist()``; numbers that are not traced are read at once."""
        if x.dim() == 0:
            return self.item(x)
        if x.is_floating_point() and x.numel() <= _FLOATS:
            return [*map(self.numbers, x.unbind())]
        numbers = [self._without_value(element) for element in x.reshape(-1).unbind()]
        tensors = [tensor for _, tensor in numbers if tensor is not None]
        if len(tensors) < len(numbers):
            return [*map(self.numbers, x.unbind())]  # constants
        values = self.read(read_array, (torch.stack(tensors).reshape(x.shape),), {})
        if values is NotImplemented:
            return [*map(self.numbers, x.unbind())]
        return values.tolist()

    def array(self, x: Tensor) -> Any:
        """Replaces ``x.numpy()``; returns NotImplemented if that can't be read."""
        x = x.detach()  # of a captured tensor, a fake tensor
        if not isinstance(x, FakeTensor):
            return NotImplemented
        values = self.read(read_array, (x,), {})
        if values is not NotImplemented:
            self._arrays.append((values, values.tobytes()))
        return values

    def text(self, x: Tensor, *, tensor_contents: str | None = None) -> Any:
        """Replaces ``repr(x)``."""
        if tensor_contents is not None or type(x) is not FakeTensor or x.requires_grad:
            raise UntraceableError("it prints a tensor of a transform or of autograd to a string")
        result = self.read(read_text, (x,), {})
        return read_text(x) if result is NotImplemented else result

    def check_arrays(self) -> None:
        """Raises if the function wrote to an array that it read."""
        for values, before in self._arrays:
            if values.tobytes() != before:
                raise UntraceableError("it writes to the array that shares a tensor's memory")

    def check_numbers(
        self, known: Collection[int], ran: Iterable[types.CodeType], any_host: bool
    ) -> None:
        """Raises where a traced number may have been taken for another thing than a number.

        Args:
            known: the ids of the floats that each call makes again; others must be gone.
            ran: the user's code that ran.
            any_host: whether numbers of Python are traced, too.
        """
        if self.any_float or any_host:
            names = [name_accesses(code).globals for code in ran]
            if any("type" in used and {"float", "int"} & used for used in names):
                raise UntraceableError("it asks whether the type of a number is float")
        if any((x := ref()) is not None and id(x) not in known for ref in self._floats):
            raise UntraceableError("it stores a number where calls can't store one")

    def _without_value(self, x: Tensor) -> tuple[Any, Tensor | None]:
        """Asks for the number in a tensor, through all layers, which may refuse.

        Returns:
            the number, if it is a constant, and otherwise the tensor below the layers.
        """
        before, self._wanted = self._wanted, []
        try:
            number = x.item()
            return number, self._wanted[0] if self._wanted else None
        finally:
            self._wanted = before

    def _indexed(self, x: Tensor, indices: list[Tensor | None]) -> Any:
        positions: list[Tensor | None] = []
        for index in indices:
            if index is None or index.dtype not in _MASKS:
                positions.append(index)
                continue
            places = self._read(aten.nonzero.default, (index,), {})
            if places is NotImplemented:
                return NotImplemented
            positions += aten.unbind.int(places, 1)
        return aten.index.Tensor(x, positions)

    def _read(self, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        leaves, spec = pytree.flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        slots: list[Any] = [proxy_tensor.get_proxy_slot(x, self._tracer, None) for x in tensors]
        if None in slots:
            return NotImplemented
        nodes = [slot.proxy.node for slot in slots]
        try:
            values = iter(self._evaluation.values(nodes))
        except NoValueError:
            return NotImplemented
        real = [next(values) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        with plainly():
            real_args, real_kwargs = pytree.unflatten(real, spec)
            result = func(*real_args, **real_kwargs)
        place = len(self.performed)
        forced = self._answers[place] if place < len(self._answers) else None
        if type(forced) is type(result):
            result = forced
        return self._add(func, self._tracer.proxies((args, kwargs)), result)

    def _add(self, func: Callable[..., Any], operands: Any, result: Any) -> Any:
        """Adds the node of a read, and returns its result, tensors as fake tensors."""
        proxy = self._tracer.create_proxy("call_function", func, *operands)
        node = proxy.node
        if len(self.performed) >= _MOST:
            raise UntraceableError(f"a call reads more than {_MOST} values")
        self.performed.append(Read(node, answer_of(result), location().strip()))
        self._evaluation.put(node, result)
        tensors = [leaf for leaf in pytree.leaves(result) if isinstance(leaf, Tensor)]
        if not tensors:
            return result
        with proxy_tensor.disable_proxy_modes_tracing():
            mode: Any = _fake_mode(node)
            fake = pytree.map_tensors(lambda x: fake_like(mode, x), result)
            proxy_tensor.track_tensor_tree(fake, proxy, constant=None, tracer=self._tracer)
        for item in node.users:
            self._evaluation.put(item, result[item.args[1]])
        return fake


def _fake_mode(node: Node) -> Any:
    """The mode of the fake tensors that the node reads."""
    fakes = (n.meta.get("val") for n in node.all_input_nodes)
    return next(fake.fake_mode for fake in fakes if isinstance(fake, FakeTensor))
