"""The base class of listeners, which receive named values while a function runs."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NoReturn, TypeAlias

from torch import Tensor

from torchlayers import _C
from torchlayers.core import pytree
from torchlayers.core.errors import TapError
from torchlayers.core.torch_private import functorch, torch_c
from torchlayers.taps import module_calls
from torchlayers.taps.loop_steps import StepValues, TappedLoop, thread

Names: TypeAlias = str | Iterable[str]


class Listener:
    """Receives the values with certain names while a function runs."""

    def __init__(self, api: str, names: Names | None) -> None:
        self.api = api
        self.names = None if names is None else _as_names(api, names)
        self.met: dict[str, None] = {}
        self.paths: dict[str, None] = {}
        self.level = 0
        self.pass_ = (0, 0)
        self.calls = self.loops = 0

    @contextmanager
    def listening(self) -> Iterator[None]:
        self.level, self.pass_ = functorch.maybe_current_level() or 0, _pass()
        self.calls, self.loops = len(module_calls.calls_in_progress()), len(thread.loops)
        self.start()
        outer = thread.listeners
        thread.listeners = (*outer, self)
        try:
            with module_calls.watch_modules() if self.names else nullcontext():
                yield
        finally:
            thread.listeners = outer
            del module_calls.calls_in_progress()[self.calls :]
        for name in self.names or ():
            if name not in self.taken:
                self._refuse_unknown(name)

    def start(self) -> None:
        """Called at the level of the transform, before the function runs."""

    def wants(self, name: str, is_module: bool) -> bool:
        return not is_module if self.names is None else name in self.names

    def meet(self, name: str, value: Any, is_module: bool) -> Any:
        if _pass() != self.pass_:  # a function that is recomputed, or called by a hook
            return self.meet_again(value) if self.wants(name, is_module) else value
        (self.paths if is_module else self.met).setdefault(name)
        if not self.wants(name, is_module):
            return value
        loops = thread.loops[self.loops :]
        if name in self.taken and not (loops and isinstance(self.taken[name], StepValues)):
            self._refuse_another(name)
        leaves, spec = pytree.flatten(value)
        if not any(isinstance(leaf, Tensor) for leaf in leaves):
            raise TapError(
                f"torchlayers: {self.api}: the value named {name!r} contains no tensors: it is of "
                f"type {type(value).__name__}."
            )
        results, taken = [], []
        for i, leaf in enumerate(leaves):
            is_tensor = isinstance(leaf, Tensor)
            result, tapped = self.take(name, i, leaf, loops) if is_tensor else (leaf, leaf)
            results.append(result)
            taken.append(tapped)
        value = pytree.unflatten(taken, spec)
        if not loops:
            self.taken[name] = value
        elif not self.taken.setdefault(name, StepValues(loops, self.level)).put(loops, value):
            self._refuse_another(name)
        return pytree.unflatten(results, spec)

    def meet_again(self, value: Any) -> Any:
        """Returns what the function continues with when it runs again."""
        return value

    def whole(self, name: str, value: Any) -> Any:
        """Returns the value; for a value inside a loop, those of all steps together."""
        if not isinstance(value, StepValues):
            return value
        if (whole := value.whole()) is None:
            raise TapError(
                f"torchlayers: {self.api}: some steps of {value.loops[0].api} have no value named "
                f"{name!r}, but others do. Name one in each step."
            )
        return whole

    @property
    def taken(self) -> dict[str, Any]:
        raise NotImplementedError

    def take(
        self, name: str, i: int, tensor: Tensor, loops: Sequence[TappedLoop]
    ) -> tuple[Tensor, Any]:
        """Returns what the function continues with, and what to collect, for leaf i of a value."""
        raise NotImplementedError

    def _refuse_another(self, name: str) -> NoReturn:
        raise TapError(
            f"torchlayers: {self.api}: two values are named {name!r}. Give each a separate name; "
            "for a value in each step of a loop, use scan, map or fori_loop, which stack them."
        )

    def _refuse_unknown(self, name: str) -> None:
        taps = [*self.met]
        paths = [path for path in self.paths if path]
        there = ", ".join(map(repr, taps)) or "no tap"
        if paths:
            shown = ", ".join(map(repr, paths[:20])) + (", …" if len(paths) > 20 else "")
            there += f", and modules {shown}"
        raise TapError(f"torchlayers: {self.api}: no value is named {name!r}; found {there}.")


def _as_names(api: str, names: Names) -> tuple[str, ...]:
    chosen = (names,) if isinstance(names, str) else tuple(names)
    for name in chosen:
        if not isinstance(name, str):
            raise TapError(
                f"torchlayers: {api}: tap names must be strings, got {type(name).__name__}."
            )
        if chosen.count(name) > 1:
            raise TapError(f"torchlayers: {api}: {name!r} is given twice.")
    return chosen


def _pass() -> tuple[int, int]:
    """Identifies the reverse pass running on this thread, whether torchlayers' or torch's."""
    return _C.number_of_pass(), torch_c._current_graph_task_id()
