"""The function mode that replaces torch functions during capture."""

from collections.abc import Callable
from typing import Any

from torch.overrides import TorchFunctionMode

from torchlayers.autograd_function.custom_function_call import custom_function_call
from torchlayers.compiler.capture.values.number_operands import with_operands
from torchlayers.compiler.capture.values.reads import TensorReads
from torchlayers.core.operator_rules.function_rules import RULES, suspended
from torchlayers.core.operators import higher_order


class FunctionRuleMode(TorchFunctionMode):
    """Calls torchlayers.control_flow's functions in place of torch.cond and the like.

    ``watched`` has replacements for other torch functions. For floats of ``reads`` that are traced,
    functions are called with tensors. ``before`` gets the arguments of each function.
    """

    def __init__(
        self,
        watched: dict[Any, Callable[..., Any]],
        reads: TensorReads | None,
        before: Callable[[Any], None],
    ) -> None:
        super().__init__()
        self._watched = watched
        self._reads = reads
        self._before = before

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self._before((args, kwargs))
        if self._reads is not None:
            args, kwargs = with_operands(func, args, kwargs or {})
        rule = RULES.get(func)
        if func is custom_function_call or func is higher_order.custom_function_call:
            with suspended(self):
                return func(*args, **(kwargs or {}))
        if rule is None:
            return self._watched.get(func, func)(*args, **(kwargs or {}))
        with self:
            return rule(*args, **(kwargs or {}))
