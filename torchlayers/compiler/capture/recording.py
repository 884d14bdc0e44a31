"""The result of capturing a function."""

import contextlib
import linecache
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import Tensor
from torch.fx import GraphModule
from torch.optim import Optimizer

from torchlayers.compiler.capture.side_effects import SideEffects
from torchlayers.compiler.capture.state.carried_tensors import CarriedNumber, CarriedTensor
from torchlayers.compiler.capture.state.guards import Guards
from torchlayers.compiler.capture.state.python_writes import AnyWrite
from torchlayers.compiler.capture.tensor_hooks import HookedTensor
from torchlayers.compiler.capture.values.reads import Read
from torchlayers.core import pytree
from torchlayers.core.private_names import lookup


@contextlib.contextmanager
def discard_graph_source() -> Iterator[None]:
    """Drops the sources of graphs made and replayed inside, which torch.fx keeps for tracebacks.

    Graphs that other threads make meanwhile lose theirs as well.
    """
    loader = lookup("torch.fx.graph_module._loader", None)
    if loader is None:
        yield
        return
    first = loader.next_id
    try:
        yield
    finally:
        for number in range(first, loader.next_id):
            name = f"<eval_with_key>.{number}"
            loader.eval_cache.pop(name, None)
            linecache.cache.pop(name, None)


class OutputSource(NamedTuple):
    """The source of a leaf of the result.

    ``"computed"``: the graph's output of that index. ``"argument"``: the tensor of that index
    among the arguments, the same object. ``"captured"``: likewise. ``"constant"``: the value.
    ``"number"``: the number in the graph's output of that index.
    """

    source: str
    value: Any


class BackwardSignature(NamedTuple):
    """The reverse pass in a captured graph: the last of its inputs and outputs.

    The graph's last inputs are the cotangents of the outputs ``of_outputs``; its last outputs are
    the gradients of the inputs ``by_inputs``, None where no output depends on an input.
    """

    of_outputs: list[int]
    by_inputs: list[int]


class CapturedGraph(NamedTuple):
    """A captured graph: the operators that a function ran on tensors of given shapes.

    ``graph`` takes the tensors among the arguments, then the captured ones, then cotangents if
    there are gradients; it returns a list: the computed tensors, and then gradients. Each node has
    its result as a fake tensor in ``meta["val"]``. ``captured`` ends with the tensors that the
    function made from numbers (torch.tensor), to which nothing else refers. ``stepped`` are the
    optimizers that it stepped; ``hooked`` the captured tensors whose hooks it may have called.
    """

    graph: GraphModule
    captured: list[Tensor]
    out_spec: pytree.TreeSpec
    outputs: list[OutputSource]
    gradients: BackwardSignature | None
    constants: int  # the number of captured tensors that only the graph refers to
    effects: SideEffects
    stepped: list[Optimizer]
    hooked: list[HookedTensor]
    guards: Guards | None  # of the Python state that it read, if that was requested
    carried: list[CarriedTensor | CarriedNumber]  # captured ones that are read at each call
    lost: list[AnyWrite]  # after which a guard fails
    reads: list[Read]  # the values that it read from tensors, where its graph is to be split
    from_parts: int = 0  # inputs, after the captured ones, that earlier parts compute

    @property
    def computed(self) -> int:
        """The number of outputs of the graph that are not gradients."""
        returned = {out.value for out in self.outputs if out.source in ("computed", "number")}
        return len(returned | self.effects.computed)
