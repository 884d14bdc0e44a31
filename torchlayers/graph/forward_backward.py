"""The forward and backward graphs of a differentiated graph, and how their values correspond."""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch
from torch.fx import GraphModule

Graph = GraphModule | torch.Graph


@dataclass(eq=False, repr=False)
class ForwardBackward:
    """``f`` and ``df``, as described in :class:`Gradient`, and the functions that run them.

    Args:
        run_f: runs f on a sequence of inputs, and returns a sequence of outputs.
        run_df: runs df in the same way. A temporary's cotangent is passed as None, and a
            gradient that is zero throughout may be returned as None.
        draws_random_numbers: whether f may draw random numbers. If a derivative runs f again, it
            draws the same ones.
    """

    f: Graph
    df: Graph
    _: KW_ONLY
    real_outputs: int
    input_vjps: Sequence[int]
    output_vjps: Sequence[int]
    captured_inputs: Sequence[int]
    captured_outputs: Sequence[int]
    run_f: Callable[[Sequence[Any]], Sequence[Any]]
    run_df: Callable[[Sequence[Any]], Sequence[Any]]
    saved_bytes: int | None = None
    draws_random_numbers: bool = True

    def __post_init__(self) -> None:
        self.input_vjps = tuple(self.input_vjps)
        self.output_vjps = tuple(self.output_vjps)
        self.captured_inputs = tuple(self.captured_inputs)
        self.captured_outputs = tuple(self.captured_outputs)

    @property
    def differentiable_outputs(self) -> tuple[int, ...]:
        """The original's outputs that have a cotangent, which backward takes."""
        return tuple(i for i in self.input_vjps if i < self.real_outputs)

    def captures(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> tuple[Any, ...]:
        """Returns what df needs from f's inputs and all of f's outputs, in df's order."""
        return tuple(
            [inputs[i] for i in self.captured_inputs] + [outputs[i] for i in self.captured_outputs]
        )

    def pull_back(self, cotangents: Sequence[Any], captures: Sequence[Any]) -> tuple[Any, ...]:
        """Runs df on one cotangent for each of differentiable_outputs."""
        remaining = iter(cotangents)
        vjps = [next(remaining) if i < self.real_outputs else None for i in self.input_vjps]
        return tuple(self.run_df([*vjps, *captures]))
