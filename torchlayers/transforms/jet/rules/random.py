"""Random operators whose results have derivatives: the draws are constants."""

from typing import Any

from torchlayers.core.operators import aten
from torchlayers.transforms.jet.layer import Jet, rule
from torchlayers.transforms.jet.series import Series


@Jet.rule(aten._sample_dirichlet, aten._standard_gamma)
def implicit(layer: Jet, op: Any, *args: Any, **kwargs: Any) -> Any:
    """Draws that depend on their parameters smoothly: jvp's error, not a constant."""
    return layer.by_nested_jvps(op, *args, **kwargs)


@rule(aten.native_dropout)
def native_dropout(value: Any, x: Series, p: float, train: bool | None) -> Any:
    if train is False:
        return x, None
    return x * value[1] * (0 if p == 1 else 1 / (1 - p)), None
