"""Every function of torch that is replaced while transforms run, and what for.

Importing torchlayers changes nothing of torch. The replacements are in while a layer, a
functional_call or a capture runs in the process, and out after the last one, however it ends; each
asks first whether the calling thread has a layer, and else does what torch does. NOTE [Patches] in
csrc/core/patches.h says how. docs/importing.md says of each what would happen without it.

The functions written in Python are below. Those written in C are replaced by csrc/python/
(indexing.cpp, requires_grad.cpp, new_tensors.cpp, coo_tensor.cpp, script_calls.cpp,
module_forward.cpp, function_apply.cpp) and csrc/dispatch/tensor_methods.cpp.
"""

import os
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from torchlayers import _C
from torchlayers.autograd_function.old_style_dispatch import apply_of
from torchlayers.control_flow import flex_attention, torch_operators
from torchlayers.core.import_hook import when_imported
from torchlayers.modules import backward_hooks
from torchlayers.patches import (
    constraints,
    fake_wrappers,
    tensor_copies,
    tensor_hooks,
    tensor_printing,
    torch_checkpoint,
)
from torchlayers.patches.code import replace_code
from torchlayers.transforms import legacy_vmap, local_gradients

VALIDATE_DEVICE = "torch.nn.attention.flex_attention._validate_device"
# torch's function, and what makes the replacement from it.
PATCHES: Mapping[str, Callable[[Any], Any]] = MappingProxyType(
    {
        "torch.Tensor.__deepcopy__": tensor_copies.deepcopy_of,
        "torch.Tensor.__reduce_ex__": tensor_copies.reduce_of,
        "torch.Tensor.register_hook": tensor_hooks.register_hook_of,
        "torch.Tensor.register_post_accumulate_grad_hook": tensor_hooks.register_accumulated_of,
        "torch._higher_order_ops.utils._hop_compile_and_call": torch_operators.compile_and_call_of,
        "torch._higher_order_ops.utils.setup_compilation_env": torch_operators.compilation_env_of,
        "torch._subclasses.meta_utils.assert_metadata_eq": fake_wrappers.compare_metadata_of,
        "torch._tensor_str._str_intern": tensor_printing.text_of,
        "torch._vmap_internals._vmap": legacy_vmap.legacy_vmap_of,
        "torch.autograd.Function.apply": apply_of,
        "torch.autograd._engine_run_backward": local_gradients.engine_run_of,
        "torch.autograd.functional._grad_preprocess": local_gradients.preprocess_of,
        "torch.autograd.graph.get_gradient_edge": tensor_hooks.gradient_edge_of,
        "torch.autograd.graph.register_multi_grad_hook": tensor_hooks.register_multi_of,
        "torch.distributions.constraints._PositiveDefinite.check": constraints.definite_check_of,
        "torch.distributions.constraints._PositiveSemidefinite.check": (
            constraints.semidefinite_check_of
        ),
        "torch.nn.Module._get_backward_hooks": backward_hooks.module_hooks_of,
        "torch.nn.Parameter.__deepcopy__": tensor_copies.deepcopy_of_parameter,
        "torch.utils.checkpoint.CheckpointFunction.forward": torch_checkpoint.forward_of,
        "torch.utils.checkpoint._CheckpointFrame.__init__": torch_checkpoint.frame_of,
        "torch.utils.hooks.BackwardHook._apply_on_tensors": backward_hooks.hook_node_of,
    }
)

for _path, _make in PATCHES.items():
    replace_code(_path, _make)
_C.patch_function_apply(apply_of)  # it is in C since torch 2.15
# Importing it takes longer than the rest of the package.
when_imported(
    "torch.nn.attention.flex_attention",
    lambda: replace_code(VALIDATE_DEVICE, flex_attention.validate_device_of),
)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_C.forget_other_threads)
