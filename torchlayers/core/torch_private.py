"""Private names of torch that several rooms use; private_names.py looks them up.

Names that one room uses are looked up there.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchlayers.core.private_names import lookup, private, private_class

__all__ = [
    "AUTOGRAD",
    "ENDED",
    "CustomOpDef",
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorMode",
    "HigherOrderOperator",
    "OpOverload",
    "OpOverloadPacket",
    "TorchDispatchMode",
    "dispatch_key",
    "dispatch_keys",
    "dispatch_modes",
    "dual_level",
    "fake_mode",
    "functorch",
    "guards",
    "is_batched_wrapper",
    "is_forward_mode_on",
    "is_grad_wrapper",
    "is_jit_tracing",
    "is_wrapped",
    "key_set",
    "saved_hooks",
    "set_forward_mode",
    "stack_depth",
    "torch_c",
    "torch_private",
    "torch_pytree",
    "vmap_interpreter",
    "without_ended_wrapper",
]

torch_private = private("torch")
torch_c = private("torch._C")
functorch = private("torch._C._functorch")
dispatch_modes = private("torch.utils._python_dispatch")
forward_ad = private("torch.autograd.forward_ad")
guards = private("torch._guards")
saved_hooks = private("torch._C._autograd")
torch_pytree = private("torch.utils._pytree")

ENDED = -2  # the level of a grad or jvp wrapper whose transform has ended


def is_wrapped(tensor: Tensor) -> bool:
    """Whether the outermost wrapper of a tensor is a layer's, ours or torch.func's."""
    return bool(functorch.maybe_get_level(tensor) != -1)


def is_batched_wrapper(tensor: Tensor) -> bool:
    """Whether the outermost wrapper of a tensor is a vmap's."""
    return bool(functorch.maybe_get_bdim(tensor) != -1)


def is_grad_wrapper(tensor: Tensor) -> bool:
    """Whether the outermost wrapper of a tensor is that of a grad or jvp."""
    return not (
        functorch.maybe_get_level(tensor) == -1
        or functorch.maybe_get_bdim(tensor) != -1
        or torch_private._is_functional_tensor(tensor)
    )


def without_ended_wrapper(tensor: Tensor) -> Tensor:
    """The tensor inside, if the outermost wrapper is that of a grad or jvp that has ended."""
    is_over = functorch.maybe_get_level(tensor) == ENDED
    inner: Tensor = functorch.get_unwrapped(tensor) if is_over else tensor
    return inner


def stack_depth() -> int:
    """The number of active layers, ours and torch.func's."""
    return functorch.maybe_current_level() or 0


def vmap_interpreter(entry: Any) -> Any:
    """What torch.func's stack knows of a vmap, given its entry."""
    return lookup("torch._functorch.pyfunctorch.VmapInterpreter")(entry)


def dispatch_key(name: str) -> Any:
    """The dispatch key of this name; torch.DispatchKey does not have all of them."""
    return torch_c._dispatch_key_parse(name)


def key_set(*names: str) -> Any:
    """The set of the dispatch keys of these names."""
    keys = torch.DispatchKeySet(dispatch_key(names[0]))
    for name in names[1:]:
        keys = keys.add(dispatch_key(name))
    return keys


AUTOGRAD = key_set("AutogradFunctionality", "AutogradOther", "AutogradNestedTensor")


def dual_level() -> int:
    """The level of the innermost forward_ad.dual_level, or -1."""
    level: int = forward_ad._current_level
    return level


def set_forward_mode(is_on: bool) -> Any:
    """Context manager: enables or disables forward mode."""
    return forward_ad._set_fwd_grad_enabled(is_on)


def is_jit_tracing() -> bool:
    """Whether torch.jit.trace traces on this thread."""
    jit: Any = torch.jit
    return bool(jit.is_tracing())


def is_forward_mode_on() -> bool:
    """Whether forward mode is enabled."""
    on = set_forward_mode(True)
    with on:
        return bool(on.prev)


def fake_mode() -> Any:
    """The mode of fake tensors that is active on this thread, or None."""
    modes = dispatch_modes._get_current_dispatch_mode_stack()
    return next((mode for mode in reversed(modes) if isinstance(mode, FakeTensorMode)), None)


def dispatch_keys(*, without: Any = None, allowing: Any = None, including: Any = None) -> Any:
    """Context manager: this thread's dispatch keys, with these excluded, not excluded, or
    included."""
    included = torch_c._dispatch_tls_local_include_set()
    excluded = torch_c._dispatch_tls_local_exclude_set()
    if without is not None:
        excluded |= without
    if allowing is not None:
        excluded -= allowing
    if including is not None:
        included, excluded = included | including, excluded - including
    return torch_c._ForceDispatchKeyGuard(included, excluded)


# Of these instances are looked for, and subclasses defined.
if TYPE_CHECKING:
    from torch._library.custom_ops import CustomOpDef
    from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
    from torch._subclasses import FakeTensor, FakeTensorMode
    from torch._subclasses.fake_tensor import (
        DataDependentOutputException,
        DynamicOutputShapeException,
    )
    from torch.utils._python_dispatch import TorchDispatchMode
else:
    OpOverload: Any = type(torch.ops.aten.sin.default)
    OpOverloadPacket: Any = type(torch.ops.aten.sin)
    HigherOrderOperator: Any = private_class("torch._ops.HigherOrderOperator")
    FakeTensor: Any = private_class("torch._subclasses.FakeTensor")
    FakeTensorMode: Any = private_class("torch._subclasses.FakeTensorMode")
    DataDependentOutputException: Any = private_class(
        "torch._subclasses.fake_tensor.DataDependentOutputException"
    )
    DynamicOutputShapeException: Any = private_class(
        "torch._subclasses.fake_tensor.DynamicOutputShapeException"
    )
    CustomOpDef: Any = torch.library.CustomOpDef
    TorchDispatchMode: Any = private_class("torch.utils._python_dispatch.TorchDispatchMode")
