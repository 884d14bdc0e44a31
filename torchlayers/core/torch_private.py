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
    "dispatch_modes",
    "functorch",
    "guards",
    "saved_hooks",
    "torch_c",
    "torch_private",
    "torch_pytree",
]

torch_private = private("torch")
torch_c = private("torch._C")
functorch = private("torch._C._functorch")
dispatch_modes = private("torch.utils._python_dispatch")
guards = private("torch._guards")
saved_hooks = private("torch._C._autograd")
torch_pytree = private("torch.utils._pytree")


def dispatch_key(name: str) -> Any:
    """The dispatch key of this name; torch.DispatchKey does not have all of them."""
    return torch_c._dispatch_key_parse(name)


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
