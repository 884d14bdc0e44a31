"""Tracks running module calls, and passes the modules' outputs to listeners."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.nn.modules import module as modules

from torchlayers.taps.loop_steps import thread


class _Call:
    """A call of a module that is running."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._paths: dict[int, list[str]] | None = None

    def paths_of(self, module: nn.Module) -> list[str]:
        """Returns the paths of the module in this one: several, if it is shared."""
        if self._paths is None:
            self._paths = {}
            for path, submodule in self.module.named_modules(remove_duplicate=False):
                self._paths.setdefault(id(submodule), []).append(path)
        return self._paths.get(id(module), [])


class _Thread(threading.local):
    def __init__(self) -> None:
        self.calls: list[_Call] = []


_thread = _Thread()


def calls_in_progress() -> list[_Call]:
    """Returns the running calls of this thread, innermost last, if there are listeners."""
    return _thread.calls


class _ModuleHooks:
    """Counts listeners to modules on all threads: they share torch's global module hooks."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.count = 0
        self.handles: tuple[Any, ...] = ()


_module_hooks = _ModuleHooks()


@contextmanager
def watch_modules() -> Iterator[None]:
    """Passes module outputs to listeners inside the context."""
    with _module_hooks.lock:
        _module_hooks.count += 1
        if _module_hooks.count == 1:
            _module_hooks.handles = (
                modules.register_module_forward_pre_hook(_begin),
                modules.register_module_forward_hook(_end, always_call=True),
            )
    try:
        yield
    finally:
        with _module_hooks.lock:
            _module_hooks.count -= 1
            if _module_hooks.count == 0:
                for handle in _module_hooks.handles:
                    handle.remove()


def _begin(module: nn.Module, args: Any) -> None:
    if thread.listeners:
        _thread.calls.append(_Call(module))


def _end(module: nn.Module, args: Any, output: Any) -> Any:
    calls = _thread.calls
    if not calls or calls[-1].module is not module:
        return None
    for listener in reversed(thread.listeners):
        if output is not None and listener.calls < len(calls):
            for path in calls[listener.calls].paths_of(module):
                output = listener.meet(path, output, is_module=True)
    calls.pop()
    return output
