"""The errors torchlayers raises, and functions that find the user's line for their messages.

Each error is also the built-in exception that torch.func raises in the same case, so
that programs written for torch.func catch it too.
"""

import contextlib
import copy
import linecache
import os
import sys
import types
import warnings
from typing import Any

import torch

from torchlayers.core.logger import logger

__all__ = [
    "ArgnumsError",
    "AxisError",
    "BatchedOperatorError",
    "BatchedValueError",
    "CallError",
    "CheckError",
    "DataDependentError",
    "DimensionError",
    "DtypeError",
    "EscapedTensorError",
    "FunctionError",
    "InPlaceError",
    "MemoryBudgetError",
    "MissingDerivativeError",
    "NanError",
    "NotScalarError",
    "NotTensorError",
    "OutDimError",
    "OutputError",
    "RandomnessError",
    "RecomputationError",
    "RuleError",
    "StructureError",
    "TapError",
    "TorchVersionError",
    "TransformError",
]

_LIBRARIES = (
    os.path.dirname(torch.__file__) + os.sep,
    os.path.dirname(os.path.dirname(__file__)) + os.sep,  # the package
    contextlib.__file__,  # for decorators and with blocks
    copy.__file__,
)


class TransformError(RuntimeError):
    """A function can't be transformed, or a transform was called with invalid arguments.

    Example:
        >>> torchlayers.vmap(torch.sin, randomness="never")
        Traceback (most recent call last):
        torchlayers.errors.TransformError: torchlayers: vmap: randomness must be 'error', 'same',
        'different' or 'keyed', got 'never'.
    """


class NotScalarError(TransformError):
    """grad's function returned something other than a real scalar tensor (no dimensions).

    Example:
        >>> torchlayers.grad(torch.sin)(torch.ones(3))
        Traceback (most recent call last):
        torchlayers.errors.NotScalarError: torchlayers: grad: sin must return a scalar tensor
        (no dimensions), got shape (3,). Sum or average it, or use vjp or jacrev.
    """


class TapError(TransformError):
    """A function has no value, or several, with a name that was passed to a transform.

    Example:
        >>> torchlayers.intermediates(lambda x: torchlayers.tap(x.sin(), "a"), "b")(torch.ones(3))
        Traceback (most recent call last):
        torchlayers.errors.TapError: torchlayers: intermediates: no value is named 'b'; found
        'a'.
    """


class OutputError(TransformError):
    """A transformed function returned a value that the transform does not support.

    Example:
        >>> torchlayers.grad(torch.sum, has_aux=True)(torch.ones(3))
        Traceback (most recent call last):
        torchlayers.errors.OutputError: torchlayers: grad: the function's result should be a
        tuple: (output, aux) if has_aux is True, but it is Tensor.
    """


class ArgnumsError(TransformError):
    """argnums does not match the positional arguments, or names one twice.

    Example:
        >>> torchlayers.grad(torch.sum, argnums=1)(torch.ones(3))
        Traceback (most recent call last):
        torchlayers.errors.ArgnumsError: torchlayers: grad: argnums=1 names argument 1, but the
        call has 1 positional argument (keyword arguments can't be chosen).
    """


class StructureError(TransformError):
    """Two pytrees have to match, and do not.

    Example:
        >>> torchlayers.jvp(torch.sin, (torch.ones(3),), (torch.ones(3), torch.ones(3)))
        Traceback (most recent call last):
        torchlayers.errors.StructureError: torchlayers: jvp: tangents must have the structure of
        the primals: got (*, *) for (*,) (* is a leaf).
    """


class CallError(TransformError, TypeError):
    """A transform, or a function that it returned, was called with arguments it does not accept.

    Example:
        >>> output, vjp_fn = torchlayers.vjp(torch.sin, torch.ones(3))
        >>> vjp_fn(torch.ones(3), torch.ones(3))
        Traceback (most recent call last):
        torchlayers.errors.CallError: torchlayers: vjp: retain_graph must be a bool or None, got
        Tensor. vjp_fn takes one pytree of cotangents: where the function returned a tuple, pass a
        tuple, vjp_fn((a, b)).
    """


