"""Traces the functions that torch's higher-order operators take: branches, and bodies of loops.

torch's code for these operators passes the functions to the current tracer, a variable that all
threads share. Compilations of torch set it while they hold the lock of torch.compile. So does this
module, while such an operator is called; while the function itself is traced, the lock is released
and the variable restored, since the function may wait for another thread that compiles.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch.fx import GraphModule
from torch.fx.experimental import proxy_tensor

from torchlayers.core.private_names import lookup

# trace_operators of operator_tracer.py, which imports this module.
TraceOperators = Callable[..., GraphModule]
_ours = threading.RLock()
_this_thread = threading.local()


def compile_lock() -> Any:
    """Returns the lock that torch.compile holds while it compiles.

    No code of the user's may run inside.
    """
    # Without it there is no compilation to wait for: Dynamo has another way.
    return lookup("torch._dynamo.convert_frame.compile_lock", None) or _ours


def is_current_here() -> bool:
    """Whether this thread has made a tracer of ours the current one."""
    return getattr(_this_thread, "tracer", None) is not None


class SubgraphTracer:
    """The current tracer, for torch's higher-order operators."""

    fake_tensor_mode = None

    def __init__(self, trace: TraceOperators, decompositions: Mapping[Any, Any]) -> None:
        self._trace, self._decompositions = trace, decompositions
        self._lock = compile_lock()
        self._before: Any = None
        self._before_here: SubgraphTracer | None = None

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Inside, such operators can be called."""
        self._enter()
        try:
            yield
        finally:
            self._leave()

    def trace_subgraph(self, function: Callable[..., Any], *inputs: Any) -> GraphModule:
        return self.trace_subgraph_custom_decomp(function, self._decompositions, *inputs)

    def trace_subgraph_custom_decomp(
        self, function: Callable[..., Any], decompositions: Mapping[Any, Any], *inputs: Any
    ) -> GraphModule:
        self._leave()
        try:
            return self._trace(function, *inputs, decompositions=decompositions)
        finally:
            self._enter()

    def _enter(self) -> None:
        self._lock.acquire()
        self._before = lookup("torch.fx.experimental.proxy_tensor._CURRENT_MAKE_FX_TRACER", None)
        setattr(proxy_tensor, _CURRENT, self)
        self._before_here = getattr(_this_thread, "tracer", None)
        _this_thread.tracer = self

    def _leave(self) -> None:
        _this_thread.tracer = self._before_here
        setattr(proxy_tensor, _CURRENT, self._before)
        self._lock.release()


_CURRENT = "_CURRENT_MAKE_FX_TRACER"
