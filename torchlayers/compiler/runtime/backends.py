"""Runs a graph by replay, as Inductor's code, or by replay until that code is ready."""

import errno
import os
import threading
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.fx import GraphModule

from torchlayers.compiler.inductor import cache_directory
from torchlayers.compiler.inductor import compile as inductor
from torchlayers.compiler.passes.graph_queries import (
    final_copies,
    generators_of,
    half_precision,
    is_functional,
)
from torchlayers.compiler.passes.uninitialized_results import uninitialized_results
from torchlayers.compiler.runtime.compare import CallSnapshot, run_and_compare
from torchlayers.compiler.runtime.request import CompileSettings
from torchlayers.core.errors import warn
from torchlayers.fx.program import replay

Run = Callable[[list[Tensor]], Sequence[Tensor]]

BACKENDS = ("inductor", "replay", "auto")

# Inductor may be used by one thread at a time.
_compiling = threading.Lock()


# Seconds to wait before compiling again after the disk was full.
_WAIT = 60.0


class GraphRunner:
    """A graph and the callable that currently runs it.

    ``adopt`` is passed that callable, wrapped by ``around``, and again whenever it is replaced.
    ``replayed`` always runs the graph by replay, under any layers.
    """

    def __init__(
        self,
        graph: GraphModule,
        settings: CompileSettings,
        name: str,
        adopt: Callable[[Run], None],
        around: Callable[[Run], Run] | None = None,
        compiler: inductor.Compiler | None = None,
    ) -> None:
        self._compiler = compiler
        self.graph = graph
        self.seconds = 0.0
        self.how = "replay"
        self._settings = settings
        self._name = name
        self._adopt = adopt if around is None else lambda run: adopt(around(run))
        self.replayed: Run = replay(graph)
        self._code: Run | None = None
        self._settled = False
        self._again_at = 0.0
        self._lock = threading.RLock()
        self._threads = torch.get_num_threads()
        self._half = half_precision(graph)
        self._adopt(self.replayed)
        if settings.backend == "replay":
            return
        if settings.replayed:
            self.how = f"replay ({settings.replayed})"
            return
        if not is_functional(graph):
            self.how = "replay (an operator writes to its inputs)"
        elif settings.backend == "inductor":
            self.how = "not compiled yet"
            self._adopt(self._compile_first)
        else:
            self._start_compiling_aside()

    def _compile_first(self, tensors: list[Tensor]) -> Sequence[Tensor]:
        """Runs the first call: compiles, and compares the result with the replayed one.

        If that is interrupted, the next call counts as the first.
        """
        with self._lock:
            if not self._settled:
                if self._code is None:
                    self._compile()
                return self._first_result(tensors)
        return (self._code or self.replayed)(tensors)

    def _start_compiling_aside(self) -> None:
        self.how = "replay, until compiled"
        threading.Thread(
            target=self._compile_aside, name=f"torchlayers compiles {self._name}", daemon=True
        ).start()

    def _compile_aside(self) -> None:
        self._compile()
        if self._code is not None:
            self._adopt(self._compile_first)

    def _compile(self) -> None:
        """Compiles the graph; if that fails, warns and goes on replaying."""
        start = time.perf_counter()
        options = self._settings.options
        try:
            with _compiling:
                compile_graph = self._compiler or inductor.compile_graph
                self._code = compile_graph(self.graph, self._threads, options)
            self.how = "inductor"
        except inductor.NoCompilerError:
            inductor.warn_no_compiler()
            self._go_on_replaying("no C++ compiler")
        except Exception as error:
            if (why := cache_directory.unusable_reason(error)) is not None:
                cache_directory.warn_unusable(why)
                self._go_on_replaying("no cache directory")
                self.seconds += time.perf_counter() - start
                return
            text = str(error).strip().splitlines()
            reason = f"{type(error).__name__}: {text[0] if text else ''}"
            self._go_on_replaying(reason)
            if is_full := _disk_is_full(error):
                self._again_at = time.monotonic() + _WAIT
                self._adopt(self._compile_again)
            advice = (
                "Compilation will be retried later, when there may be space."
                if is_full
                else (
                    "Please report it, with the graph that torchlayers.make_graph returns for "
                    "these arguments."
                )
            )
            warn(
                f"torchlayers: compile: Inductor did not compile {self._name}, whose graph is "
                f"replayed instead ({reason}). {advice}",
            )
        self.seconds += time.perf_counter() - start

    def _first_result(self, tensors: list[Tensor]) -> Sequence[Tensor]:
        run = self._code
        if run is None:
            result = self.replayed(tensors)
        elif not self._settings.check:
            result = run(tensors)
        else:
            result, problem = self._checked(run, tensors)
            if problem is not None:
                self._go_on_replaying(f"inductor's {problem}")
                warn(
                    f"torchlayers: compile: Inductor compiled {self._name} incorrectly: {problem}. "
                    "The graph is replayed instead. Please report it to PyTorch, with the graph "
                    "that torchlayers.make_graph returns for these arguments.",
                )
        self._settled = True
        if self._code is not None:
            self._adopt(self._code)
        return result

    def _compile_again(self, tensors: list[Tensor]) -> Sequence[Tensor]:
        """Runs a call after the disk was full: compiles again once the waiting time is over."""
        with self._lock:
            if self._settled and self._code is None and time.monotonic() >= self._again_at:
                self._settled = False
                if self._settings.backend == "inductor":
                    return self._compile_first(tensors)
                self._start_compiling_aside()
        return self.replayed(tensors)

    def _go_on_replaying(self, why: str) -> None:
        self._code = None
        self._settled = True
        self.how = f"replay ({why})"
        self._adopt(self.replayed)

    def _checked(self, run: Run, tensors: list[Tensor]) -> tuple[Sequence[Tensor], str | None]:
        """Returns the code's result and None, or the replayed one and how the code's is wrong."""
        written = sorted({*final_copies(self.graph).values()})
        with torch.no_grad():
            before = CallSnapshot(tensors, written, generators_of(self.graph))
            uninitialized = uninitialized_results(self.graph)
            result, problem = run_and_compare(
                before, self.replayed, run, self._half, uninitialized=uninitialized
            )
            if problem is not None:
                before.undo()
                result = self.replayed([*tensors])
        return result, problem


def _disk_is_full(error: BaseException | None) -> bool:
    """Whether a full disk caused the error, in this process or in a compiler's."""
    while error is not None:
        if any(os.strerror(number) in str(error) for number in (errno.ENOSPC, errno.EDQUOT)):
            return True
        error = error.__cause__ or error.__context__
    return False


def below_autograd(run: Run) -> Run:
    """Wraps the callable so that it runs without autograd and autocast."""

    def plain(tensors: list[Tensor]) -> Sequence[Tensor]:
        with torch.no_grad(), torch._C._DisableAutocast():
            return run(tensors)

    return plain
