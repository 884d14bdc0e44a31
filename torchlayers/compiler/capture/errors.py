"""Errors for functions that can't be captured: what they do, and what to do instead."""

import dataclasses
import gc
import re
from collections.abc import Callable, Coroutine, Iterator
from types import FunctionType, ModuleType
from typing import Any

from torch import Tensor
from torch.nn import Module, Parameter

from torchlayers.core import pytree
from torchlayers.core.errors import (
    DataDependentError,
    RecomputationError,
    TransformError,
    location,
    location_of,
)
from torchlayers.core.torch_private import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
)

DATA_DEPENDENT = (DataDependentOutputException, DynamicOutputShapeException)

# The number of objects that are searched for tensors hidden in a result.
_MAX_OBJECTS = 10_000

ALTERNATIVES = (
    "Use torch.where or torch.cond instead of a branch, list an argument that decides the branch "
    "in static_argnums, or leave that part outside."
)


NO_VALUES = "but a compiled function is captured before its tensors have values."
_WITHOUT_NUMPY = (
    "Write it with torch functions, on arrays converted to tensors (torch.as_tensor), or leave "
    "that part outside."
)


class BackwardInsideError(TransformError):
    """A function called backward(), which adds to .grad."""

    def __init__(self, func: Callable[..., Any]) -> None:
        super().__init__(
            f"torchlayers: compile: {name_of(func)} calls backward(), and gradients that it "
            "accumulates into .grad are not captured. Return the gradients (torch.autograd.grad or "
            "torchlayers.grad), or call backward() on what the compiled function returns."
        )


class NotWritableError(TransformError):
    """A function changed Python's state in a way that calls can't repeat.

    Attributes:
        what: it did: "stores a tensor in ...".
    """

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(
            f"torchlayers: compile: a captured function {what}, which later calls can't: {remedy}."
        )
        self.what = what


class MemoryReadError(DataDependentError):
    """A function reads the memory of a tensor: ``x.numpy()`` and the like."""

    def __init__(self, func: Callable[..., Any], read: str) -> None:
        super().__init__(
            f"torchlayers: compile: {name_of(func)} asks for the value of a tensor ({read}), "
            f"{NO_VALUES}{location()} {_WITHOUT_NUMPY}"
        )


class RaisedInCaptureError(Exception):
    """An exception of the function itself, which the uncompiled function is to raise."""


class RetainedGradientError(TransformError):
    """A function differentiates with respect to a captured tensor that retains its gradient."""

    def __init__(self, func: Callable[..., Any]) -> None:
        super().__init__(
            f"torchlayers: compile: {name_of(func)} calls torch.autograd.grad for a captured "
            "tensor with retain_grad(), and retaining a gradient can't be captured. Capture a view "
            "of it, or pass it as an argument."
        )


class ConjugatedError(TransformError):
    """A function captured a tensor whose conjugate or negative bit is set."""

    def __init__(self, func: Callable[..., Any]) -> None:
        super().__init__(
            f"torchlayers: compile: {name_of(func)} captures a tensor that is conjugated lazily."
            f"{location()} Capture its resolve_conj().resolve_neg(), or pass it as an argument."
        )


class ContainerError(TransformError):
    """A function changed a list or dict among its arguments."""

    def __init__(self, func: Callable[..., Any]) -> None:
        super().__init__(
            f"torchlayers: compile: {name_of(func)} changes a container that it was passed, but "
            "its Python code runs only once: change a copy, and return the new values."
        )


class HiddenTensorError(TransformError):
    """A function computed with fake tensors of the capture where the capture does not see it."""

    def __init__(self, func: Callable[..., Any]) -> None:
        super().__init__(
            f"torchlayers: compile: {name_of(func)} calls a function that traces operators itself, "
            "as torch.func.linearize does, so they would be missing from the captured graph. Call "
            "torchlayers' function of that name, or leave that part outside."
        )


class IndexedWriteError(TransformError):
    """A function writes to x or x[i] where x[i] should be a view but is captured as a copy."""

    def __init__(self, func: Callable[..., Any], line: str, *, in_subgraph: bool) -> None:
        self.in_subgraph = in_subgraph  # a loop's body, which may be unrolled, or a branch
        super().__init__(
            f"torchlayers: compile: {name_of(func)} indexes x[i] with a tensor, which makes a copy "
            "in the captured graph, and then writes to that copy, or writes to x and reads the "
            f"copy afterwards.{line} Write x[i] = ... to write, and read x[i].clone() for the old "
            "values."
        )


