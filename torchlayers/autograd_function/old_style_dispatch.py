"""Function.apply inside our layers.

NOTE [Reaching old-style Functions]
torch's Function.apply raises an error for an old-style Function inside a transform. Inside our
layers it is replaced: an old-style Function goes where a new-style one goes, to torch's
custom_function_call, which has our rules. torch's own old-style Functions are refused as before,
except those of reentrant checkpointing, Dirichlet and DTensor, in whose place ours run.

A user's new-style Function whose operands need no binding, and whose call no mode or subclass
intercepts, goes to our rules at once: torch's apply and dispatch would take longer than the rules.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointFunction

from torchlayers import _C
from torchlayers.autograd_function import dirichlet
from torchlayers.autograd_function.custom_function_call import (
    Function,
    check_old_style,
    custom_function_call,
)
from torchlayers.autograd_function.generated_classes import is_defined_by_torch
from torchlayers.core.operator_rules.function_rules import is_suspended
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
        if not _C.any_layer():
            return torchs(cls, *args, **kwargs)
        is_users = not is_defined_by_torch(cls)
        if cls is _SAVES_INPUTS:
            return SavedInputs(args[1:])
        if not is_old_style(cls):
            is_direct = is_users and not kwargs and _leads_to_our_rules(cls, args)
            apply = custom_function_call.on_top if is_direct else torchs
            return apply(cls, *args, **kwargs)
        is_traced = guards.TracingContext.try_get() is not None  # Dynamo takes them as they are
        if not is_traced and (is_users or _has_ours_instead(cls)):
            check_old_style(cls, kwargs)
            return higher_order.custom_function_call(cls, *args)
        return torchs(cls, *args, **kwargs)

    return apply


def _leads_to_our_rules(function: Function, operands: tuple[Any, ...]) -> bool:
    """Whether torch would come to front_key.py's rule with these operands, and no mode sees it.

    A class that a rule has generated for one level is no Function; torch 2.15 applies both alike.
    """
    return (
        issubclass(function, torch.autograd.Function)
        and not is_suspended()
        and _C.leads_to_front(function.forward, operands)
    )


def _has_ours_instead(function: Function) -> bool:
    ours = (CheckpointFunction, dirichlet.TORCH_DIRICHLET)
    return function in ours or dtensor_calls.replacement_for(function) is not None


def is_old_style(function: Function) -> bool:
    """Whether the Function defines no setup_context."""
    return function.setup_context is _DEFAULT.setup_context
