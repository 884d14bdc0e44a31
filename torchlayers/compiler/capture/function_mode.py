"""The function mode that replaces torch functions during capture."""

from collections.abc import Callable
from typing import Any

from torch.overrides import TorchFunctionMode

from torchlayers.core.function_rules import RULES


class FunctionRuleMode(TorchFunctionMode):
    """Calls torchlayers.control_flow's functions in place of torch.cond and the like.

    ``watched`` has replacements for other torch functions.
    """

    def __init__(self, watched: dict[Any, Callable[..., Any]]) -> None:
        super().__init__()
        self._watched = watched

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        rule = RULES.get(func)
        if rule is None:
            return self._watched.get(func, func)(*args, **(kwargs or {}))
        with self:
            return rule(*args, **(kwargs or {}))
