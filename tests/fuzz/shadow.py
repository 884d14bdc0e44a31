"""A layer whose parts are a second copy of the value, computed by the same operators."""

from typing import Any

from torch import Tensor

import torchlayers as tl


class Shadow(tl.Layer):
    def inputs(self, x: Tensor) -> Any:
        return (self.tensor(x, x),), {}

    def lift(self, value: Tensor) -> tl.LayerTensor:
        return self.tensor(value, value)

    def process(self, op: Any, args: Any, kwargs: Any) -> Any:
        if not any(self.is_own(leaf) for leaf in tl.tree.leaves((args, kwargs))):
            return self.send_down(op, args, kwargs)
        if not hasattr(op, "_schema"):
            return NotImplemented  # runs a Function's forward
        values = self.send_down(op, args, kwargs)
        shadows = self.send_down(op, args, kwargs, read=lambda x: x.parts)
        if not isinstance(values, (tuple, list)):
            return self.paired(values, shadows)
        return [self.paired(*pair) for pair in zip(values, shadows, strict=True)]

    def paired(self, value: Any, shadow: Any) -> Any:
        return self.tensor(value, shadow) if isinstance(value, Tensor) else value

    def outputs(self, result: Any) -> Any:
        return (result.value + result.parts) / 2 if isinstance(result, tl.LayerTensor) else result

    def is_own(self, leaf: Any) -> bool:
        return isinstance(leaf, tl.LayerTensor) and leaf.layer is self
