"""A mode that notes the user's line that calls each operator, in the captured nodes' meta."""

from typing import Any

from torch.fx import traceback

from torchlayers.core.errors import location
from torchlayers.core.torch_private import TorchDispatchMode


class NotedLines(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Has ``meta["stack_trace"]`` say "In train.py:7, `x.sin()`." Finding the line takes as long as
    capturing the operator, so this is only for graphs that are shown."""

    supports_higher_order_operators = True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        with traceback.preserve_node_meta():
            traceback.set_stack_trace([location().strip()])
            return func(*args, **(kwargs or {}))
