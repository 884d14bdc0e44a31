"""The errors torchlayers raises, and where in the user's code they happened.

Each is also the built-in exception that torch.func raises in the same case, so
that programs written for torch.func catch them too.
"""

import linecache
import os
import sys
import types
from typing import Any

import torch

_LIBRARIES = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(__file__) + os.sep)


class TransformError(RuntimeError):
    """A transformed function, or what it was called with, can't be transformed."""


class NotScalarError(TransformError):
    """grad's function returned something else than a real tensor without dimensions."""


class OutputError(TransformError):
    """A transformed function returned something the transform can't use."""


class ArgnumsError(TransformError):
    """argnums names no positional argument, or names one twice."""


class StructureError(TransformError):
    """Two pytrees that have to match don't."""


class CallError(TransformError, TypeError):
    """A function that a transform gave was called with other arguments than it takes."""


class DtypeError(TransformError, ValueError):
    """A dtype is neither floating-point nor complex, or a tangent's does not suit its primal."""


class FunctionError(TransformError):
    """An autograd.Function lacks what a transform needs of it, or its methods return nonsense."""


class MissingDerivativeError(FunctionError, NotImplementedError):
    """An autograd.Function has no backward, or no jvp, and one was needed."""


class RuleError(TransformError, ValueError):
    """A rule can't be registered for this operator."""


class DimensionError(ValueError):
    """vmap's in_dims, out_dims or batch sizes don't fit the tensors."""


class OutDimError(DimensionError, IndexError):
    """vmap's out_dims name a dimension that a result does not have."""


class NotTensorError(TransformError, ValueError, TypeError):
    """An argument to differentiate by or to batch, a tangent or a cotangent is not a tensor."""


def instead(api: str) -> str:
    """What to do with an argument that can't be differentiated by."""
    if api in ("vjp", "jvp"):  # they differentiate by all their arguments
        return "bind it beforehand, with functools.partial or a lambda"
    return "leave it out of argnums"


def location() -> str:
    """`` In file.py:7, `source line`.`` for the innermost line that is the user's."""
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        if _is_users(frame):
            return _quoted(frame, frame.f_lineno)
        frame = frame.f_back
    return ""


def explain(error: RuntimeError, layer: str, samples: Any) -> None:
    """Raises what to do, where a function asked of a tensor what only one in memory can do.

    Args:
        error: what ended the function.
        layer: as the stack names it.
        samples: a vmap's batch size, or None for another layer.
    """
    text = str(error)
    if text.startswith("Cannot access data pointer of Tensor"):
        held = "a wrapper around its value" if samples is None else f"{samples} samples at once"
        advice = (
            f"has no memory to give to tolist(), numpy() or data_ptr(): inside it a tensor is "
            f"{held} ({text}). Return the tensor, and convert it outside."
        )
    elif text.startswith("accessing `data` under vmap transform is not allowed"):
        advice = f"has no `data` of its own ({text}). Use x.detach()."
    elif text.startswith("NYI: querying is_contiguous inside of vmap"):
        advice = (
            "can't tell in which order the memory of a sample is ("
            f"{text}). Ask before vmap, or call contiguous()."
        )
    else:
        return
    raise TransformError(f"torchlayers: {layer} {advice}{_location_of(error)}") from error


def _location_of(error: BaseException) -> str:
    place = ""
    trace = error.__traceback__
    while trace is not None:
        if _is_users(trace.tb_frame):
            place = _quoted(trace.tb_frame, trace.tb_lineno)
        trace = trace.tb_next
    return place


def _is_users(frame: types.FrameType) -> bool:
    return not frame.f_code.co_filename.startswith((*_LIBRARIES, "<frozen"))


def _quoted(frame: types.FrameType, number: int) -> str:
    filename = frame.f_code.co_filename
    line = linecache.getline(filename, number).strip()
    quoted = f", `{line}`" if line else ""
    return f" In {os.path.basename(filename)}:{number}{quoted}."
