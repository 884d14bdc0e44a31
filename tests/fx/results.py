"""Assembles a captured function's results from the values that its graph computes."""

from collections.abc import Sequence
from typing import Any

from torchlayers.compiler.capture.recording import CapturedGraph


def results(
    captured_graph: CapturedGraph, inputs: Sequence[Any], computed: Sequence[Any]
) -> list[Any]:
    """Returns the leaves of the results, in order; `inputs` are the leaves of the arguments."""
    sources = {"computed": computed, "argument": inputs, "captured": captured_graph.captured}
    return [
        value if source == "constant" else sources[source][value]
        for source, value in captured_graph.outputs
    ]
