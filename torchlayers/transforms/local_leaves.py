"""The leaves of torch.autograd.grad calls inside a Function's backward or jvp.

NOTE [Detached in a backward]
A backward that computes its gradients by ``torch.autograd.grad`` with respect to
``x.detach().requires_grad_()``, where x is what the Function saved, is right once. A second
derivative through it would be a part of the truth, without a word, as in plain autograd: nothing
leads from the copy to x. So the leaves of such calls are collected while a method runs, and
autograd_function/detached.py makes an error of the derivative of what it returns. Outside a
Function's methods, ``x.detach()`` is a constant because the user says so.

A copy shares x's memory, or has its values: ``x.detach().clone()``, ``torch.tensor(x)``. Where a
constant that the method reads has them too, it may be the constant's copy, and is not refused; nor
are zeros, which are rarely a copy. In a capture, where values are unknown, a leaf of x's shape
counts as its copy.
"""

import threading
from collections.abc import Sequence

from torch import Tensor
from torch.autograd import forward_ad

# Attribute of tensors that requires_grad_() made leaves inside a transform.
LEAF = "_torchlayers_leaf"


class CollectedLeaves(threading.local):
    """The leaves collected on this thread while a method runs; None while none does."""

    leaves: list[Tensor] | None = None


collected = CollectedLeaves()


def note_inputs(inputs: Sequence[Tensor]) -> None:
    """Adds those inputs of a torch.autograd.grad call that became leaves inside a transform."""
    if collected.leaves is not None:
        collected.leaves += [x for x in inputs if hasattr(x, LEAF) or x.grad_fn is None]


def has_tangent(tensor: Tensor) -> bool:
    """Whether the tensor has a tangent at the level on top."""
    return forward_ad.unpack_dual(tensor).tangent is not None  # type: ignore[no-untyped-call]