class DataDependentError(TransformError):
    """A function that is captured as one graph needs a value that depends on tensor data.

    Example:
        >>> absolute = torchlayers.compile(lambda x: x if x > 0 else -x, fullgraph=True)
        >>> absolute(torch.tensor(1.0))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        torchlayers.errors.DataDependentError: torchlayers: compile: <lambda> asks for the value of
        a tensor (aten._local_scalar_dense.default), but a compiled function is captured before its
        tensors have values. In ...,
        `absolute = torchlayers.compile(lambda x: x if x > 0 else -x, fullgraph=True)`.
        Use torch.where or torch.cond instead of a branch, list an argument that decides the branch
        in static_argnums, or leave that part outside.
    """


class BatchedValueError(TransformError):
    """A function under vmap asked for the Python number of a tensor that differs between samples.

    By ``x.item()``, ``if x > 0``, ``while``, ``int(x)`` and the like.

    Example:
        >>> def absolute(x):
        ...     return x if x > 0 else -x
        >>> torchlayers.vmap(absolute)(torch.ones(3))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        torchlayers.errors.BatchedValueError: torchlayers: vmap (level 1) can't convert a batched
        tensor to one Python number: it has 3 values. ...
        Use torchlayers.cond, torchlayers.while_loop or torch.where instead of if and while; or
        return the value and read it after vmap; or pass fallback='loop' to vmap, which runs one
        sample at a time. In ..., `return x if x > 0 else -x`.
    """


class BatchedOperatorError(TransformError):
    """An operator can't run on a batch.

    It has no batching rule and no other way to be batched, its results would differ in size between
    samples, or the arguments of a sample do not suit it.

    Example:
        >>> torchlayers.vmap(torch.nonzero)(torch.ones(2, 3))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        torchlayers.errors.BatchedOperatorError: torchlayers: vmap (level 1) can't run
        aten::nonzero: the results of different samples would differ in size. Use
        torch.where(mask, x, 0), call it outside vmap, or pass fallback='loop' to vmap, which runs
        one sample at a time. In ...,
        `torchlayers.vmap(torch.nonzero)(torch.ones(2, 3))...`.
    """


class InPlaceError(TransformError):
    """An in-place operator writes to a tensor from outside, which the transform can't follow.

    Example:
        >>> total = torch.zeros(())
        >>> torchlayers.vmap(lambda x: total.add_(x))(torch.ones(3))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        torchlayers.errors.InPlaceError: torchlayers: vmap (level 1) can't write a batched value
        into a tensor from outside the function that is not batched (aten::add_.Tensor): it is
        `total`, of shape (), which <lambda> captured, and has room for one sample, not for 3. Make
        a tensor inside the function (a clone of it, torch.zeros) and write to that, or use the
        out-of-place operator. In ...,
        `torchlayers.vmap(lambda x: total.add_(x))(torch.ones(3))...`.
    """


class EscapedTensorError(TransformError):
    """A tensor from inside a transform was used after the transform had ended, or outside it.

    Example:
        >>> kept = []
        >>> _ = torchlayers.vmap(lambda x: kept.append(x) or x)(torch.ones(3))
        >>> kept[0] + 1  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        torchlayers.errors.EscapedTensorError: torchlayers: a tensor batched by vmap (level 1) was
        used by aten::add.Tensor outside that transform, which has ended or is another thread's.
        Return it from the function instead of keeping it. In ..., `kept[0] + 1...`.
    """


class RandomnessError(TransformError):
    """A random operator ran under vmap without a choice of randomness.

    Example:
        >>> torchlayers.vmap(lambda x: x + torch.rand(2))(torch.ones(3))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        torchlayers.errors.RandomnessError: vmap: called random operation while in randomness error
        mode. torchlayers: vmap (level 1) called the random operator aten::rand with
        randomness='error'. Pass randomness='different' to vmap for different numbers in each
        sample, or 'same' for the same numbers in all. In ...,
        `torchlayers.vmap(lambda x: x + torch.rand(2))(torch.ones(3))...`.
    """


