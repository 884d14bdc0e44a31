"""Function.apply inside our layers.

NOTE [Reaching old-style Functions]
torch's Function.apply raises an error for an old-style Function inside a transform. Inside our
layers it is replaced: an old-style Function goes where a new-style one goes, to torch's
custom_function_call, which has our rules. torch's own old-style Functions are refused as before,
except those of reentrant checkpointing, Dirichlet and DTensor, in whose place ours run.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointFunction

from torchlayers import _C
from torchlayers.autograd_function import dirichlet
from torchlayers.autograd_function.custom_function_call import Function, check_old_style
from torchlayers.autograd_function.generated_classes import is_defined_by_torch
from torchlayers.core.operators import higher_order
from torchlayers.core.private_names import lookup
from torchlayers.core.torch_private import guards
from torchlayers.distributed import dtensor_calls
from torchlayers.remat.saved_inputs import SavedInputs

# The base class that has the methods for plain autograd.
_DEFAULT: Any = torch.autograd.Function.__mro__[1]
_SAVES_INPUTS = lookup("torch.utils.checkpoint._NoopSaveInputs", None)  # with torch 2.11


def apply_of(torchs: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces Function.apply."""

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if not _C.any_layer() or guards.TracingContext.try_get() is not None:
            return torchs(cls, *args, **kwargs)  # Dynamo takes old-style Functions as they are
        if cls is _SAVES_INPUTS:
            return SavedInputs(args[1:])
        if is_old_style(cls) and (not is_defined_by_torch(cls) or _has_ours_instead(cls)):
            check_old_style(cls, kwargs)
            return higher_order.custom_function_call(cls, *args)
        return torchs(cls, *args, **kwargs)

    return apply


def _has_ours_instead(function: Function) -> bool:
    ours = (CheckpointFunction, dirichlet.TORCH_DIRICHLET)
    return function in ours or dtensor_calls.replacement_for(function) is not None


def is_old_style(function: Function) -> bool:
    """Whether the Function defines no setup_context."""
    return function.setup_context is _DEFAULT.setup_context
