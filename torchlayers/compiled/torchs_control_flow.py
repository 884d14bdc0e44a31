"""torch's own control flow in a recording: it is recorded as ours is."""

from typing import Any

from torch.overrides import TorchFunctionMode

from torchlayers.control_flow.samples import RULES


class ControlFlow(TorchFunctionMode):
    """Inside, torch.cond and the like are called as those of torchlayers.control_flow are."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        rule = RULES.get(func)
        if rule is None:
            return func(*args, **(kwargs or {}))
        with self:
            return rule(*args, **(kwargs or {}))