class SeedError(TransformError):
    """A function seeds a random generator."""

    def __init__(self, func: Callable[..., Any], name: str) -> None:
        super().__init__(
            f"torchlayers: compile: {name_of(func)} calls torch.{name}, but its Python code runs "
            f"only once: later calls would draw other numbers.{location()} Seed outside the "
            "compiled function, or draw with a key (torchlayers.random)."
        )


class UnsupportedTensorError(TransformError):
    """A function captured, or returns, a kind of tensor that no captured graph can hold."""

    def __init__(self, func: Callable[..., Any], kind: str) -> None:
        super().__init__(
            f"torchlayers: compile: {name_of(func)} captures or returns {kind}, which a captured "
            f"graph can't hold.{location()} Capture or return the plain tensors that it consists "
            "of, or pass it as an argument: then the function runs uncompiled."
        )


def is_refusal(error: Exception) -> bool:
    """Whether an exception is the capture's, and not one that the uncompiled function raises."""
    if isinstance(error, RecomputationError):  # of a function that behaves differently each time
        return True
    return isinstance(error, TransformError) and str(error).startswith("torchlayers: compile:")


def describe_unsupported(tensor: Tensor) -> str | None:
    """Describes a tensor that no captured graph can hold; returns None for any other."""
    if tensor.is_quantized:
        return "a quantized tensor"
    if tensor.is_nested:
        return "a nested tensor"
    if tensor.is_mkldnn:
        return "an MKL-DNN tensor"
    kind: Any = type(tensor)
    changes_nothing = (
        kind.__torch_function__ is Parameter.__torch_function__
        and kind.__torch_dispatch__ is Tensor.__torch_dispatch__
    )
    return None if kind is Tensor or changes_nothing else f"a tensor of the class {kind.__name__}"


def explain_capture_error(error: BaseException, func: Callable[..., Any]) -> None:
    """Raises a clearer error if there is one: DataDependentError if the function needed data."""
    name, ways_out = name_of(func), ALTERNATIVES
    if isinstance(cause := _cause(error), DataDependentError):
        raise cause
    if isinstance(error, DynamicOutputShapeException):
        what = f"has a result whose shape depends on data ({error.func})"
    elif isinstance(error, DataDependentOutputException):
        what = f"asks for the value of a tensor ({error.func})"
    elif "get value out of a tracing tensor" in str(error) or _reads_memory(error):
        what = f"asks for the value of a tensor ({str(error).splitlines()[0]})"
        if ".numpy()" in what:
            ways_out = _WITHOUT_NUMPY
    else:
        _explain_by_text(error, name)
        _explain_torch_func(error, name)
        return
    raise DataDependentError(
        f"torchlayers: compile: {name} {what}, {NO_VALUES}"
        f"{location_of(error) or location()} {ways_out}"
    ) from error


def _cause(error: BaseException) -> BaseException:
    """Follows the causes to a DataDependentError, or to the first: torch.testing wraps errors."""
    while error.__cause__ is not None and not isinstance(error, DataDependentError):
        error = error.__cause__
    return error


_JAGGED = (
    "creates a tensor of a class that holds other tensors, such as a nested tensor of jagged "
    "layout",
    "Create it outside, or pass it as an argument.",
)
OPAQUE_MEMORY = "Cannot access storage of OpaqueTensorImpl"
# By a part of torch's message: what the function did, and what to do.
_REFUSED = {
    "a leaf Variable that requires grad is being used in an in-place operation": (
        "writes to a tensor that requires grad, which autograd would have to track on the caller's "
        "tensor",
        "Write under torch.no_grad(), or return the new value instead of writing it.",
    ),
    "argument of type: <class 'torch.storage.UntypedStorage'>": (
        "writes to the memory of a tensor through its storage",
        "Write to the tensor.",
    ),
    "fake tensor modes must be the same": _JAGGED,
    "shape_env must not be None": _JAGGED,
    "_nested_tensor_from_tensor_list": (
        "creates a nested tensor, which a captured graph can't hold",
        "Pad the tensors, or create it outside.",
    ),
    "Creating a new Tensor subclass": (
        "creates an instance of a Tensor subclass, which a captured graph can't hold",
        "Return plain tensors, and create it from them outside.",
    ),
    "Values and compressed tensor instance need to be on the same device": (
        "creates a compressed sparse tensor, which a captured graph can't hold",
        "Return its indices and values, and create it outside.",
    ),
    OPAQUE_MEMORY: (
        "creates a tensor whose memory torch does not expose (to_mkldnn), which a captured graph "
        "can't hold",
        "Leave that outside.",
    ),
    "Cannot swap t": (
        "swaps two tensors",
        "Swap them outside, or copy_ one to the other.",
    ),
}


