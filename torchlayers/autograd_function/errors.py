"""Replaces torch's error messages about autograd.Functions with ones that say what to do."""

import re
import sys
from typing import Any

from torchlayers.autograd_function.generated_classes import is_defined_by_torch
from torchlayers.core.errors import FunctionError
from torchlayers.core.torch_versions import applied_function

# torch's message for a gradient whose shape differs from its input's.
_GRADIENT = re.compile(
    r"Function (\w+)Backward returned an invalid gradient at index (\d+) - got (\[.*\]) but "
    r"expected shape compatible with (\[.*\])"
)


def explain(error: RuntimeError) -> None:
    """Raises a FunctionError in place of a known torch error that does not say what to do."""
    text = str(error)
    if text.startswith("In order to use an autograd.Function"):
        function = _find_refused_function(error)
        name = function.__name__ if function is not None else "an autograd.Function"
        if function is not None and is_defined_by_torch(function):
            reason = (
                "is made for plain autograd, and has no setup_context. Call it outside the "
                "transformed function."
            )
        else:
            reason = (
                "has no setup_context, which torch.func's transforms require. Give it one, or use "
                "torchlayers' transforms instead of torch.func's."
            )
        raise FunctionError(f"torchlayers: {name} {reason}") from error
    if match := _GRADIENT.match(text):
        name, place, got, shape = match.groups()
        raise FunctionError(
            f"torchlayers: {name.removesuffix('Generated')}.backward returned a gradient of shape "
            f"{got} for input {place} of forward, whose shape is {shape}. Return a gradient of the "
            "input's shape."
        ) from error
    if text.startswith("cannot use C++ torch::autograd::Function"):
        raise FunctionError(
            "torchlayers: a C++ torch::autograd::Function is recorded at one level only, so the "
            "gradients of the other levels would be lost. Make it an operator and give it a "
            "derivative with torch.library.register_autograd, or call its forward and backward "
            "from a Python autograd.Function."
        ) from error


def _find_refused_function(error: RuntimeError) -> Any:
    """Returns the Function whose apply raised the error."""
    traceback = error.__traceback__ or sys.exc_info()[2]
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return applied_function(traceback.tb_frame) if traceback is not None else None
