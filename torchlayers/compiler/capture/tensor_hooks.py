"""Hooks on the input tensors of a captured function, and the reverse pass without them.

A hook on an argument or a captured tensor is called where autograd passes its gradient on, which is
outside the captured graph (NOTE [Hooks of inputs] in csrc/python/hooks/cut_graph.cpp). If the
function calls torch.autograd.grad itself, hooks of captured tensors are part of the function, and
are captured; other hooks then mean another signature.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from torchlayers import _C

_END = "torchlayers::End"


def grad_without_hooks(
    outputs: Sequence[Tensor],
    inputs: Sequence[Tensor],
    cotangents: Sequence[Tensor],
    *,
    create_graph: bool = False,
    retain_graph: bool | None = None,
) -> Sequence[Tensor | None]:
    """Like torch.autograd.grad, of a function of the inputs alone, and without their hooks.

    An input that is listed twice has its whole gradient at its first position.
    """
    with _C.CutGraph(outputs, inputs) as ends:
        gradients: Any = torch.autograd.grad(
            outputs,
            [GradientEdge(*end) for end in ends],
            cotangents,
            create_graph=create_graph,
            retain_graph=retain_graph,
            allow_unused=True,
        )
    return gradients  # type: ignore[no-any-return]


class HookedTensor(NamedTuple):
    """A captured tensor that requires grad, and its hooks at the capture."""

    tensor: Tensor
    hooks: tuple[Callable[..., Any], ...]

    @classmethod
    def now(cls, tensor: Tensor) -> "HookedTensor":
        hooks: Any = tensor._backward_hooks
        return cls(tensor, tuple((hooks or {}).values()))

    def still_holds(self) -> bool:
        return HookedTensor.now(self.tensor).hooks == self.hooks


def calls_hooks(inputs: Any) -> bool:
    """Whether torch.autograd.grad calls hooks for the gradients of these inputs."""
    edge = inputs[0] if isinstance(inputs, Sequence) and inputs else inputs
    return not (isinstance(edge, GradientEdge) and edge.node.name() == _END)
