"""torch.autograd.Function under the layers.

A Function is applied once and has a rule for each kind of layer. `call` takes it from layer
to layer; `single_level` is the rule of grad and jvp, `vmapify` that of vmap, `functionalized`
that of functionalize. `old_style` makes Functions without setup_context fit these rules, and
`adoption` lets them come here.
"""

from torchlayers.autograd_function import adoption as adoption
from torchlayers.autograd_function import front as front
from torchlayers.autograd_function import functionalized as functionalized
from torchlayers.autograd_function import old_style as old_style
from torchlayers.autograd_function import single_level as single_level
from torchlayers.autograd_function.apply import AutogradFunctionApply as AutogradFunctionApply
from torchlayers.autograd_function.apply import autograd_function_apply as autograd_function_apply
from torchlayers.autograd_function.call import (
    CustomFunctionHigherOrderOperator as CustomFunctionHigherOrderOperator,
)
from torchlayers.autograd_function.call import custom_function_call as custom_function_call
from torchlayers.autograd_function.rewritten import (
    autograd_function_forward_rewritten as autograd_function_forward_rewritten,
)
from torchlayers.autograd_function.vmapify import VmapInfo as VmapInfo

__all__ = [
    "AutogradFunctionApply",
    "CustomFunctionHigherOrderOperator",
    "VmapInfo",
    "autograd_function_apply",
    "autograd_function_forward_rewritten",
    "custom_function_call",
]
