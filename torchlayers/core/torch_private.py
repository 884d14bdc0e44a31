"""Private names of torch that several rooms use; private_names.py looks them up.

Names that one room uses are looked up there.
"""

from typing import TYPE_CHECKING, Any

import torch

from torchlayers.core.private_names import private, private_class

__all__ = [
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
    "saved_hooks",
    "set_forward_mode",
    "torch_c",
    "torch_private",
    "torch_pytree",
]

torch_private = private("torch")
torch_c = private("torch._C")
functorch = private("torch._C._functorch")
dispatch_modes = private("torch.utils._python_dispatch")
forward_ad = private("torch.autograd.forward_ad")
guards = private("torch._guards")
saved_hooks = private("torch._C._autograd")
torch_pytree = private("torch.utils._pytree")


def dispatch_key(name: str) -> Any:
    """The dispatch key of this name; torch.DispatchKey does not have all of them."""
    return torch_c._dispatch_key_parse(name)


def dual_level() -> int:
    """The level of the innermost forward_ad.dual_level, or -1."""
    level: int = forward_ad._current_level
    return level


def set_forward_mode(is_on: bool) -> Any:
    """Context manager: enables or disables forward mode."""
    return forward_ad._set_fwd_grad_enabled(is_on)


def fake_mode() -> Any:
    """The mode of fake tensors that is active on this thread, or None."""
    return torch_c._get_dispatch_mode(torch_c._TorchDispatchModeKey.FAKE)


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
    CustomOpDef: Any = private_class("torch._library.custom_ops.CustomOpDef")
    TorchDispatchMode: Any = private_class("torch.utils._python_dispatch.TorchDispatchMode")
