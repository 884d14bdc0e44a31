"""torch.autograd.Function inside transforms.

`custom_function_call` dispatches a Function to the rule of each layer on the stack in turn:
`grad_jvp_rule` for grad and jvp, `vmap_rule` for vmap, `functionalize_rule` for functionalize.
`old_style` adapts Functions without setup_context to these rules, and `old_style_dispatch` makes
torch dispatch them here. `custom_derivatives` has JAX's decorators for them.
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
