"""Differentiation of FX graphs."""

from collections.abc import Sequence
from typing import Any

from torch.export import ExportedProgram
from torch.fx import GraphModule

from torchlayers.graph.errors import GraphError
from torchlayers.graph.gradient import Gradient


def differentiate_fx(
    graph: GraphModule | ExportedProgram,
    example_inputs: Sequence[Any] | None,
    *,
    argnums: int | Sequence[int] | None,
    save: str,
) -> Gradient:
    raise GraphError("torchlayers: differentiate: FX graphs are not supported yet.")
