"""Decompositions of operators for which torch has no forward-mode formula.

jvp uses them last, after the rules in csrc/rules/ and torch's own formulas.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from torchlayers.core.operator_schema import schema_of
from torchlayers.core.private_names import lookup
from torchlayers.core.torch_private import OpOverload
from torchlayers.transforms.decompositions import attention, collectives, transformer

Decomposition = Callable[..., Any]


def find(name: str, overload: str) -> Decomposition | None:
    """Returns the decomposition of the operator ``name.overload`` ("aten::cdist", ""), or None."""
    namespace, _, base = name.partition("::")
    if namespace == "prims":
        # A prim has a reference implementation made of ATen operators.
        return getattr(torch.ops.prims, base).default.impl_aten  # type: ignore[no-any-return]
    return _OURS.get(name) or _read_torch_table().get((name, overload))


@functools.cache
def _read_torch_table() -> dict[tuple[str, str], Decomposition]:
    return {
        (schema_of(op).name, schema_of(op).overload_name): function
        for op, function in lookup("torch._decomp.decomposition_table").items()
        if isinstance(op, OpOverload) and not _leads_back(schema_of(op).name)
    }


def _leads_back(name: str) -> bool:
    """Whether torch decomposes ``aten::special_bessel_j0`` into the prim that calls it."""
    special = "aten::special_"
    return name.startswith(special) and hasattr(torch.ops.prims, name.removeprefix(special))


_OURS: dict[str, Decomposition] = {
    "aten::_native_multi_head_attention": transformer.multi_head_attention,
    "aten::_transformer_encoder_layer_fwd": transformer.encoder_layer,
    "aten::_scaled_dot_product_flash_attention_for_cpu": attention.flash_for_cpu,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": attention.flash_for_cpu_backward,
    "aten::_scaled_dot_product_flash_attention": attention.flash,
    "aten::_scaled_dot_product_flash_attention_backward": attention.flash_backward,
    "aten::_scaled_dot_product_efficient_attention": attention.efficient,
    "aten::_scaled_dot_product_efficient_attention_backward": attention.efficient_backward,
    "aten::_scaled_dot_product_cudnn_attention": attention.cudnn,
    "aten::_scaled_dot_product_cudnn_attention_backward": attention.cudnn_backward,
    **collectives.DECOMPOSITIONS,
}
