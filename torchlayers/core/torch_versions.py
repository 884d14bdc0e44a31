"""Differences between torch 2.11 to 2.15; no other module checks the version of torch.

Names that a version may lack are looked up by private_names.py.
"""

import functools
import linecache
import re
from types import FrameType
from typing import Any

from torch import func

from torchlayers.core.private_names import lookup

# The attributes that Dynamo sets on functions; torch's own transforms leave them on the function
# that they transform. 2.11 has no such list.
DYNAMO_ATTRIBUTES: tuple[str, ...] = lookup("torch._functorch.apis._DYNAMO_WRAPPER_ATTRS", ())

if hasattr(func, "rearrange"):
    from torch.func import rearrange as rearrange
else:  # 2.11
    from functorch.einops import rearrange as rearrange  # type: ignore[import-untyped, no-redef]


def applied_function(frame: FrameType) -> Any:
    """Returns the autograd.Function whose apply raised an error in this frame, or None."""
    if "cls" in frame.f_locals:
        return frame.f_locals["cls"]
    # In 2.15 apply is no longer Python, and the frame is the caller's.
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    called = re.search(r"([\w.]+)\.apply\b", line)
    if called is None:
        return None
    first, *attributes = called[1].split(".")
    base = frame.f_locals.get(first, frame.f_globals.get(first))
    return functools.reduce(lambda owner, name: getattr(owner, name, None), attributes, base)


def mixed_precision(group: Any, parameter: Any) -> Any:
    """Returns the MixedPrecisionPolicy of a fully_shard parameter; per parameter since 2.15."""
    return parameter.mp_policy if hasattr(parameter, "mp_policy") else group.mp_policy


def parameter_groups(state: Any) -> list[Any]:
    """Returns a fully_shard module's groups of parameters that are gathered together."""
    if hasattr(state, "_fsdp_param_groups"):
        return list(state._fsdp_param_groups)
    return [state._fsdp_param_group] if state._fsdp_param_group else []  # 2.11 has one at most


def unsharded_spec(parameter: Any) -> Any:
    """Returns the DTensorSpec of a fully_shard parameter that is gathered; None of a plain one."""
    if hasattr(parameter, "_unsharded_dtensor_spec"):
        return parameter._unsharded_dtensor_spec
    return getattr(parameter, "_tp_spec", None)  # 2.11, where plain ones have no such attribute


def is_per_thread(patch: Any) -> bool:
    """Whether a patch of a torch config is the calling thread's; 2.11's is that of all threads."""
    return hasattr(patch, "_prior")


def is_no_compiler(error: BaseException | None) -> bool:
    """Whether Inductor failed with this error because the machine has no C++ compiler."""
    while error is not None:
        if type(error).__name__ in ("InvalidCxxCompiler", "CppCompilerNotFound"):
            return True
        inner: Any = getattr(error, "inner_exception", None)
        error = inner or error.__cause__ or error.__context__
    return False
