"""Runs a graph by replay, and as Inductor's code as soon as that is ready."""

import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from torchlayers.compiler.inductor import cache_directory
from torchlayers.compiler.inductor import compile as inductor
from torchlayers.compiler.passes.graph_queries import (
    communicates,
    final_copies,
    generators_of,
    half_precision,
    is_functional,
)
from torchlayers.compiler.passes.uninitialized_results import uninitialized_results
from torchlayers.compiler.runtime import background
from torchlayers.compiler.runtime.compare import CallSnapshot, run_and_compare
from torchlayers.compiler.runtime.request import CompileSettings
from torchlayers.core.errors import warn
from torchlayers.core.logger import logger
from torchlayers.core.torch_private import torch_c
from torchlayers.fx.program import replay

Run = Callable[[list[Tensor]], Sequence[Tensor]]

Backend: TypeAlias = Literal["inductor", "replay"]
BACKENDS = get_args(Backend)

# Whether compile waits for Inductor unless it is told otherwise.
_WAIT_VARIABLE = "TORCHLAYERS_COMPILE_WAIT"

# Seconds to wait before compiling again after the disk was full.
_WAIT = 60.0


def waits_by_default() -> bool:
    """Whether the first call waits for Inductor if compile got no ``wait``.

    Otherwise later results may differ from earlier ones by rounding. With deterministic algorithms
    users rely on the opposite, and so do replicas on several ranks, which would drift apart.
    """
    distributed = torch.distributed
    return (
        os.environ.get(_WAIT_VARIABLE, "") not in ("", "0")
        or torch.are_deterministic_algorithms_enabled()
        or (
            distributed.is_available()
            and distributed.is_initialized()
            and distributed.get_world_size() > 1
        )
    )


class GraphRunner:
    """A graph and the callable that currently runs it.

    ``adopt`` is passed that callable, wrapped by ``around``, and again whenever it is replaced.
    ``replayed`` always runs the graph by replay, under any layers. Its results have the same
    layouts as the code's where these are in ``laid_out``.
    """

    def __init__(
        self,
        graph: GraphModule,
        settings: CompileSettings,
        name: str,
        adopt: Callable[[Run], None],
        around: Callable[[Run], Run] | None = None,
        laid_out: Collection[Node] = (),
    ) -> None:
        self.graph = graph
        self.seconds = 0.0
        self.how = "replay"
        self._settings = settings
        self._name = name
        self._adopt = adopt if around is None else lambda run: adopt(around(run))
        self.replayed: Run = replay(graph, laid_out)
        self._code: Run | None = None
        self._compilation: background.Compilation | None = None  # in flight
        self._settled = False  # whether it is decided what runs the graph
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
        else:
            self.how = "not compiled yet"
            self._waits = waits_by_default() if settings.wait is None else settings.wait
            self._adopt(self._until_settled)

    def wait(self, deadline: float | None) -> bool:
        """Waits for a compilation in flight; returns whether there is none any more.

        Args:
            deadline: on the clock time.monotonic, or None.
        """
        while (compilation := self._compilation) is not None:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not compilation.wait(left):
                return False
            with self._lock:
                self._advance()
        return True

    def _until_settled(self, tensors: list[Tensor]) -> Sequence[Tensor]:
        """Runs a call until the code's first result has been compared.

        If that call is interrupted, the next one counts as the first.
        """
        # Without waiting, other threads go on replaying while one compares.
        if self._lock.acquire(blocking=self._waits):
            try:
                if not self._settled:
                    self._advance()
                if not self._settled and self._code is not None:
                    return self._first_result(tensors)
            finally:
                self._lock.release()
        run = self._code if self._settled else None
        return (run or self.replayed)(tensors)

    def _advance(self) -> None:
        """Compiles the graph or starts to, or takes over the code if that is ready."""
        if self._settled or self._code is not None:
            return
        if self._compilation is None or self._compilation.is_lost:
            self._start()
        if (compilation := self._compilation) is not None and compilation.is_done():
            self._compilation = None
            self.seconds += compilation.seconds
            self._settle(compilation.result)

    def _start(self) -> None:
        """Compiles the graph, or starts to compile it in the background."""
        graph, threads, options = self.graph, self._threads, self._settings.options

        def compile_here() -> Run:
            with background.compiling:
                return inductor.compile_graph(graph, threads, options)

        if self._waits:
            start = time.perf_counter()
            self._settle(compile_here)
            self.seconds += time.perf_counter() - start
            return
        self.how = "replay, until compiled"
        logger.debug(f"torchlayers: compile: {self._name} is being compiled in the background")
        self._compilation = background.start(
            graph, threads, options, compile_here, only_here=communicates(graph)
        )

    def _settle(self, compiled: Callable[[], Run]) -> None:
        """Takes over the code; if there is none, warns and goes on replaying."""
        try:
            self._code = compiled()
            self.how = "inductor"
        except inductor.NoCompilerError:
            inductor.warn_no_compiler()
            self._go_on_replaying("no C++ compiler")
        except Exception as error:
            if (why := cache_directory.unusable_reason(error)) is not None:
                cache_directory.warn_unusable(why)
                self._go_on_replaying("no cache directory")
                return
            reason = background.describe_error(error)
            self._go_on_replaying(reason)
            if is_full := cache_directory.is_full(error):
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

    def _first_result(self, tensors: list[Tensor]) -> Sequence[Tensor]:
        run = self._code
        assert run is not None
        if not self._settings.check:
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
            logger.info(f"torchlayers: compile: {self._name} runs Inductor's code from now on")
            self._adopt(self._code)
        return result

    def _compile_again(self, tensors: list[Tensor]) -> Sequence[Tensor]:
        """Runs a call after the disk was full: compiles again once the waiting time is over."""
        with self._lock:
            if time.monotonic() >= self._again_at and self._settled and self._code is None:
                self._settled = False
                self._adopt(self._until_settled)
        return self._until_settled(tensors)

    def _go_on_replaying(self, why: str) -> None:
        self._code = None
        self._settled = True
        self.how = f"replay ({why})"
        logger.info(f"torchlayers: compile: {self._name} goes on being replayed: {why}")
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


def below_autograd(run: Run) -> Run:
    """Wraps the callable so that it runs without autograd and autocast."""

    def plain(tensors: list[Tensor]) -> Sequence[Tensor]:
        with torch.no_grad(), torch_c._DisableAutocast():
            return run(tensors)

    return plain
