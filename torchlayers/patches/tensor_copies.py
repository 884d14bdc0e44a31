"""copy.copy, copy.deepcopy and pickle of tensors inside transforms.

torch copies a tensor by its memory, and a wrapper or a batched tensor has none. Inside a transform
a copy is made by differentiable operators, at all levels of the tensor: a view for copy.copy, which
shares memory, and a clone for copy.deepcopy (called by dataclasses.asdict). Outside of transforms
torch raises an error for deepcopy of a non-leaf, whose derivative would be lost; here the
derivative flows through the copy. A copy of a Parameter is a Parameter, and a leaf like the
original. Pickling raises an error: the tensor exists only while the transform runs.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from torchlayers.core.errors import TransformError, location
from torchlayers.core.tensors.deepcopy import deepcopy_by_clone
from torchlayers.core.torch_private import functorch, is_wrapped, torch_private


def _is_inside(tensor: Any) -> bool:
    """Whether the value is a tensor of an active transform."""
    return (
        type(tensor) in (Tensor, nn.Parameter)
        and (is_wrapped(tensor) or torch_private._is_functional_tensor(tensor))
        and functorch.maybe_current_level() is not None
    )


class _Original:
    """Passes the tensor through copy.copy's reduce protocol; pickling it raises an error."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TransformError(
            "torchlayers: a tensor inside a transform can't be pickled or saved (torch.save): it "
            "has no memory of its own. Return it from the function, and save it outside."
            f"{location()}"
        )


def _copied(original: _Original) -> Tensor:
    tensor = original.tensor
    if isinstance(tensor, nn.Parameter):
        result: Tensor = nn.Parameter(tensor.detach(), tensor.requires_grad)
    else:
        result = tensor.view_as(tensor)
    result.__dict__.update(tensor.__dict__)
    return result


def reduce_of(torchs: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces Tensor.__reduce_ex__."""

    def reduce_ex(self: Any, protocol: Any) -> Any:
        return (_copied, (_Original(self),)) if _is_inside(self) else torchs(self, protocol)

    return reduce_ex


def deepcopy_of(torchs: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces Tensor.__deepcopy__."""

    def deepcopy(self: Any, memo: Any) -> Any:
        return deepcopy_by_clone(self, memo) if _is_inside(self) else torchs(self, memo)

    return deepcopy


def deepcopy_of_parameter(torchs: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces Parameter.__deepcopy__."""

    def deepcopy(self: Any, memo: Any) -> Any:
        if not _is_inside(self):
            return torchs(self, memo)
        return deepcopy_by_clone(
            self, memo, lambda x: nn.Parameter(x.detach().clone(), x.requires_grad)
        )

    return deepcopy
