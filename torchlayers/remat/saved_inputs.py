"""The arguments of a torch.utils.checkpoint inside transforms, with torch 2.11.

torch saves them by an autograd.Function that has no rule for vmap or jvp; newer versions save them
without one.
"""

from typing import Any

import torch
from torch import Tensor

from torchlayers.core.errors import RecomputationError
from torchlayers.core.tensors.tensor_versions import describe_write, version_of


class SavedInputs:
    """The result of torch's Function, which a checkpoint asks for its arguments."""

    def __init__(self, inputs: tuple[Any, ...]) -> None:
        self._inputs = inputs
        self._versions = [version_of(x) if isinstance(x, Tensor) else None for x in inputs]
        self.saved_tensors = ()
        self.grad_fn = self if torch.is_grad_enabled() else None

    def get_args(self, _: Any) -> list[Any]:
        for x, version in zip(self._inputs, self._versions, strict=True):
            if version is not None and version != (current := version_of(x)):
                raise RecomputationError(
                    "torchlayers: an argument of a function in torch.utils.checkpoint "
                    f"{describe_write(version, current)}"
                )
        return [*self._inputs]
