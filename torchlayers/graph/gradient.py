"""A differentiated graph: its forward and backward graphs, their values, and running them."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from torchlayers.graph import autograd, draw
from torchlayers.graph.errors import GraphError
from torchlayers.graph.forward_backward import ForwardBackward, Graph


class Gradient(ForwardBackward):
    """A graph, with the graph of its reverse-mode derivative.

    ``f`` takes the original's inputs, pytrees flattened and parameters and buffers appended.
    It returns the original's outputs and then the temporaries that ``df`` needs. ``df`` takes
    cotangents, then captured inputs of f, then captured outputs of f, and returns cotangents
    of f's inputs. The attributes below tell which ones.

    Attributes:
        f: the forward graph: a ``torch.fx.GraphModule`` or a ``torch._C.Graph``.
        df: the backward graph, of the same kind.
        real_outputs: how many of f's outputs are the original's; they come first.
        input_vjps: the outputs of f whose cotangents df takes, in that order. Those from
            real_outputs on are temporaries: backward passes no cotangents for them.
        output_vjps: the inputs of f whose cotangents df returns, in that order.
        captured_inputs: the inputs of f that df takes.
        captured_outputs: the outputs of f that df takes.
        saved_bytes: how many bytes the captured tensors have, if the graph has their shapes.

    Calling the gradient calls the original, with autograd attached: it works under
    ``backward()``, and under nested grad, jvp and vmap of torchlayers and torch.func. Such a call
    saves f's inputs besides the captures, for derivatives of higher order; forward and backward
    hold no state.

    Example:
        >>> from torch.fx.experimental.proxy_tensor import make_fx
        >>> torchlayers.graph.differentiate(make_fx(torch.exp)(torch.zeros(2)))
        <Gradient: 1 outputs, gradients of inputs [0], 0 inputs and 1 outputs captured, 8 bytes
        saved>
    """

    def __init__(
        self,
        halves: ForwardBackward,
        *,
        flatten: Callable[..., list[Any]],
        unflatten: Callable[[Sequence[Any], Any, Any], Any],
    ) -> None:
        """Used by the passes that differentiate a graph.

        Args:
            halves: the two graphs, and how their values correspond.
            flatten: returns the original's arguments as f's inputs, or raises an error that says
                what is wrong with them.
            unflatten: returns the original's result, given f's real outputs and the original's
                args and kwargs. It may also have the original's side effects: updating buffers
                or writing to an argument.
        """
        super().__init__(**vars(halves))
        self._flatten = flatten
        self._unflatten = unflatten

    def forward(self, /, *args: Any, **kwargs: Any) -> tuple[Any, tuple[Any, ...]]:
        """Returns the original's outputs, and the values of this call that backward needs.

        Args:
            args, kwargs: the original's.
        Returns:
            ``(outputs, captures)``: the first in the original's structure.
        Raises:
            GraphError: the arguments do not fit the graph.
        Example:
            >>> from torch.fx.experimental.proxy_tensor import make_fx
            >>> gradient = torchlayers.graph.differentiate(make_fx(torch.exp)(torch.zeros(2)))
            >>> gradient.forward(torch.zeros(2))
            (tensor([1., 1.]), (tensor([1., 1.]),))
        """
        inputs = self._flatten(*args, **kwargs)
        with torch.no_grad():
            outputs = self.run_f(inputs)
            # Captures are taken first, because the original may write to an input afterwards.
            captures = self.captures(inputs, outputs)
            return self._unflatten(outputs[: self.real_outputs], args, kwargs), captures

    def backward(self, captures: Sequence[Any], *grad_outputs: Tensor) -> tuple[Any, ...]:
        """Returns the gradients of the inputs in output_vjps.

        Args:
            captures: the captures that forward returned.
            grad_outputs: a cotangent for every differentiable output, of its shape.
        Returns:
            One gradient for each of output_vjps, of the input's shape and dtype, or None if the
            gradient is zero throughout.
        Raises:
            GraphError: there are more or fewer captures or cotangents than the graph takes.
        Example:
            >>> from torch.fx.experimental.proxy_tensor import make_fx
            >>> gradient = torchlayers.graph.differentiate(make_fx(torch.exp)(torch.zeros(2)))
            >>> outputs, captures = gradient.forward(torch.zeros(2))
            >>> gradient.backward(captures, torch.tensor([1.0, 2.0]))
            (tensor([1., 2.]),)
        """
        expected = len(self.captured_inputs) + len(self.captured_outputs)
        if len(captures) != expected:
            raise GraphError(
                f"torchlayers: Gradient.backward takes the {expected} captured values that "
                f"forward returned; got {len(captures)}."
            )
        if len(grad_outputs) != len(self.differentiable_outputs):
            raise GraphError(
                "torchlayers: Gradient.backward takes one cotangent for each differentiable "
                f"output (there are {len(self.differentiable_outputs)}); got {len(grad_outputs)}."
            )
        with torch.no_grad():
            return self.pull_back(grad_outputs, captures)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        outputs = autograd.call(self, self._flatten(*args, **kwargs))
        return self._unflatten(outputs, args, kwargs)

    def to_dot(self) -> str:
        """Returns both graphs in Graphviz's language: forward, captured, backward in three colours.

        Example:
            >>> from torch.fx.experimental.proxy_tensor import make_fx
            >>> gradient = torchlayers.graph.differentiate(make_fx(torch.exp)(torch.zeros(2)))
            >>> print(gradient.to_dot().splitlines()[2])
              "f:arg0_1" [label="input arg0_1", fillcolor="#cfe2f3"];
        """
        return draw.to_dot(self)

    def to_svg(self) -> str:
        """Returns both graphs as an SVG picture, which needs no other program.

        Example:
            >>> from torch.fx.experimental.proxy_tensor import make_fx
            >>> gradient = torchlayers.graph.differentiate(make_fx(torch.exp)(torch.zeros(2)))
            >>> gradient.to_svg()[:34]
            '<svg xmlns="http://www.w3.org/2000'
        """
        return draw.to_svg(self)

    def _repr_svg_(self) -> str:
        return self.to_svg()  # shown by notebooks

    def __repr__(self) -> str:
        size = "" if self.saved_bytes is None else f", {self.saved_bytes} bytes saved"
        return (
            f"<Gradient: {self.real_outputs} outputs, gradients of inputs "
            f"{list(self.output_vjps)}, {len(self.captured_inputs)} inputs and "
            f"{len(self.captured_outputs)} outputs captured{size}>"
        )

    def __str__(self) -> str:
        return "\n".join(
            [
                f"forward: {self.real_outputs} outputs, then the captured temporaries",
                _text(self.f),
                f"backward: cotangents of outputs {list(self.input_vjps)}, inputs "
                f"{list(self.captured_inputs)} and outputs {list(self.captured_outputs)} captured; "
                f"returns cotangents of inputs {list(self.output_vjps)}",
                _text(self.df),
            ]
        )


def _text(graph: Graph) -> str:
    if not isinstance(graph, GraphModule):
        return str(graph).strip()
    # Without the assignments that free values after their last use.
    return re.sub(r";  (\w+ = )+None", "", graph.code.strip())
