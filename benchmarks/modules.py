"""The cost of functional_call, compared with a plain call, torch.func's and code without modules.

python -m benchmarks.modules measures the tables of docs/benchmarks.md, and writes them there.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from time import process_time
from typing import Any

import torch
import torch.func
import torch.nn.functional as F
from torch import Tensor, nn

import torchlayers
from benchmarks import machine, page
from benchmarks.timing import Effort, Timing, by_turns, check_same

OWN, HAND, OURS = "the module's own call", "by hand", "torchlayers"
TORCH = "torch.func's functional_call"
FUNC = "torch.func"
MIXED = f"torchlayers, {TORCH}"

Params = dict[str, Tensor]


@dataclass(frozen=True)
class Case:
    """A module and a batch of inputs; if it is small, also the same function without modules."""

    name: str
    module: nn.Module
    x: Tensor
    by_hand: Callable[[Params, Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        # Like the given tensors: torch multiplies differently by a tensor that requires grad.
        self.module.requires_grad_(False)

    def params(self) -> Params:
        """Aliases of the module's own memory: other alignment makes kernels slower."""
        return {name: p.detach() for name, p in self.module.named_parameters()}

    def called(self, call: Callable[..., Any]) -> Callable[[Params, Tensor], Tensor]:
        return lambda params, x: first(call(self.module, params, (x,)))


def first(output: Any) -> Tensor:
    tensor: Tensor = output[0] if isinstance(output, tuple) else output
    return tensor


def linear_layers(count: int) -> Case:
    """Layers 8 wide, with ``count`` parameters in all."""
    layers = count // 2
    net = nn.Sequential(*(part for _ in range(layers) for part in (nn.Linear(8, 8), nn.Tanh())))

    def by_hand(params: Params, x: Tensor) -> Tensor:
        for i in range(layers):
            x = F.linear(x, params[f"{2 * i}.weight"], params[f"{2 * i}.bias"]).tanh()
        return x

    return Case(f"{count} parameters, 8 wide", net, torch.randn(4, 8), by_hand)


class InOrder(nn.Module):
    """The layers of an nn.Sequential, called by the class's own forward."""

    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        for name, layer in layers.named_children():
            self.add_module(name, layer)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.children():
            x = layer(x)
        return x


def in_order(case: Case) -> Case:
    """The same case, as a class other than nn.Sequential."""
    assert isinstance(case.module, nn.Sequential)
    return Case(f"{case.name}, own class", InOrder(case.module), case.x, case.by_hand)


class Residual(nn.Module):
    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        stride = 1 if inside == outside else 2
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.norm1 = nn.GroupNorm(4, outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norm2 = nn.GroupNorm(4, outside)
        self.skip = nn.Identity() if stride == 1 else nn.Conv2d(inside, outside, 1, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.skip(x))


def residual_network() -> Case:
    """ResNet-18's blocks, with few channels and group norms."""
    widths = [8, 8, 8, 16, 16, 32, 32, 64, 64]
    blocks = [Residual(a, b) for a, b in pairwise(widths)]
    stem = nn.Conv2d(3, 8, 3, 1, 1, bias=False)
    net = nn.Sequential(stem, nn.GroupNorm(4, 8), nn.ReLU(), *blocks, nn.AdaptiveAvgPool2d(1))
    net = nn.Sequential(net, nn.Flatten(), nn.Linear(64, 10))
    return Case("ResNet-18, narrow", net, torch.randn(2, 3, 16, 16))


def cases() -> Iterator[Case]:
    torch.manual_seed(0)
    for count in (4, 16, 64):
        yield linear_layers(count)
        yield in_order(linear_layers(count))
    yield residual_network()
    block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    yield Case("transformer block", block, torch.randn(2, 8, 32))
    yield Case("LSTM", nn.LSTM(32, 32, batch_first=True), torch.randn(2, 8, 32))


def calls(case: Case) -> dict[str, Callable[[], Tensor]]:
    module, params, x = case.module, case.params(), case.x
    ours, theirs = torchlayers.functional_call, torch.func.functional_call
    return {
        OWN: lambda: first(module(x)),
        TORCH: lambda: first(theirs(module, params, (x,))),
        OURS: lambda: first(ours(module, params, (x,))),
    }


def gradients(case: Case, library: Any, run: Callable[[Params, Tensor], Tensor]) -> Any:
    """Gradients of a batch, and of each of its samples."""
    params = case.params()

    def loss(params: Params, x: Tensor) -> Tensor:
        return run(params, x).square().sum()

    grad = library.grad(loss)
    each = library.vmap(grad, in_dims=(None, 0))
    samples = case.x.unsqueeze(1)
    return {
        "grad": lambda: tuple(grad(params, case.x).values()),
        "vmap(grad)": lambda: tuple(each(params, samples).values()),
    }


def transformed(case: Case) -> dict[str, dict[str, Callable[[], Any]]]:
    assert case.by_hand is not None
    peers = {
        FUNC: gradients(case, torch.func, case.called(torch.func.functional_call)),
        MIXED: gradients(case, torchlayers, case.called(torch.func.functional_call)),
        HAND: gradients(case, torchlayers, case.by_hand),
        OURS: gradients(case, torchlayers, case.called(torchlayers.functional_call)),
    }
    return {
        kind: {peer: works[kind] for peer, works in peers.items()}
        for kind in ("grad", "vmap(grad)")
    }


def measured(works: dict[str, Callable[[], Any]], effort: Effort) -> dict[str, Timing]:
    check_same(works)
    return {
        name: timing.scaled(1e6) for name, timing in by_turns(works, effort, process_time).items()
    }


def calls_table(effort: Effort) -> str:
    header = (
        "a call, without autograd, µs",
        *(OWN, TORCH, OURS, "/ own", "more than own, µs a parameter"),
    )
    rows = []
    with torch.no_grad():
        for case in cases():
            times = measured(calls(case), effort)
            own, ours = times[OWN].median, times[OURS].median
            more = (ours - own) / len([*case.module.parameters()])
            shown = [str(times[name]) for name in (OWN, TORCH, OURS)]
            rows.append([case.name, *shown, f"{ours / own:.2f}", f"{more:.2f}"])
    return page.table(header, rows)


def gradients_table(effort: Effort) -> str:
    header = ("µs", FUNC, MIXED, HAND, OURS, f"/ {HAND}", f"/ {FUNC}")
    rows = []
    for case in cases():
        for kind, works in transformed(case).items() if case.by_hand else ():
            times = measured(works, effort)
            shown = [str(times[name]) for name in (FUNC, MIXED, HAND, OURS)]
            ratios = [times[OURS].median / times[name].median for name in (HAND, FUNC)]
            rows.append([f"{kind}, {case.name}", *shown, *(f"{ratio:.2f}" for ratio in ratios)])
    return page.table(header, rows)


def measure(quick: bool) -> dict[str, str]:
    """The tables, followed by a line about the machine."""
    effort = Effort(rounds=5, block=0.02) if quick else Effort(rounds=31, block=0.05)
    tables = [calls_table(effort), gradients_table(effort), f"{machine.describe()}."]
    return {"benchmarks.md": "\n\n".join(tables)}


if __name__ == "__main__":
    page.run(__doc__ or "", measure, "modules")
