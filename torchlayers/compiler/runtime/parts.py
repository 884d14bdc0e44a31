"""Runs the parts of a graph that is split where values are read."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

from torch.fx import GraphModule

from torchlayers.compiler.capture.recording import CapturedGraph
from torchlayers.compiler.passes import simplify
from torchlayers.compiler.passes.graph_queries import is_functional, operators
from torchlayers.compiler.passes.split_at_reads import structure_of
from torchlayers.compiler.runtime.backends import GraphRunner, Run, below_autograd
from torchlayers.compiler.runtime.build import (
    EntryRunner,
    checked_if_alone,
    replayed_if_inductor_cannot,
)
from torchlayers.compiler.runtime.request import CompileRequest
from torchlayers.compiler.runtime.verify import VerifiedRun


class PartRunner:
    """Runs one part; ``run`` may be replaced at any time."""

    run: Run

    def __init__(self, graph: GraphModule, request: CompileRequest, any_autocast: bool) -> None:
        around = below_autograd if any_autocast else None
        adopt: Callable[[Run], None] = functools.partial(setattr, self, "run")
        name, settings = request.name, request.settings
        self.graph = simplify(graph)
        self.operators = sum(1 for _ in operators(self.graph))
        self.runs: EntryRunner
        if settings.check and is_functional(self.graph):
            verified = VerifiedRun(graph, name, adopt, around, keeps_writes=False, is_part=True)
            verified.runner = GraphRunner(self.graph, settings, name, verified.adopt, around)
            self.runs = verified
        else:
            self.runs = GraphRunner(self.graph, settings, name, adopt, around)


class PartCache:
    """The runners of one function's parts: parts of equal structure share one."""

    def __init__(self, request: CompileRequest, any_autocast: bool) -> None:
        self._request = request
        self._any_autocast = any_autocast
        self._by_structure: dict[Any, PartRunner] = {}

    def __iter__(self) -> Iterator[PartRunner]:
        return iter([*self._by_structure.values()])

    def __len__(self) -> int:
        return len(self._by_structure)

    def runner(self, graph: GraphModule, captured_graph: CapturedGraph) -> PartRunner:
        """Returns the runner of a part of the captured graph."""
        key = structure_of(graph)
        if key not in self._by_structure:
            part = captured_graph._replace(graph=graph)
            request = checked_if_alone(replayed_if_inductor_cannot(self._request, part), part)
            self._by_structure[key] = PartRunner(graph, request, self._any_autocast)
        return self._by_structure[key]
