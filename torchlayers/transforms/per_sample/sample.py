"""Forward and backward pass of one sample."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torchlayers import _C
from torchlayers.core import pytree
from torchlayers.core.errors import NotTensorError
from torchlayers.core.layer_stack import transformed
from torchlayers.core.torch_private import functorch
from torchlayers.transforms.grad import GradSpec
from torchlayers.transforms.per_sample.weight import WeightGradient
from torchlayers.transforms.per_sample.weight_uses import WeightUseMode


class Sample:
    """One sample's gradient, with one WeightGradient for each tensor of the chosen arguments."""

    def __init__(
        self,
        api: str,
        func: Callable[..., Any],
        places: tuple[int, ...],
        has_aux: bool,
        keeps: bool,
    ) -> None:
        self.api, self.func, self.places = api, func, places
        self.has_aux, self.keeps = has_aux, keeps
        self.weights: list[WeightGradient] = []

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs the function and its backward pass. Returns aux."""

        def watched(*args: Any) -> Any:
            *args_of_func, anchor = args
            leaves = pytree.leaves(pytree.pick(args_of_func, self.places))
            self.weights = [WeightGradient(leaf, self.keeps) for leaf in leaves]
            level = functorch.maybe_current_level()
            for leaf, weight in zip(leaves, self.weights, strict=True):
                leaf.register_hook(partial(_add_gradient, weight, level))
            with WeightUseMode(self.api, level, leaves, self.weights, anchor):
                return self.func(*args_of_func, **kwargs)

        anchor = torch.full((), -0.0)  # adding it changes no value, not even the sign of a zero
        argnums = (*self.places, len(args))
        spec = GradSpec(self.api, transformed(self.func, watched), argnums, self.has_aux)
        aux: Any = _C.call_grad(spec, (*args, anchor), {})[2]
        if not self.has_aux:
            return ()
        for leaf in pytree.leaves(aux):
            if not isinstance(leaf, Tensor):
                raise NotTensorError(
                    f"torchlayers: {self.api}({pytree.name_of(self.func)}): aux is returned for "
                    f"each sample, and must hold only tensors, got {type(leaf).__name__}."
                )
        return aux


def _add_gradient(weight: WeightGradient, level: int, gradient: Tensor) -> Tensor:
    weight.add(_C.unwrap(gradient, level))
    return gradient.new_zeros(()).expand(gradient.shape)  # so that the gradient can be freed