def _explain_by_text(error: BaseException, name: str) -> None:
    for message, (what, advice) in _REFUSED.items():
        if message in str(error):
            raise TransformError(
                f"torchlayers: compile: {name} {what}.{location_of(error)} {advice}"
            ) from error


def _explain_torch_func(error: BaseException, name: str) -> None:
    """Explains a mix with meta: tangents that torch.func creates lose a fake tensor's device."""
    if isinstance(error, RuntimeError) and re.search(r"(but got|and) meta\b", str(error)):
        raise TransformError(
            f"torchlayers: compile: {name} has tensors on two devices, one of which is meta "
            f"({str(error).splitlines()[0]}). If the function itself has no meta tensors, forward "
            "mode of torch.func (jvp, jacfwd, hessian) is being differentiated, which torch can't "
            "do on fake tensors: use torchlayers' transforms of these names, which "
            "torchlayers.install() puts in torch.func."
        ) from error


def _reads_memory(error: BaseException) -> bool:
    text = str(error)
    return isinstance(error, RuntimeError) and (
        "Cannot access data pointer" in text
        or "not supported for tensor subclasses" in text
        or "data is not allocated yet" in text
    )


def refuse_hidden_tensors(result: Any, func: Callable[..., Any]) -> None:
    """Raises if a leaf of the result hides fake tensors of the capture, which have no data."""
    if isinstance(result, (Iterator, Coroutine)) or _hides_any(result):
        raise TransformError(
            f"torchlayers: compile: {name_of(func)} returns {type(result).__name__}, which is not "
            "a pytree: its tensors are fake tensors of the capture, without data. Return the "
            "tensors themselves, in tuples, lists or dicts, or register its class as a pytree."
        )


def _hides_any(result: Any) -> bool:
    """Whether a fake tensor can be reached from the result, within _MAX_OBJECTS objects."""
    waiting, seen = [result], dict[int, Any]()
    while waiting and len(seen) < _MAX_OBJECTS:
        value = waiting.pop()
        if isinstance(value, FakeTensor):
            return True
        if id(value) in seen or isinstance(value, (type, ModuleType)):
            continue
        seen[id(value)] = value
        if isinstance(value, FunctionType):  # not its globals
            waiting += [value.__closure__, value.__defaults__, value.__kwdefaults__]
        else:
            waiting += gc.get_referents(value)
    return False


_HASHED = {
    "ndarray": "Make it a tensor (torch.as_tensor)",
    "set": "Make it a frozenset",
    "list": "Make it a tuple, or a non-static argument: values in lists are constants anyway",
    "dict": "Make it a non-static argument: values in dicts are constants anyway",
}


def unhashable(where: str, value: Any) -> TransformError:
    """Returns the error for an argument that can't be a part of a signature."""
    kind = type(value).__name__
    if dataclasses.is_dataclass(value):
        advice = "Make it frozen (@dataclass(frozen=True)), or register it as a pytree"
    else:
        advice = _HASHED.get(kind, "Give its class __hash__ and __eq__, or register it as a pytree")
    return TransformError(
        f"torchlayers: compile: {where} is of type {kind}, which is not hashable: an argument that "
        f"is not a tensor is a constant that calls are told apart by. {advice}, or capture it."
    )


def name_of(func: Callable[..., Any]) -> str:
    """Returns the name of a function or module in messages."""
    return func.__class__.__name__ if isinstance(func, Module) else pytree.name_of(func)
