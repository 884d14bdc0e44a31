"""The errors torchlayers raises, and where in the user's code they happened.

Each is also the built-in exception that torch.func raises in the same case, so
that programs written for torch.func catch them too.
"""

import linecache
import os
import sys

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
    frame = sys._getframe()
    while frame is not None:
        filename = frame.f_code.co_filename
        if not filename.startswith((*_LIBRARIES, "<frozen")):
            line = linecache.getline(filename, frame.f_lineno).strip()
            quoted = f", `{line}`" if line else ""
            return f" In {os.path.basename(filename)}:{frame.f_lineno}{quoted}."
        if frame.f_back is None:
            break
        frame = frame.f_back
    return ""
