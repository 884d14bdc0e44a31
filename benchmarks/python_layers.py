"""What an operator costs in a layer written in Python, and in jet, beside the plain operator.

``python -m benchmarks.python_layers`` prints two tables and writes them into docs/benchmarks.md;
with ``--quick`` they are rough, and printed only. The first is of layers that do nothing, the
second of jet beside nested jvps, whose results are compared before anything is timed. Times are the
processor's, so that other work on the machine changes them less.
"""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import torchlayers as tl
from benchmarks import machine, page
from benchmarks.chains import twelve_kinds
from benchmarks.comparisons import judged
from benchmarks.timing import Effort, Work, by_turns, check_same

COUNT = 50
LAYER_BAR, JET_BAR = 4.0, 1.0
LAYERS_HEADER = ["50 operators on 32 elements", "plain, µs", "in the layer, µs", "ratio", "bar"]
JET_HEADER = ["jet of", "order", "nested jvps, µs", "jet, µs", "ratio", "bar"]

Function = Callable[[Tensor], Tensor]


class Nothing(tl.Layer):
    """Its tensors have no parts, and its rule does to their values what the operator does."""


@Nothing.rule("any")
def nothing(layer: Nothing, op: Any, *args: Any, **kwargs: Any) -> Any:
    return layer.tensor(layer.send_down(op, args, kwargs))


class Watching(tl.Layer):
    """It sees every operator, and sends it down."""

    def process(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return super().process(op, args, kwargs)


def operators(x: Tensor, y: Tensor) -> Tensor:
    for _ in range(COUNT // 2):
        x = torch.add(torch.mul(x, y), y)
    return x


def layers() -> dict[str, dict[str, Work]]:
    """The operators without a layer, and in one, by the layer."""
    x, y = torch.randn(2, 8, 4, generator=torch.Generator().manual_seed(0)).tanh()

    def in_nothing() -> Tensor:
        with Nothing() as layer:
            result = operators(layer.tensor(x), y)
            return result.value  # type: ignore[attr-defined, no-any-return]

    def watched() -> Tensor:
        with Watching():
            return operators(x, y)

    plain: Work = lambda: operators(x, y)  # noqa: E731
    return {
        "a rule for any operator, on its tensors": {"plain": plain, "layer": in_nothing},
        "`process`, on other tensors": {"plain": plain, "layer": watched},
    }


def nested(function: Function, x: Tensor, order: int) -> Function:
    """The derivative of this order along ones."""
    for _ in range(order):
        function = _pushed(function, torch.ones_like(x))
    return function


def _pushed(function: Function, direction: Tensor) -> Function:
    return lambda x: tl.jvp(function, (x,), (direction,))[1]  # type: ignore[no-any-return]


def jets() -> dict[tuple[str, int], dict[str, Work]]:
    """The derivative of an order along a line, by nested jvps and by jet."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(2, 8, generator=generator)
    functions: dict[str, Function] = {
        "multiplications and additions of a constant": lambda x: operators(x, y),
        "tanh(x) * x, 25 times": curved,
        "12 kinds": twelve_kinds(8, generator),
    }
    return {
        (name, order): {"nested": _nested(function, x, order), "jet": _jet(function, x, order)}
        for name, function in functions.items()
        for order in (2, 3)
    }


def curved(x: Tensor) -> Tensor:
    for _ in range(COUNT // 2):
        x = torch.tanh(x) * x
    return x


def _nested(function: Function, x: Tensor, order: int) -> Work:
    by_jvps = nested(function, x, order)
    return lambda: by_jvps(x)


def _jet(function: Function, x: Tensor, order: int) -> Work:
    line = [torch.ones_like(x), *[None] * (order - 1)]
    return lambda: tl.jet(function, (x,), (line,))[1][-1]


def measure(quick: bool) -> dict[str, str]:
    effort = Effort(5, 0.005) if quick else Effort(41, 0.02)
    rows = []
    for name, peers in layers().items():
        check_same(peers)
        timings = by_turns(peers, effort, time.process_time)
        plain, layer = (timings[peer].scaled(1e6 / COUNT) for peer in ("plain", "layer"))
        rows.append([name, str(plain), str(layer), *judged(layer.median / plain.median, LAYER_BAR)])
    tables = [page.table(LAYERS_HEADER, rows)]
    rows = []
    for (name, order), peers in jets().items():
        check_same(peers)
        timings = by_turns(peers, effort, time.process_time)
        by_jvps, by_jet = (timings[peer].scaled(1e6 / COUNT) for peer in ("nested", "jet"))
        ratio = judged(by_jet.median / by_jvps.median, JET_BAR)
        rows.append([name, str(order), str(by_jvps), str(by_jet), *ratio])
    tables.append(page.table(JET_HEADER, rows))
    note = f"{machine.describe()}; `python -m benchmarks.python_layers`."
    return {"benchmarks.md": "\n\n".join([*tables, note])}


if __name__ == "__main__":
    page.run(str(__doc__), measure, "python layers")
