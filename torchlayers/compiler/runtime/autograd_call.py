"""The node of the autograd graph that a call of a compiled function leaves."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from torchlayers.compiler.capture.recording import BackwardSignature
from torchlayers.compiler.runtime.compare import random_state
from torchlayers.core.device import RandomState


class PullsBack(Protocol):
    """Computes the gradients of one call."""

    def pull_back(
        self, saved: list[Tensor], cotangents: list[Tensor], random: RandomState | None, /
    ) -> Sequence[Any]: ...


class Differentiable(PullsBack, Protocol):
    """A graph with its reverse pass: a DifferentiableGraph or a ReplayedGraph."""

    gradients: BackwardSignature
    results: int  # how many the function has; what is saved follows them
    saved_inputs: Sequence[int | None]  # by position in what is saved
    draws: Any

    def run_forward(self, inputs: list[Tensor], /) -> Sequence[Any]: ...
    def numbers_read(self) -> Any: ...
    def pull_back_again(
        self, inputs: Sequence[Tensor], cotangents: list[Tensor], numbers: Any, /
    ) -> Sequence[Any]: ...


class AutogradCall(torch.autograd.Function):
    """One call of a compiled function, as seen by autograd."""

    @staticmethod
    def forward(
        ctx: Any,
        derivative: Differentiable,
        first: PullsBack | None,
        *inputs: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.derivative, ctx.first = derivative, first
        ctx.random = random_state(derivative.draws)
        ctx.numbers = derivative.numbers_read()
        outputs = derivative.run_forward([*inputs])
        results = outputs[: derivative.results]
        saved = outputs[derivative.results :]
        # Saves the inputs themselves, so that a second differentiation sees their autograd history.
        # Inputs that the backward does not read may be written to until then.
        places = derivative.saved_inputs
        ctx.save_for_backward(
            *(
                value if place is None else inputs[place]
                for value, place in zip(saved, places, strict=True)
            )
        )
        returned = {place for place in places if place is not None}
        ctx.others = [None if i in returned else tensor for i, tensor in enumerate(inputs)]
        of_outputs = derivative.gradients.of_outputs
        ctx.mark_non_differentiable(
            *(result for i, result in enumerate(results) if i not in of_outputs)
        )
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        derivative: Differentiable = ctx.derivative
        saved = [*ctx.saved_tensors]
        chosen = [cotangents[i] for i in derivative.gradients.of_outputs]
        if torch.is_grad_enabled():
            inputs = [*ctx.others]
            for value, place in zip(saved, derivative.saved_inputs, strict=True):
                if place is not None:
                    inputs[place] = value
            if ctx.random is None:
                computed = derivative.pull_back_again(inputs, chosen, ctx.numbers)
            else:  # draw the same numbers as the forward
                with ctx.random.restored():
                    computed = derivative.pull_back_again(inputs, chosen, ctx.numbers)
        else:
            computed = (ctx.first or derivative).pull_back(saved, chosen, ctx.random)
        gradients: list[Tensor | None] = [None] * (2 + len(ctx.others))
        for i, gradient in zip(derivative.gradients.by_inputs, computed, strict=True):
            gradients[2 + i] = gradient
        return tuple(gradients)
