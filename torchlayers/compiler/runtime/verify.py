"""Verifies the first results of a compiled graph against the unsimplified graph.

Simplification passes can be wrong, just as a compiler can. Replay and Inductor's code both run the
simplified graph, so comparing them with each other is not enough. The unsimplified graph is dropped
after the comparison; if the results differ by more than rounding, it is replayed from then on.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.fx import GraphModule

from torchlayers.compiler.passes.graph_queries import generators_of, half_precision, inputs_of
from torchlayers.compiler.passes.uninitialized_results import uninitialized_results
from torchlayers.compiler.runtime.backends import GraphRunner
from torchlayers.compiler.runtime.compare import CallSnapshot, Run, run_and_compare
from torchlayers.core.errors import warn
from torchlayers.fx.program import replay
from torchlayers.fx.writes import written_inputs

Adopt = Callable[[Run], None]


class VerifiedRun:
    """Passes on the adopted callable if its first result is right, else the unsimplified graph."""

    def __init__(
        self,
        recorded: GraphModule,
        name: str,
        adopt: Adopt,
        around: Callable[[Run], Run] | None,
        keeps_writes: bool,
        *,
        is_part: bool = False,
    ) -> None:
        self.problem: str | None = None
        self._around = around
        self._replayed: Run | None = (
            replay(recorded) if around is None else around(replay(recorded))
        )
        self._written = written_positions(recorded)
        self._draws = generators_of(recorded)
        self._half = half_precision(recorded)
        self._uninitialized = uninitialized_results(recorded, is_part=is_part)
        self._keeps_writes = keeps_writes
        self._name = name
        self._hand_on = adopt
        self._run: Run
        self._lock = threading.RLock()
        self.runner: GraphRunner
        self._hand_on(self._first_result)

    @property
    def how(self) -> str:
        return self.runner.how if self.problem is None else describe_replay(self.problem)

    @property
    def seconds(self) -> float:
        return self.runner.seconds

    def wait(self, deadline: float | None) -> bool:
        return self.runner.wait(deadline)

    def adopt(self, run: Run) -> None:
        with self._lock:
            self._run = run
            if self._replayed is None:
                self._hand_on(run)

    def compare_with(self, replayed: Run) -> None:
        """Has the next result compared with that of another callable too."""
        with self._lock:
            if self.problem is None:
                self._replayed = replayed if self._around is None else self._around(replayed)
                self._hand_on(self._first_result)

    def _first_result(self, tensors: list[Tensor]) -> Sequence[Any]:
        """Runs and checks the first call; if that is interrupted, the next call is the first."""
        with self._lock:
            replayed = self._replayed
            if replayed is not None and self.problem is None:
                before = CallSnapshot(tensors, self._written, self._draws)
                result, problem = run_and_compare(
                    before,
                    replayed,
                    lambda inputs: self._run(inputs),
                    self._half,
                    self._keeps_writes,
                    self._uninitialized,
                )
                if problem is None:
                    self._replayed = None
                    self._hand_on(self._run)
                    return result
                before.undo()
                self.problem = problem
                self._hand_on(replayed)
                warn_mismatch(self._name, problem)
        return (replayed or self._run)(tensors)


def written_positions(recorded: GraphModule) -> list[int]:
    """The indices of the inputs that the graph writes to."""
    written = written_inputs(recorded)
    return [i for i, node in enumerate(inputs_of(recorded)) if node in written]


def describe_replay(problem: str) -> str:
    return f"replay (unsimplified: the simplified graph's {problem})"


def warn_mismatch(name: str, problem: str) -> None:
    warn(
        f"torchlayers: compile: the simplified graph of {name} is wrong: {problem}. The "
        "unsimplified graph is replayed instead. Please report it to torchlayers, with the "
        "function and the shapes of its arguments.",
    )