class MemoryBudgetError(TransformError):
    """A function can't be differentiated within a memory budget; the minimum is `least` bytes.

    Example:
        >>> def f(x):
        ...     return x.sin().exp().sum()
        >>> torchlayers.grad(f, memory_budget=100)(torch.ones(100))
        Traceback (most recent call last):
        torchlayers.errors.MemoryBudgetError: torchlayers: grad: memory_budget=100 allows 100 of the
        400 bytes that f would save for its gradient, but at least 400 are needed.
    """

    def __init__(self, message: str, least: int) -> None:
        super().__init__(message)
        self.least = least


class DtypeError(TransformError, ValueError):
    """A dtype is neither floating-point nor complex, or a tangent's does not match its primal's.

    Example:
        >>> torchlayers.grad(torch.sum)(torch.arange(3))
        Traceback (most recent call last):
        torchlayers.errors.DtypeError: torchlayers: grad: can't differentiate with respect to
        argument 0, of dtype torch.int64: only floating-point and complex tensors have gradients.
        Convert it, or leave it out of argnums.
    """


class FunctionError(TransformError):
    """An autograd.Function lacks a method that a transform needs, or one returned an invalid value.

    Example:
        >>> class Double(torch.autograd.Function):
        ...     @staticmethod
        ...     def forward(x):
        ...         return 2 * x
        ...
        ...     @staticmethod
        ...     def setup_context(ctx, inputs, output):
        ...         pass
        >>> torchlayers.vmap(Double.apply)(torch.ones(3))
        Traceback (most recent call last):
        torchlayers.errors.FunctionError: torchlayers: vmap does not know how to batch Double. If
        its methods use only torch operators, set Double.generate_vmap_rule = True; otherwise define
        a vmap staticmethod.
    """


class MissingDerivativeError(FunctionError, NotImplementedError):
    """An autograd.Function has no backward, or no jvp, and one was needed.

    Example:
        >>> class Double(torch.autograd.Function):
        ...     @staticmethod
        ...     def forward(x):
        ...         return 2 * x
        ...
        ...     @staticmethod
        ...     def setup_context(ctx, inputs, output):
        ...         pass
        >>> torchlayers.grad(Double.apply)(torch.tensor(1.0))
        Traceback (most recent call last):
        torchlayers.errors.MissingDerivativeError: torchlayers: Double has no backward
        staticmethod, which reverse mode needs. Define one, or call it on x.detach() if its
        gradient is not needed.
    """


class NanError(TransformError, FloatingPointError):
    """An operator or a derivative made a nan of numbers inside torchlayers.debug.nans.

    Example:
        >>> def entropy(p):
        ...     return -(p * p.log()).sum()
        >>> with torchlayers.debug.nans():
        ...     entropy(torch.tensor([1.0, 0.0]))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        torchlayers.errors.NanError: torchlayers: debug.nans: aten::mul.Tensor made 1 nan of
        numbers, in a result of shape (2,), at (1,), where its arguments are 0.0, -inf. In ...,
        `return -(p * p.log()).sum()`.
    """


class CheckError(TransformError, AssertionError):
    """A predicate of torchlayers.debug.check is false.

    Example:
        >>> from torchlayers import debug
        >>> def root(x):
        ...     debug.check(x >= 0, "a root of {x}", x=x)
        ...     return x.sqrt()
        >>> torchlayers.vmap(root)(torch.tensor([4.0, -1.0, 9.0]))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        torchlayers.errors.CheckError: torchlayers: debug.check: 1 of 3 samples failed: sample 1: a
        root of -1. In ..., `debug.check(x >= 0, "a root of {x}", x=x)`.
    """


class RecomputationError(TransformError):
    """A checkpointed function behaved differently when it was recomputed.

    Example:
        >>> calls = []
        >>> def fickle(x):
        ...     calls.append(x)
        ...     return x.sin().sum() if len(calls) == 1 else x.sum()
        >>> torchlayers.grad(torchlayers.checkpoint(fickle))(torch.ones(3))
        Traceback (most recent call last):
        torchlayers.errors.RecomputationError: torchlayers: checkpoint: fickle saved 1 tensors for
        its gradient, but 0 when it was recomputed. It must behave the same each time.
    """


