"""custom_function_call: a Function's way through the layers.

Cube.apply(x)                        torch's
  └─ torch's custom_function_call    any transform active
       └─ front.py                   on our front key
            └─ ours
                 └─ the rule of the layer on top
                      └─ ours again, on the layer below
                           └─ …  no layer left: plain Cube.apply
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch._functorch.autograd_function import custom_function_call as torch_funcs
from torch._functorch.pyfunctorch import dispatch_functorch
from torch._ops import HigherOrderOperator

from torchlayers import _C

Function: TypeAlias = type[torch.autograd.Function]
Rule: TypeAlias = Callable[[Function, int, tuple[Any, ...]], Any]


# The one that Function.apply ends in: it asks no questions about transforms.
_PLAIN_APPLY: Any = vars(torch._C._FunctionBase)["apply"]


class CustomFunctionHigherOrderOperator(HigherOrderOperator):
    """Calls an autograd.Function with the layer on top of the stack, by that layer's rule.

    Called with a Function and its operands. The operands are what the Function's forward takes,
    tensors and other things; the result is what its forward returns.
    Source: the higher-order operator of the same name in torch.func.
    """

    def __init__(self) -> None:
        super().__init__("torchlayers_custom_function_call")  # type: ignore[no-untyped-call]
        self._rules: dict[str, Rule] = {}

    def rule(self, *kinds: str) -> Callable[[Rule], Rule]:
        """Makes a function of (Function, level, operands) the rule of these kinds of layers."""

        def register(rule: Rule) -> Rule:
            self._rules.update(dict.fromkeys(kinds, rule))
            return rule

        return register

    def __call__(self, function: Function, /, *operands: Any) -> Any:
        top = _C.top()
        if top is not None:
            kind, level = top
            return self._rules[kind](function, level, operands)
        if torch._C._are_functorch_transforms_active():
            return dispatch_functorch(torch_funcs, (function, *operands), {})
        # Function.apply has unwrapped dead wrappers and bound forward's defaults already.
        return _PLAIN_APPLY(function, *operands)


custom_function_call = CustomFunctionHigherOrderOperator()
