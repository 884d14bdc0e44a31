"""Operators that are decomposed into ones with rules."""

from typing import Any

from torchlayers.core.operators import aten
from torchlayers.transforms.jet.layer import Jet


@Jet.rule(
    aten._scaled_dot_product_flash_attention_for_cpu,
    aten.binary_cross_entropy,
    aten.glu,
    aten.huber_loss,
    aten.mse_loss,
    aten.native_layer_norm_backward,
    aten.smooth_l1_loss,
    aten.soft_margin_loss,
    aten.addcdiv,
)
def decomposed(layer: Jet, op: Any, *args: Any, **kwargs: Any) -> Any:
    return NotImplemented