class RuleError(TransformError, ValueError):
    """A rule can't be registered for this operator.

    Example:
        >>> torchlayers.extend.jvp_rule(torch.sin)
        Traceback (most recent call last):
        torchlayers.errors.RuleError: torchlayers: jvp_rule takes an operator
        (torch.ops.mylib.name, or the result of torch.library.custom_op), got
        builtin_function_or_method.
    """


class AxisError(TransformError, NameError):
    """No axis with this name is bound, or a collective can't run along it.

    Example:
        >>> torchlayers.vmap(lambda x: torchlayers.distributed.psum(x, "i"))(torch.ones(3))
        Traceback (most recent call last):
        torchlayers.errors.AxisError: torchlayers: psum: no axis named 'i' is bound here. Bound
        axes: none. Name the samples with vmap(..., axis_name='i'), or a mesh's dimension in a
        `with mesh:` block.
    """


class DimensionError(ValueError):
    """vmap's in_dims, out_dims or batch sizes do not match the tensors.

    Example:
        >>> torchlayers.vmap(torch.add)(torch.ones(2), torch.ones(3))
        Traceback (most recent call last):
        torchlayers.errors.DimensionError: torchlayers: vmap(add, in_dims=0): Expected all tensors
        to have the same size in the mapped dimension, but argument 0 has 2 in dim 0 and argument 1
        has 3 in dim 0. Give None in in_dims to an argument that all samples share: in_dims=(None,
        0).
    """


class OutDimError(DimensionError, IndexError):
    """vmap's out_dims contain a dimension that a result does not have.

    Example:
        >>> torchlayers.vmap(torch.sin, out_dims=2)(torch.ones(3))
        Traceback (most recent call last):
        torchlayers.errors.OutDimError: torchlayers: vmap(sin, out_dims=2): out_dim 2 is out of
        range for a result that has 1 dimensions including the batch dimension: it must lie in
        [-1, 0].
    """


class NotTensorError(TransformError, ValueError, TypeError):
    """A differentiated or batched argument, a tangent or a cotangent is not a tensor.

    Example:
        >>> torchlayers.grad(torch.sin)(1.0)
        Traceback (most recent call last):
        torchlayers.errors.NotTensorError: torchlayers: grad: argument 0 must be a tensor to be
        differentiated, got float (1.0). Convert it to a tensor, or leave it out of argnums.
    """


class TorchVersionError(TransformError, ImportError):
    """What was called needs a private name, or an operator, that the installed torch lacks.

    Example:
        >>> from torchlayers.core.private_names import lookup
        >>> lookup("torch._C._gone")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        torchlayers.errors.TorchVersionError: torchlayers: lookup needs torch._C._gone, which torch
        2... does not have. Use torch 2.11 to 2.15.
    """


def said(error: BaseException) -> str:
    """What an error says, to be said again in an error that begins with "torchlayers:" itself."""
    return str(error).removeprefix("torchlayers: ")


def instead(api: str) -> str:
    """Returns advice, for error messages, on an argument that can't be differentiated."""
    if api in ("vjp", "jvp", "hvp"):  # they differentiate with respect to all their arguments
        return "bind it beforehand, with functools.partial or a lambda"
    return "leave it out of argnums"


def untracked_capture(where: str, what: str) -> str:
    """Returns the message for a tensor from outside that a branch or loop body used undetected."""
    return (
        f"torchlayers: {where}: a branch or loop body used {what} from outside it in a way that "
        f"torchlayers can't detect (in a C++ extension, or captured by a Function).{location()} "
        "Pass it as an operand."
    )


def location(frame: types.FrameType | None = None) -> str:
    """Returns `` In file.py:7, `source line`.`` for the innermost frame in the user's code.

    Frames are searched from the given one outwards; by default, from this one.
    """
    frame = frame or sys._getframe()
    while frame is not None:
        if _is_user_frame(frame):
            return _quoted(frame, frame.f_lineno)
        frame = frame.f_back
    return ""


