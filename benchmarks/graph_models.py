"""Five whole models, each as a graph and as the function from which the graph was captured."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state
from torch.fx.experimental.proxy_tensor import make_fx

import torchlayers


@dataclass
class Model:
    """A graph, and ``function(*inputs, *parameters, *buffers)``, which computes the same.

    The graph is either that function's, or of a module that holds the parameters and buffers
    itself; then ``held`` is true, and the graph takes only the inputs.
    """

    name: str
    graph: Any
    function: Callable[..., Tensor]
    inputs: tuple[Tensor, ...]
    parameters: list[Tensor]
    buffers: list[Tensor]
    held: bool

    @property
    def argnums(self) -> tuple[int, ...]:
        """The indices of the parameters, to differentiate by these alone, as in training."""
        if self.held:
            return ()
        first = len(self.inputs)
        return tuple(range(first, first + len(self.parameters)))


def models() -> dict[str, Callable[[], Model]]:
    return {
        "MLP": _mlp,
        "CNN with batch norm": _cnn,
        "transformer": _transformer,
        "LSTM, 5 steps": _lstm,
        "ensemble of 5": _ensemble,
    }


def _mlp() -> Model:
    module = nn.Sequential(
        nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 10)
    )
    inputs = (torch.randn(32, 20),)
    return _of_module("MLP", module, inputs, torch.export.export(module, inputs))


class _CNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.renorm = nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.last = nn.Linear(16 * 4 * 4, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.norm(self.first(x)).relu(), 2)
        x = F.max_pool2d(self.renorm(self.second(x)).relu(), 2)
        return self.last(x.flatten(1))


def _cnn() -> Model:
    module, inputs = _CNN(), (torch.randn(8, 3, 16, 16),)
    return _of_module("CNN with batch norm", module, inputs, torch.export.export(module, inputs))


class _Transformer(nn.Module):
    def __init__(self, width: int = 32, heads: int = 4, words: int = 50) -> None:
        super().__init__()
        self.heads = heads
        self.embed = nn.Embedding(words, width)
        self.norm, self.renorm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.read = nn.Linear(width, words)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embed(words)
        batch, length, width = x.shape
        each = width // self.heads
        qkv = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, each)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        hidden = torch.ones(length, length).triu(1).bool()
        scores = (q @ k.transpose(-1, -2) / each**0.5).masked_fill(hidden, -1e9)
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(mixed)
        x = x + self.down(F.gelu(self.up(self.renorm(x))))
        return self.read(x)


def _transformer() -> Model:
    module, inputs = _Transformer(), (torch.randint(0, 50, (4, 12)),)
    return _of_module("transformer", module, inputs, torch.export.export(module, inputs))


class _LSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(10, 20)

    def forward(self, sequence: Tensor) -> Tensor:
        hidden = cell = torch.zeros(sequence.shape[1], 20)
        outputs = []
        for x in sequence:
            hidden, cell = self.cell(x, (hidden, cell))
            outputs.append(hidden)
        return torch.stack(outputs)


def _lstm() -> Model:
    return _recorded("LSTM, 5 steps", *_as_function(_LSTM()), (torch.randn(5, 4, 10),))


def _ensemble() -> Model:
    members = [nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)) for _ in range(5)]
    stacked, _ = stack_module_state(members)  # type: ignore[arg-type]

    def function(x: Tensor, *values: Tensor) -> Tensor:
        def member(state: dict[str, Tensor], x: Tensor) -> Tensor:
            return functional_call(members[0], state, (x,))

        state = dict(zip(stacked, values, strict=True))
        return torchlayers.vmap(member, (0, None))(state, x)

    parameters = [tensor.detach() for tensor in stacked.values()]
    return _recorded("ensemble of 5", function, parameters, [], (torch.randn(16, 8),))


def _as_function(
    module: nn.Module,
) -> tuple[Callable[..., Tensor], list[Tensor], list[Tensor]]:
    """The module as a function of its inputs, parameters and buffers."""
    names = [name for name, _ in module.named_parameters()]
    names += [name for name, _ in module.named_buffers()]

    def function(*values: Tensor) -> Tensor:
        inputs = values[: len(values) - len(names)]
        state = dict(zip(names, values[len(inputs) :], strict=True))
        return functional_call(module, state, inputs)

    return function, list(module.parameters()), list(module.buffers())


def _of_module(name: str, module: nn.Module, inputs: tuple[Tensor, ...], graph: Any) -> Model:
    function, parameters, buffers = _as_function(module)
    return Model(name, graph, function, inputs, parameters, buffers, held=True)


def _recorded(
    name: str,
    function: Callable[..., Tensor],
    parameters: list[Tensor],
    buffers: list[Tensor],
    inputs: tuple[Tensor, ...],
) -> Model:
    values = [t.detach() for t in (*inputs, *parameters, *buffers)]
    graph = make_fx(function)(*values)
    return Model(name, graph, function, inputs, parameters, buffers, held=False)
