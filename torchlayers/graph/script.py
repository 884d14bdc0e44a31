"""Differentiation of TorchScript graphs."""

from collections.abc import Sequence
from typing import Any

from torchlayers.graph.errors import GraphError
from torchlayers.graph.gradient import Gradient


def differentiate_script(
    fn_or_graph: Any,
    example_inputs: Sequence[Any] | None,
    *,
    argnums: int | Sequence[int] | None,
) -> Gradient:
    raise GraphError("torchlayers: differentiate: TorchScript graphs are not supported yet.")