def warn(message: str) -> None:
    """Warns, with the innermost line of the user's code as the location; once there, by default.

    The logger has the message each time.
    """
    logger.info(message)
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and not _is_user_frame(frame):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)


def line_of_node(metadata: dict[str, Any]) -> str:
    """Returns ``file.py:7, `source line```: the user's line that created an autograd node, or "".

    Args:
        metadata: the node's anomaly-mode metadata. For a node that a backward pass created, and
            not a line of the user's, the node that the pass ran is used instead.
    """
    entries = metadata.get("traceback_", [])
    parent = metadata.get("parent_")
    if parent is not None and not (entries and _is_user_entry(entries[-1])):
        return line_of_node(parent.metadata)
    for entry in reversed(entries):
        if _is_user_entry(entry):
            place, _, line = entry.strip().partition("\n")
            number = place.partition(", line ")[2].partition(",")[0]
            filename = os.path.basename(place.split('"')[1])
            return f"{filename}:{number}" + (f", `{line.splitlines()[0].strip()}`" if line else "")
    return ""


def _is_user_entry(entry: str) -> bool:
    """Whether an entry of a formatted traceback is in the user's code."""
    return is_user_file(entry.split('"')[1])


# How torch's errors begin if something accesses the memory of a tensor inside a transform.
_NO_MEMORY = (
    "Cannot access data pointer of Tensor",
    "Cannot access storage of TensorWrapper",
    "Cannot access storage of a tensor batched by torchlayers.vmap",
    "The tensor has a non-zero number of elements, but its data is not allocated yet",
)


def explain(error: RuntimeError, layer: str, samples: Any) -> None:
    """Raises an error with advice, if a function needed a tensor with memory and got a wrapper.

    Args:
        error: the error that the function raised.
        layer: the layer's name on the stack.
        samples: a vmap's batch size, or None for another layer.
    """
    text = str(error)
    if text.startswith(_NO_MEMORY):
        contents = "a wrapper around its value" if samples is None else f"{samples} samples at once"
        asking = "untyped_storage()" if "storage of" in text else "tolist(), numpy() or data_ptr()"
        advice = (
            f"can't give {asking} access to memory: inside it a tensor is {contents} "
            f"({text.splitlines()[0]}). Return the tensor, and convert it outside."
        )
    elif text.startswith("accessing `data` under vmap transform is not allowed"):
        advice = f"has no `data` of its own ({text}). Use x.detach()."
    elif text.startswith("backward() called inside a functorch transform"):
        advice = (
            "can't run backward(), which adds to the .grad of tensors that the transform does not "
            f"track ({text}). Use torch.autograd.grad(loss, inputs), or torchlayers.grad."
        )
    elif text.startswith("NYI: querying is_contiguous inside of vmap"):
        advice = (
            f"can't tell the memory format of a single sample ({text}). Check it before vmap, or "
            "call contiguous()."
        )
    else:
        return
    raise TransformError(f"torchlayers: {layer} {advice}{location_of(error)}") from error


def location_of(error: BaseException) -> str:
    place = ""
    trace = error.__traceback__
    while trace is not None:
        if _is_user_frame(trace.tb_frame):
            place = _quoted(trace.tb_frame, trace.tb_lineno)
        trace = trace.tb_next
    return place


def _is_user_frame(frame: types.FrameType) -> bool:
    return is_user_file(frame.f_code.co_filename)


def is_user_file(filename: str) -> bool:
    """Whether the file is the user's: not torch's, ours, or a standard-library file in between."""
    return not filename.startswith((*_LIBRARIES, "<frozen"))


def _quoted(frame: types.FrameType, number: int) -> str:
    return f" In {quoted_line(frame.f_code.co_filename, number)}."


def quoted_line(filename: str, number: int) -> str:
    """Returns ``file.py:7, `source line```, without the source if it can't be read."""
    line = linecache.getline(filename, number).strip()
    quoted = f", `{line}`" if line else ""
    return f"{os.path.basename(filename)}:{number}{quoted}"


for _name in __all__:  # tracebacks show the module that programs import them from
    globals()[_name].__module__ = "torchlayers.errors"
