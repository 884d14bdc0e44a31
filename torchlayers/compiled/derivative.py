"""A compiled function under plain autograd: its backward is compiled too, to any order.

The recording has the reverse pass in it, and is split in a forward and a backward graph. Where
autograd is to differentiate the backward again (create_graph), it is a compiled function itself:
of the inputs and the cotangents, recorded from the function anew.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from torchlayers.compiled.asked import Asked
from torchlayers.compiled.backends import Runner, plainly
from torchlayers.compiled.call import inlined
from torchlayers.compiled.graphs import draws, inputs_of
from torchlayers.compiled.record import Recording
from torchlayers.compiled.signature import Modes
from torchlayers.compiled.split import split
from torchlayers.device import RandomState

# What a call of the function itself returns for tensors: the results that were computed.
Computed = Callable[[Sequence[Tensor]], list[Tensor]]


class Derivative:
    """Runs a recording, and is a node of autograd's graph."""

    def __init__(
        self,
        recording: Recording,
        graph: GraphModule,
        modes: Modes,
        asked: Asked,
        computed: Computed,
        arguments: int,
    ) -> None:
        assert recording.gradients is not None
        self.gradients = recording.gradients
        self.results = recording.computed
        self.halves = split(graph, self.results, len(self.gradients.of_outputs))
        self.draws = draws(self.halves.forward)
        self.arguments = arguments
        self.modes = modes
        self.captured = recording.captured
        cotangents = inputs_of(self.halves.backward)[-len(self.gradients.of_outputs) :]
        self.strides = [node.meta["val"].stride() for node in cotangents]
        self._backward_name = f"{asked.name}'s backward"
        self.forward = Runner(
            self.halves.forward, asked.settings, asked.name, self._adopt_forward, plainly
        )
        self.backward = Runner(
            self.halves.backward, asked.settings, self._backward_name, self._adopt_backward, plainly
        )
        self._again: Callable[..., Any] | None = None
        self._compile_again = asked.again
        self._computed = computed

    def __call__(self, tensors: list[Tensor]) -> Sequence[Tensor]:
        results: Sequence[Tensor] = _Call.apply(self, *tensors)  # type: ignore[no-untyped-call]
        return results

    def _adopt_forward(self, run: Callable[[list[Tensor]], Sequence[Tensor]]) -> None:
        self.run_forward = run

    def _adopt_backward(self, run: Callable[[list[Tensor]], Sequence[Tensor]]) -> None:
        self.run_backward = run

    def pull_back(self, saved: list[Tensor], cotangents: list[Tensor]) -> Sequence[Any]:
        """The gradients, as tensors without a history."""
        if inlined(cotangents):  # a vmap over cotangents
            return self.halves.backward(*saved, *cotangents)  # type: ignore[no-any-return]
        laid_out = map(_laid_out, cotangents, self.strides)
        return self.run_backward([*saved, *laid_out])

    def pull_back_again(self, inputs: Sequence[Tensor], cotangents: list[Tensor]) -> Sequence[Any]:
        """The gradients as a differentiable function of the inputs and the cotangents."""
        if self._again is None:
            self._again = self._compile_again(self._backward, self._backward_name)
        return self._again(tuple(inputs[: self.arguments]), tuple(cotangents))  # type: ignore[no-any-return]

    def _backward(self, arguments: Sequence[Tensor], cotangents: Sequence[Tensor]) -> Any:
        inputs = [*arguments, *self.captured]
        with torch.enable_grad(), self.modes.autocast_restored():
            results = self._computed(arguments)
        with torch._C._DisableAutocast():
            return torch.autograd.grad(
                [results[i] for i in self.gradients.of_outputs],
                [inputs[i] for i in self.gradients.by_inputs],
                cotangents,
                create_graph=True,
                allow_unused=True,
            )


class _Call(torch.autograd.Function):
    """One call of a Derivative."""

    @staticmethod
    def forward(ctx: Any, derivative: Derivative, *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.derivative = derivative
        ctx.random = RandomState() if derivative.draws else None
        outputs = derivative.run_forward([*inputs])
        results = outputs[: derivative.results]
        saved = outputs[derivative.results :]
        # The inputs themselves, so that what differentiates again knows their history; those that
        # are not read here may be written to until then.
        places = derivative.halves.saved_inputs
        ctx.save_for_backward(
            *(
                value if place is None else inputs[place]
                for value, place in zip(saved, places, strict=True)
            )
        )
        kept = {place for place in places if place is not None}
        ctx.others = [None if i in kept else tensor for i, tensor in enumerate(inputs)]
        of_outputs = derivative.gradients.of_outputs
        ctx.mark_non_differentiable(
            *(result for i, result in enumerate(results) if i not in of_outputs)
        )
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        derivative: Derivative = ctx.derivative
        saved = [*ctx.saved_tensors]
        chosen = [cotangents[i] for i in derivative.gradients.of_outputs]
        if torch.is_grad_enabled():
            inputs = [*ctx.others]
            for value, place in zip(saved, derivative.halves.saved_inputs, strict=True):
                if place is not None:
                    inputs[place] = value
            if ctx.random is None:
                found = derivative.pull_back_again(inputs, chosen)
            else:  # the numbers that the forward drew
                with ctx.random.restored():
                    found = derivative.pull_back_again(inputs, chosen)
        else:
            found = derivative.pull_back(saved, chosen)
        gradients: list[Tensor | None] = [None] * (1 + len(ctx.others))
        for i, gradient in zip(derivative.gradients.by_inputs, found, strict=True):
            gradients[1 + i] = gradient
        return tuple(gradients)


def _laid_out(cotangent: Tensor, stride: tuple[int, ...]) -> Tensor:
    """The cotangent with the strides that the backward was recorded for."""
    if cotangent.stride() == stride:
        return cotangent
    return torch.empty_strided(
        cotangent.shape, stride, dtype=cotangent.dtype, device=cotangent.device
    ).copy_(cotangent)
