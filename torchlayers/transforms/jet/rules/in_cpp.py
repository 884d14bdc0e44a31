"""Rules that C++ carries out, by the coefficients of their operands.

csrc/layers/taylor.h lists them. What C++ declines, such as compressed sparse tensors, is
differentiated by nested jvps.
"""

from typing import Any

from torchlayers.core.operators import aten
from torchlayers.transforms.jet.layer import Jet, in_cpp


def _by(step: str, *ops: Any) -> None:
    @Jet.rule(*ops)
    @in_cpp(step)
    def rule(layer: Jet, op: Any, *args: Any, **kwargs: Any) -> Any:
        return layer.by_nested_jvps(op, *args, **kwargs)


_by("product", aten.mul.Tensor)
_by("quotient", aten.div.Tensor)
_by("slope", "riccati")
_by("sum", aten.add, aten.rsub, aten.sub)
