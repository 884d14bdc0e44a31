"""torch.autograd.Function under the layers.

A Function is applied once and has a rule for each kind of layer. `custom_function_call` takes it
from layer to layer; `grad_jvp_rule` is the rule of grad and jvp, `vmap_rule` that of vmap,
`functionalize_rule` that of functionalize. `old_style` makes Functions without setup_context fit
these rules, and `old_style_dispatch` lets them come here.
"""

from torchlayers.autograd_function import front_key as front_key
from torchlayers.autograd_function import functionalize_rule as functionalize_rule
from torchlayers.autograd_function import grad_jvp_rule as grad_jvp_rule
from torchlayers.autograd_function import old_style as old_style
from torchlayers.autograd_function import old_style_dispatch as old_style_dispatch
from torchlayers.autograd_function.apply import AutogradFunctionApply as AutogradFunctionApply
from torchlayers.autograd_function.apply import autograd_function_apply as autograd_function_apply
from torchlayers.autograd_function.custom_function_call import (
    CustomFunctionHigherOrderOperator as CustomFunctionHigherOrderOperator,
)
from torchlayers.autograd_function.custom_function_call import (
    custom_function_call as custom_function_call,
)
from torchlayers.autograd_function.rewritten_forward import (
    autograd_function_forward_rewritten as autograd_function_forward_rewritten,
)
from torchlayers.autograd_function.vmap_rule import VmapInfo as VmapInfo

__all__ = [
    "AutogradFunctionApply",
    "CustomFunctionHigherOrderOperator",
    "VmapInfo",
    "autograd_function_apply",
    "autograd_function_forward_rewritten",
    "custom_function_call",
]
