"""Re-exports functions of torch.func that do not depend on layers: replacing batch norms,
inspecting a wrapped tensor, and einops-style rearrange."""

from torch.func import debug_unwrap as debug_unwrap
from torch.func import replace_all_batch_norm_modules_ as replace_all_batch_norm_modules_

from torchlayers.core.torch_versions import rearrange as rearrange

__all__ = [
    "debug_unwrap",
    "rearrange",
    "replace_all_batch_norm_modules_",
]
