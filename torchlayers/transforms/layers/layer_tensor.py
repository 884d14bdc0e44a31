"""The tensors of a layer written in Python."""

from typing import Any

import torch
from torch import Tensor

from torchlayers import _C


class LayerTensor(Tensor):
    """A tensor of a :class:`torchlayers.Layer`, made by its ``tensor`` method.

    To the transformed function it is a tensor with a shape, dtype and device. The layer's rules
    read what it carries:

    - ``value``: the tensor that it stands for, on the layers below.
    - ``parts``: whatever the layer keeps with it; None for a constant, unless the layer's ``lift``
      says otherwise.
    - ``layer``: the layer.

    Rules compute with these, as a layer's own tensors can't be used below the layer.

    Example:
        >>> class Named(torchlayers.Layer):
        ...     "parts is a name."
        >>> with Named() as layer:
        ...     layer.tensor(torch.ones(2), parts="x")
        LayerTensor(named (level 1), value=tensor([1., 1.]), parts='x')
    """

    __torch_function__ = vars(torch.nn.Parameter)["__torch_function__"]  # none
    layer: Any
    parts: Any

    value = property(_C.value_in_wrapper)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        parts = "" if self.parts is None else f", parts={self.parts!r}"
        return f"LayerTensor({self.layer!r}, value={self.value!r}{parts})"
