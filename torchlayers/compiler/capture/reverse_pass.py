"""Captures the gradients of a function after its operators, in the same graph."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.fx import Node

from torchlayers.compiler.capture.errors import (
    explain_capture_error,
)
from torchlayers.compiler.capture.recording import BackwardSignature
from torchlayers.compiler.capture.tensor_hooks import grad_without_hooks
from torchlayers.compiler.capture.values.reads import TensorReads
from torchlayers.core.errors import DataDependentError, TransformError
from torchlayers.core.torch_private import FakeTensor, torch_c


class NoBackwardError(Exception):
    """A function's reverse pass can't be captured. The caller may never need it."""


class ForwardCapture(Protocol):
    """The capture of the function's own operators: see capture_run.py."""

    func: Callable[..., Any]
    captured: dict[int, tuple[Tensor, FakeTensor]]
    inputs: list[Node]
    cotangents: list[Node]
    unused: list[Node]
    reads: TensorReads | None
    gradients: BackwardSignature | None

    def input(self, like: Tensor, name: str, *, dense: bool = False) -> FakeTensor: ...


def capture_reverse_pass(
    capture: ForwardCapture, outputs: list[Any], inputs: list[Any]
) -> list[Tensor | None]:
    """Captures the gradients of inputs that require grad, after the function's operators."""
    results = [output for output in outputs if isinstance(output, Tensor)]
    of_outputs = [
        i for i, output in enumerate(outputs) if getattr(output, "grad_fn", None) is not None
    ]
    if not of_outputs:
        return []
    tensors = [leaf for leaf in inputs if isinstance(leaf, Tensor)]
    tensors += [tensor for tensor, _ in capture.captured.values()]
    by_inputs = [i for i, tensor in enumerate(tensors) if tensor.requires_grad]
    wanted = [tensors[i] for i in by_inputs]
    makes_leaves = any(result.requires_grad and result.grad_fn is None for result in results)
    if not wanted or makes_leaves:
        raise NoBackwardError("it makes a tensor that requires grad")
    try:
        gradients = _pull_back(capture, [outputs[i] for i in of_outputs], wanted)
    except _GraphFreedError:
        of_outputs = [i for i in of_outputs if not _is_graph_freed(outputs[i], wanted)]
        capture.unused += capture.cotangents
        capture.inputs = [node for node in capture.inputs if node not in capture.unused]
        capture.cotangents = []
        if not of_outputs:
            return []
        gradients = _pull_back(capture, [outputs[i] for i in of_outputs], wanted)
    capture.gradients = BackwardSignature(of_outputs, by_inputs)
    return gradients


def _pull_back(
    capture: ForwardCapture, outputs: list[Tensor], wanted: list[Any]
) -> list[Tensor | None]:
    """Pulls cotangents of these outputs back to ``wanted``; they become inputs of the graph."""
    cotangents = [
        capture.input(output.detach(), f"cotangent_{count}", dense=True)
        for count, output in enumerate(outputs)
    ]
    capture.cotangents = capture.inputs[-len(cotangents) :]
    # A backward pass runs with autocast off.
    with torch.autograd.set_multithreading_enabled(False), torch_c._DisableAutocast():
        try:
            # The autograd graph is retained for a second try, without outputs that are spent.
            return list(grad_without_hooks(outputs, wanted, cotangents, retain_graph=True))
        except RuntimeError as error:
            message = str(error).strip().partition("\n")[0]
            if _GRAPH_FREED in message:
                raise _GraphFreedError from error
            if isinstance(error, DataDependentError) and capture.reads is not None:
                raise NoBackwardError("it reads a value that depends on a cotangent") from None
            explain_capture_error(error, capture.func)
            if isinstance(error, TransformError):
                raise
            raise NoBackwardError(message or type(error).__name__) from error


# torch's message for an autograd graph that backward() has freed.
_GRAPH_FREED = "Trying to backward through the graph a second time"


class _GraphFreedError(Exception):
    """An output's autograd graph was freed by a backward() inside the function."""


def _is_graph_freed(output: Tensor, wanted: list[Any]) -> bool:
    """Whether an output can't be differentiated any more, as after loss.backward()."""
    with torch.autograd.set_multithreading_enabled(False), torch_c._DisableAutocast():
        try:
            torch.autograd.grad(
                output, wanted, torch.ones_like(output), retain_graph=True, allow_unused=True
            )
        except RuntimeError as error:
            return _GRAPH_FREED in str(error)
    return False
