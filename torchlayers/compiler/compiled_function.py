"""The class of compiled functions: captures the function for each new signature, with warnings."""

import contextlib
import functools
import importlib
import logging
import operator
import threading
import time
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, Generic, overload

from torchlayers import _C
from torchlayers.compiler.capture.errors import (
    NotWritableError,
    RaisedInCaptureError,
    name_of,
)
from torchlayers.compiler.capture.record import record
from torchlayers.compiler.capture.signature import Signature, describe_leaves
from torchlayers.compiler.capture.state.iterators import values_found_again, values_shared
from torchlayers.compiler.capture.state.outside_world import OutsideWorldError
from torchlayers.compiler.capture.state.python_writes import AnyWrite
from torchlayers.compiler.capture.values.reads import RaisedAfterReadError, warn_of_reads
from torchlayers.compiler.capture_reasons import CaptureReasons
from torchlayers.compiler.lowered import Lowered
from torchlayers.compiler.runtime import call
from torchlayers.compiler.runtime.build import Built, Eager
from torchlayers.compiler.runtime.call_tree import build_entry
from torchlayers.compiler.runtime.dynamic_shapes import DynamicShapes
from torchlayers.compiler.runtime.report import Report
from torchlayers.compiler.runtime.request import CompileRequest, CompileSettings
from torchlayers.compiler.runtime.stages import stages
from torchlayers.core import pytree, tracing_state
from torchlayers.core.annotations import P, Q, R, T
from torchlayers.core.describe_function import describe_function
from torchlayers.core.errors import warn
from torchlayers.core.logger import logger
from torchlayers.core.trace.calls import CompiledCode

# A function captured for this many signatures triggers a warning.
_MANY = 8
# After this many captures in a row, one that changes what it reads at each of them is given up.
_SETTLED = 8
# After so many captures in a row for one signature that served one call each there are no more; and
# after so many operators in two of them, or in one after which a list has another length: L-BFGS
# has a loop over its history.
_UNUSED, _UNUSED_OPERATORS = 16, 8000


