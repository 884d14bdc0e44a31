"""A network as a module, for packages that want one: with a layer for each of its operators."""

from collections.abc import Callable
from types import ModuleType
from typing import Any, cast

import torch
from torch import Tensor, nn

from benchmarks.workloads import torch_operators
from benchmarks.workloads.workload import Network, Parameters


class Layered(nn.Module):
    """The network with these parameters.

    It runs the network's own function, on operators that are layers where they have parameters.
    These are found by calling the network on x, so it has to call the same ones for each input.
    """

    def __init__(self, network: Network, params: Parameters, x: Tensor) -> None:
        super().__init__()
        self.network, self.given = network, params
        self.layers = nn.ModuleList()
        self._call(self._add, x)

    def forward(self, x: Tensor) -> Tensor:
        layers = iter(self.layers)
        return self._call(lambda make, *args: next(layers), x)

    def _call(self, layer: Callable[..., nn.Module], x: Tensor) -> Tensor:
        return self.network(cast("ModuleType", _Operators(layer)), self.given, x)

    @torch.no_grad()
    def _add(self, make: Callable[..., nn.Module], *args: Any) -> nn.Module:
        layer = make(*args)
        values = (arg for arg in args if isinstance(arg, Tensor))
        for parameter, value in zip(layer.parameters(), values, strict=True):
            parameter.copy_(value)
        self.layers.append(layer)
        return layer


class _Operators:
    """Torch's, but those that get more than x are done by the layer for them."""

    def __init__(self, layer: Callable[..., nn.Module]) -> None:
        self._layer = layer

    def __getattr__(self, name: str) -> Callable[..., Tensor]:
        plain: Callable[..., Tensor] = getattr(torch_operators, name)
        if name not in _LAYERS:
            return plain
        make = _LAYERS[name]
        return lambda x, *args: self._layer(make, *args)(x) if args else plain(x)


class Add(nn.Module):
    def __init__(self, shape: torch.Size) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(shape))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.weight


def _convolution(kernel: Tensor, bias: Tensor | None = None, stride: int = 1) -> nn.Module:
    wide, narrow, size, _ = kernel.shape
    return nn.Conv2d(narrow, wide, size, stride, padding=size // 2, bias=bias is not None)


def _linear(weight: Tensor, bias: Tensor | None = None) -> nn.Module:
    return nn.Linear(*weight.T.shape, bias=bias is not None)


_LAYERS: dict[str, Callable[..., nn.Module]] = {
    "add": lambda weight: Add(weight.shape),
    "conv2d": _convolution,
    "embedding": lambda table: nn.Embedding(*table.shape),
    "group_norm": lambda groups, weight, bias: nn.GroupNorm(groups, len(weight)),
    "layer_norm": lambda weight, bias: nn.LayerNorm(len(weight)),
    "linear": _linear,
}
