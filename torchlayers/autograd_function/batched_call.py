"""A function of tensors with its own batching rule, which its derivatives follow.

A call on batched tensors is an autograd.Function. Its derivatives are such calls again, whose rules
are derivatives of the rule.

NOTE [Gradients of shared arguments]
Where samples share an argument, the rule's derivative by it is the sum over the samples, but that
of each sample is wanted. So the rule of a derivative gives every argument that is differentiated a
dimension of samples, and calls the function's rule with that.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from torchlayers import _C
from torchlayers.autograd_function.custom_derivatives.declaration import (
    is_float,
    not_input,
    save_call,
)
from torchlayers.core.tensors.storage import without_shared_elements
from torchlayers.transforms.jvp import jvp
from torchlayers.transforms.vjp import vjp

Dims: TypeAlias = list[int | None]  # 0, or None for a tensor that all samples share
OfTensors: TypeAlias = Callable[[Sequence[Tensor]], list[Tensor]]


class BatchedCall:
    """A function of tensors that returns tensors, and its batching rule.

    Attributes:
        are_float: which of the results can have derivatives, known once it has run.
    """

    are_float: list[bool]

    def run(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The function."""
        raise NotImplementedError

    def run_batch(
        self, size: int, dims: Dims, tensors: Sequence[Tensor]
    ) -> tuple[list[Tensor], Dims]:
        """The rule: the results for all samples, and the dimension of samples in each."""
        raise NotImplementedError

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Runs the rule for each vmap that batches a tensor, or the function if none does."""
        if not any(map(_C.batched_levels, tensors)):
            return self.run(tensors)
        return [*_apply(self, *tensors)]


class _BatchedFunction(torch.autograd.Function):
    @staticmethod
    def forward(call: BatchedCall, *tensors: Tensor) -> tuple[Tensor, ...]:
        results = [not_input(x, tensors) for x in call.run(tensors)]
        call.are_float = [*map(is_float, results)]
        return tuple(results)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        save_call(ctx, inputs, output)

    @staticmethod
    def vmap(info: Any, in_dims: Any, call: BatchedCall, *tensors: Tensor) -> Any:
        in_front = [
            x if dim is None else x.movedim(dim, 0)
            for x, dim in zip(tensors, in_dims[1:], strict=True)
        ]
        dims = [None if dim is None else 0 for dim in in_dims[1:]]
        results, out_dims = call.run_batch(info.batch_size, dims, in_front)
        call.are_float = [*map(is_float, results)]
        return tuple(not_input(x, in_front) for x in results), tuple(out_dims)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        tensors = ctx.saved_tensors
        places = [i for i, x in enumerate(tensors) if is_float(x) and ctx.needs_input_grad[i + 1]]
        outputs = [i for i, g in enumerate(cotangents) if g is not None]
        gradients: dict[int, Tensor] = {}
        if outputs:
            pullback = _Pullback(ctx.call, len(tensors), places, outputs)
            pulled = pullback([*tensors, *(cotangents[i] for i in outputs)])
            gradients = dict(zip(places, pulled, strict=True))
        return None, *(gradients.get(i) for i in range(len(tensors)))

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Any) -> Any:
        tensors = ctx.saved_tensors
        places = [i for i, x in enumerate(tensors) if is_float(x) and tangents[i] is not None]
        pushforward = _Pushforward(ctx.call, len(tensors), places)
        pushed = iter(pushforward([*tensors, *(tangents[i] for i in places)]))
        return tuple(next(pushed) if is_float else None for is_float in ctx.call.are_float)


_apply: Any = _BatchedFunction.apply


class _Derivative(BatchedCall):
    """Takes the tensors of a call, followed by tangents or cotangents.

    ``places`` are those of the tensors that are differentiated.
    """

    def __init__(self, call: BatchedCall, count: int, places: Sequence[int]) -> None:
        self.call, self.count, self.places = call, count, places

    def run(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return self.derivative(self.call.run, tensors)

    def run_batch(
        self, size: int, dims: Dims, tensors: Sequence[Tensor]
    ) -> tuple[list[Tensor], Dims]:
        # NOTE [Gradients of shared arguments].
        expanded = {*self.places, *range(self.count, len(tensors))}
        of_all = [
            x.expand(size, *x.shape) if i in expanded and dim is None else x
            for i, (x, dim) in enumerate(zip(tensors, dims, strict=True))
        ]
        in_dims: Dims = [0 if i in expanded else dim for i, dim in enumerate(dims[: self.count])]

        def batch(primals: Sequence[Tensor]) -> list[Tensor]:
            pairs = zip(*self.call.run_batch(size, in_dims, primals), strict=True)
            return [
                x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0) for x, dim in pairs
            ]

        results = self.derivative(batch, of_all)
        return results, [0] * len(results)

    def derivative(self, function: OfTensors, tensors: Sequence[Tensor]) -> list[Tensor]:
        raise NotImplementedError

    def _of_places(
        self, function: OfTensors, tensors: Sequence[Tensor]
    ) -> tuple[Callable[..., list[Tensor]], list[Tensor]]:
        """The function of the tensors that are differentiated, and these."""
        primals = [*tensors[: self.count]]

        def of_places(*some: Tensor) -> list[Tensor]:
            for i, x in zip(self.places, some, strict=True):
                primals[i] = x
            return function(primals)

        return of_places, [primals[i] for i in self.places]


class _Pullback(_Derivative):
    """Returns the cotangents of the tensors, of cotangents of some outputs."""

    def __init__(
        self, call: BatchedCall, count: int, places: Sequence[int], outputs: Sequence[int]
    ) -> None:
        super().__init__(call, count, places)
        self.outputs = outputs

    def derivative(self, function: OfTensors, tensors: Sequence[Tensor]) -> list[Tensor]:
        def chosen(primals: Sequence[Tensor]) -> list[Tensor]:
            results = function(primals)
            return [results[i] for i in self.outputs]

        of_places, primals = self._of_places(chosen, tensors)
        return [*vjp(of_places, *primals)[1]([*tensors[self.count :]])]


class _Pushforward(_Derivative):
    """Returns the tangents of those outputs that can have one."""

    def derivative(self, function: OfTensors, tensors: Sequence[Tensor]) -> list[Tensor]:
        def floats(primals: Sequence[Tensor]) -> list[Tensor]:
            return [x for x in function(primals) if is_float(x)]

        of_places, primals = self._of_places(floats, tensors)
        primals = [*map(without_shared_elements, primals)]
        return [*jvp(of_places, tuple(primals), tuple(tensors[self.count :]))[1]]