class Compiled(_C.CompiledCall, Generic[P, R]):
    """A function compiled by :func:`compile`, called like the original."""

    def __init__(
        self,
        func: Callable[P, R],
        static: tuple[int, ...],
        settings: CompileSettings,
        *,
        keeps_writes: bool = True,
        dynamic: bool = False,
    ) -> None:
        functools.update_wrapper(self, func, updated=())
        self._func = func
        self._static = static
        self._settings = settings
        self._keeps_writes = keeps_writes
        self._name = name_of(func)
        self._entries = call.EntryCache()
        self._builds: list[Built] = []
        self._is_dynamic = dynamic
        self._dynamic = DynamicShapes(self._name, dynamic)
        self._lock = threading.RLock()
        self._reasons = CaptureReasons()
        self._lost: dict[Any, int] = {}  # how many captures in a row wrote to a guarded place
        self._calls_when_lost = 0
        self._replaced: set[Any] = set()  # places of Python's state that captures write to
        self._is_told = False  # whether a warning has said that it runs uncompiled
        self._as_it_is = ""  # why calls without an entry run uncompiled, if they do

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Is read by Dynamo only: real calls go to C++. NOTE [Called at once]."""
        return self._func(*args, **kwargs)

    @tracing_state.uncompiled
    def _otherwise(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Handles a call for which C++ has no entry."""
        tracing_state.import_uninterrupted("torch._dynamo")
        if self._as_it_is:
            return self._func(*args, **kwargs)
        places = call.static_positions(self._static, args)
        with values_shared():
            try:
                return call.call(  # type: ignore[no-any-return]
                    self._entries, self._make, self._func, places, args, kwargs
                )
            except RaisedInCaptureError as error:
                raised = error
            with values_found_again():
                result = self._func(*args, **kwargs)
        if isinstance(raised, RaisedAfterReadError) and raised.why:
            if not self._as_it_is:
                self._as_it_is = raised.why
                warn_of_reads(self._name, raised.why, raised.line)
            return result
        cause = raised.__cause__
        why = f"can't be captured: {type(cause).__name__}: {cause}".removesuffix(".")
        self._run_uncompiled(why, f"{why}.")
        return result

    def __getattr__(self, name: str) -> Any:
        """Forwards public attributes to the function."""
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._func, name)

    @overload
    def __get__(self, instance: None, owner: Any = None) -> "Compiled[P, R]": ...
    @overload
    def __get__(
        self: "Compiled[Concatenate[Any, Q], T]", instance: object, owner: Any = None
    ) -> Callable[Q, T]: ...
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __reduce__(self) -> Any:
        """Copies and pickles the original function and the settings; a copy captures anew.

        A function of a module that ``@compile`` decorates is found by its name, as functions are.
        """
        name = getattr(self._func, "__module__", None), getattr(self._func, "__qualname__", "")
        if _global_named(*name) is self:
            return _global_named, name
        parts = self._func, self._static, self._settings, self._keeps_writes, self._is_dynamic
        return _made_again, (type(self), *parts)

    def __repr__(self) -> str:
        return f"torchlayers.{describe_function(self)}"

    def report(self) -> Report:
        """Lists what has been captured so far, how it runs, and why it was captured.

        Returns:
            A :class:`Report`, which prints as a table.
        """
        signatures = tuple(build.report() for build in self._builds)
        shown = tuple(functools.partial(self._shown, build) for build in self._builds)
        return Report(self._name, signatures, self._as_it_is, shown)

    def code_of(self, entry: call.Entry) -> CompiledCode:
        """Describes an entry for traces."""
        signature = entry.signature
        build = next((build for build in self._builds if build.entry is entry), None)
        shown = functools.partial(self._stages, signature)
        if build is not None:
            shown = functools.partial(self._shown, build)
        return CompiledCode(
            self._name, describe_leaves(signature), build.why if build else "", shown
        )

    def _shown(self, build: Built) -> list[tuple[str, str]]:
        """What a report shows of an entry: its reads and writes, and its graphs."""
        stages = self._stages(build.entry.signature) if build.stages is None else build.stages()
        return [*build.reads_and_writes(), *stages]

    def _stages(self, signature: Signature) -> list[tuple[str, str]]:
        """The graph for a signature after each stage, for its report."""

        def with_static(dynamic: Sequence[Any]) -> list[Any]:
            rest, constants = iter(dynamic), iter(signature.static)
            count = len(dynamic) + len(signature.static)
            places = call.static_positions(self._static, range(count))
            return [next(constants).value if i in places else next(rest) for i in range(count)]

        fuses = self._settings.backend == "inductor"
        return stages(self._func, signature, with_static, fuses)

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until nothing is being compiled in the background for this function.

        The next call then runs the code of the calls made so far, and compares its first result.

        Args:
            timeout: for how many seconds to wait at most. If None, as long as it takes.
        Returns:
            Whether nothing is being compiled any more.
        Example:
            >>> compiled = torchlayers.compile(torch.sin)
            >>> _ = compiled(torch.ones(2))
            >>> compiled.wait()
            True
            >>> [entry.how for entry in compiled.report().signatures]
            ['inductor']

        Source: threading.Event.wait.
        """
        return self._wait_until(None if timeout is None else time.monotonic() + timeout)

    def _wait_until(self, deadline: float | None) -> bool:
        """Like :meth:`wait`, until a time on the clock time.monotonic."""
        return all([build.runs.wait(deadline) for build in [*self._builds]])

    def lower(self, /, *args: Any, **kwargs: Any) -> Lowered:
        """Captures the function for arguments like these, for inspection and for saving.

        Args:
            args, kwargs: as for a call. Nothing is computed, and no tensor is written to.
        Returns:
            A :class:`torchlayers.compiled.Lowered`: the graph, its costs, and ``save(path)``.
        Raises:
            DataDependentError: the function needs a Python value that depends on tensor data.
        Example:
            >>> compiled = torchlayers.compile(lambda a, b: (a @ b).sin())
            >>> lowered = compiled.lower(torch.ones(2, 3), torch.ones(3))
            >>> lowered.operators, lowered.flops
            (2, 14)

        Source: jax.stages.Lowered.
        """
        request, dynamic = self._compile_request(args)
        captured_graph = record(request.func, dynamic, kwargs, guarded=self._settings.guards)
        return Lowered(self._name, captured_graph, (dynamic, kwargs), self._settings.options)

    def _make(
        self, signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> call.Entry:
        """Returns the entry for a signature: one thread captures, the others wait for it."""
        with self._lock:
            request, dynamic = self._compile_request(args)
            leaves = pytree.leaves((tuple(dynamic), kwargs))
            if (entry := self._entries.find(signature, leaves)) is not None:
                return entry
            entry = self._dynamic.confirm(request, signature, leaves, dynamic, kwargs)
            if entry is not None:
                return entry
            build = self._dynamic.build(request, signature, self._builds, dynamic, kwargs)
            if build is not None:
                self._register(build, args, kwargs)
                return build.entry
            try:
                build = build_entry(request, signature, dynamic, kwargs)
            except (NotWritableError, OutsideWorldError) as error:
                self._run_uncompiled_since_it(error.what)
                raise
            self._register(build, args, kwargs)
            return build.entry

    def _register(self, build: Built, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keeps the entry for later calls, if it fits those, and warns of what it shows."""
        build.entry.owner = weakref.ref(self)
        build.why = build.why or self._reasons.reason(self._name, build.entry, self._entries.all)
        self._builds.append(build)
        self._log(build)
        if isinstance(build.runs, Eager):
            self._tell_uncompiled(build.runs)
        if build.lost:
            self._tell_lost(build.lost)
        if build.once:
            return
        self._remember(build.entry, args, kwargs)
        self._tell_unused(build)
        if len(self._builds) == _MANY and not self._as_it_is:
            warn(
                f"torchlayers: compile: {self._name} was captured {_MANY} times, most recently "
                f"because {build.why}. Calls that differ in this don't share compiled code: "
                "pass tensors instead of numbers that change, pad shapes, or leave compile "
                "out. report() lists the signatures.",
            )

    def _log(self, build: Built) -> None:
        if logger.isEnabledFor(logging.INFO):
            report = build.report()
            again = f", because {build.why}" if build.why else ""
            logger.info(
                f"torchlayers: compile: captured {self._name}({report.arguments}) in "
                f"{report.seconds:.2f} s, {report.operators} operators, {report.how}{again}"
            )

    def _remember(self, entry: call.Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Registers the entry, so that it runs calls like this one from now on."""
        if (dropped := self._entries.add(entry)) is not None:
            self._drop(dropped)
            self._builds = [build for build in self._builds if build.entry is not dropped]
        has_hooks = any(hooked.hooks for hooked in entry.hooked)
        if entry.grads_like or has_hooks:  # C++ does not check these
            return
        places = call.static_positions(self._static, args)
        self._add(entry, args, kwargs, [i in places for i in range(len(args))])

    def _tell_uncompiled(self, runs: Eager) -> None:
        if not self._is_told:
            self._is_told = True
            warn(
                f"torchlayers: compile: {self._name} runs uncompiled when autograd is enabled: "
                f"{runs.why}. {runs.advice}",
            )

    def _tell_lost(self, lost: Sequence[AnyWrite]) -> None:
        """Handles a capture that no next call can use; after some in a row, stops capturing."""
        calls = sum(build.entry.calls for build in self._builds)
        before = self._lost if calls == self._calls_when_lost + 1 else {}
        self._lost = {write.grows: before.get(write.grows, 0) + 1 for write in lost}
        self._calls_when_lost = calls
        for write in lost:
            if self._lost[write.grows] >= (_SETTLED if write.may_settle else 2):
                self._run_uncompiled_since_it(f"changes {write.name} at each call")

    def _tell_unused(self, build: Built) -> None:
        """Stops capturing a function whose captures no second call can use."""
        unused = self._entries.unused(build.entry.signature)
        captured = sum(b.operators for b in self._builds if b.entry in unused)
        changed = next((write.name for write in build.lost if write.changes_length), "")
        is_long = captured >= _UNUSED_OPERATORS and (changed or len(unused) > 1)
        if is_long or len(unused) >= _UNUSED:
            why = build.why or f"it changes the length of {changed}"
            times = "once" if len(unused) == 1 else f"{len(unused)} times in a row"
            self._run_uncompiled(
                f"differs at each call: {why}",
                f"was captured {times} ({captured} operators), and no capture served a second "
                f"call: {why}.",
                " Compile a part of it that does not depend on this, such as the loss.",
            )

    def _run_uncompiled_since_it(self, does: str) -> None:
        self._run_uncompiled(
            does,
            f"{does}, which a captured graph can't do.",
            " Leave that outside the compiled function, write to a tensor in place (copy_), or "
            "print with torchlayers.debug.print.",
        )

    def _run_uncompiled(self, why: str, sentence: str, advice: str = "") -> None:
        """Runs calls without an entry uncompiled from now on."""
        if not self._as_it_is:
            self._as_it_is = f"the function {why}"
            warn(
                f"torchlayers: compile: {self._name} {sentence} From now on it runs uncompiled."
                f"{advice}"
            )

    def _compile_request(self, args: Sequence[Any]) -> tuple[CompileRequest, list[Any]]:
        """Returns the capture request, for a function of the non-static arguments, and these."""
        func, places = self._func, call.static_positions(self._static, args)
        if places:

            def func(*dynamic: Any, **kwargs: Any) -> Any:
                rest = iter(dynamic)
                all_args = (arg if i in places else next(rest) for i, arg in enumerate(args))
                return self._func(*all_args, **kwargs)

            functools.update_wrapper(func, self._func, updated=())
        dynamic = [arg for i, arg in enumerate(args) if i not in places]
        request = CompileRequest(
            func,
            self._name,
            self._settings,
            self._keeps_writes,
            self._compile_again,
            self._replaced,
            self._lock,
        )
        return request, dynamic

    def _compile_again(self, func: Callable[..., Any], name: str) -> "Compiled[..., Any]":
        # Without guards: runtime/autograd.py checks those of the function itself.
        settings = self._settings._replace(guards=False)
        again = Compiled(func, (), settings, keeps_writes=False)
        again._name = name
        return again


_C.call_at_once(Compiled)


def _global_named(module: str | None, qualified: str) -> Any:
    """A module's function or method by its qualified name; None if there is none."""
    if module is None:
        return None
    with contextlib.suppress(AttributeError, ImportError):
        return operator.attrgetter(qualified)(importlib.import_module(module))
    return None


def _made_again(
    kind: type[Compiled[..., Any]],
    func: Callable[..., Any],
    static: tuple[int, ...],
    settings: CompileSettings,
    keeps_writes: bool,
    dynamic: bool,
) -> Compiled[..., Any]:
    return kind(func, static, settings, keeps_writes=keeps_writes, dynamic=dynamic)
