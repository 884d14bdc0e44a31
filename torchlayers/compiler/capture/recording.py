"""What there is of a function once it has been recorded."""

import contextlib
import linecache
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import Tensor
from torch.fx import GraphModule, graph_module

from torchlayers.compiler.capture.guards import Guards
from torchlayers.compiler.capture.module_guards import Called
from torchlayers.compiler.capture.optimizers import Stepped
from torchlayers.compiler.capture.python_mutations import Change
from torchlayers.compiler.capture.side_effects import Effects
from torchlayers.compiler.capture.tensor_hooks import Hooked
from torchlayers.core import pytree


@contextlib.contextmanager
def source_forgotten() -> Iterator[None]:
    """Of the graphs that are made inside, and replayed: torch.fx keeps it for good, for tracebacks.

    Another thread's that are made meanwhile lose theirs.
    """
    loader: Any = graph_module._loader
    first = loader.next_id
    try:
        yield
    finally:
        for number in range(first, loader.next_id):
            name = f"<eval_with_key>.{number}"
            loader.eval_cache.pop(name, None)
            linecache.cache.pop(name, None)


class Output(NamedTuple):
    """Where a leaf of the result comes from.

    ``"computed"``: the graph's output of that index. ``"argument"``: the leaf of that index
    among the arguments, the same object. ``"captured"``: likewise. ``"constant"``: the value.
    """

    source: str
    value: Any


class Gradients(NamedTuple):
    """The reverse pass in a recording: a part of its inputs and outputs.

    The graph's last inputs are cotangents of the computed outputs that are named here; its last
    outputs are the gradients of the inputs that are named here, None where nothing depends on one.
    """

    of_outputs: list[int]
    by_inputs: list[int]


class Recording(NamedTuple):
    """What a function did to tensors of given shapes.

    ``graph`` takes the arguments' tensors, then the captured ones, then cotangents where there are
    gradients; it returns a list: what the result is made of, and then gradients. Each node has
    what it computes as a fake tensor in ``meta["val"]``. ``captured`` ends with the tensors that
    the function made of numbers (torch.tensor), which nobody else holds. ``modules`` are those that
    it called, and whether they were training; ``stepped`` the optimizers that it stepped, and what
    they held; ``hooked`` the captured tensors whose hooks it may have called.
    """

    graph: GraphModule
    captured: list[Tensor]
    out_spec: pytree.TreeSpec
    outputs: list[Output]
    gradients: Gradients | None
    constants: int  # how many of the captured tensors are the recording's own
    modules: list[Called]
    effects: Effects
    stepped: list[Stepped]
    hooked: list[Hooked]
    guards: Guards | None  # what it read of Python, if that was asked for
    changes: list[Change]  # and what it changed

    @property
    def computed(self) -> int:
        """How many outputs of the graph are no gradients."""
        returned = {out.value for out in self.outputs if out.source == "computed"}
        return len(returned | self.effects.computed)
