"""What the layers did while a block ran, step by step."""

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

import torchlayers


class LayerStep(NamedTuple):
    step: str
    op: str
    layer: str

    def __repr__(self) -> str:
        return f"{self.layer} {self.step} {self.op}"


@contextlib.contextmanager
def traced_steps() -> Iterator[list[LayerStep]]:
    """Yields a list that is filled when the block ends."""
    steps: list[LayerStep] = []
    with torchlayers.trace() as trace:
        yield steps
    steps.extend(
        LayerStep(step.step, call.name, f"{step.layer} (level {step.level})")
        for call in trace
        for step in call.steps
    )
