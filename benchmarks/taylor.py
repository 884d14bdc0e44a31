"""Taylor mode compared with nested jvps, and with JAX's.

``python -m benchmarks.taylor`` prints the table and writes it into docs/taylor-mode.md; with
``--quick`` it is rough, and printed only. ``python -m benchmarks.taylor_jax`` compares the numbers
with those of jax.experimental.jet.
"""

import time
from collections.abc import Callable

import torch
from torch import Tensor

import torchlayers as tl
from benchmarks import machine, page
from benchmarks.timing import Effort, Work, by_turns, check_same

WIDTH, BATCH, ORDERS = 64, 16, (2, 4, 6)
HEADER = [
    "derivatives",
    "nested jvps / function",
    "jet / function",
    "compiled jet / function",
    "nested jvps / jet",
]


def network(dtype: torch.dtype = torch.float32) -> Callable[[Tensor], Tensor]:
    """Three layers with tanh."""
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(WIDTH, WIDTH, generator=generator) / WIDTH**0.5 for _ in range(3)]
    weights = [weight.to(dtype) for weight in weights]

    def f(x: Tensor) -> Tensor:
        for weight in weights[:-1]:
            x = torch.tanh(x @ weight)
        return x @ weights[-1]

    return f


def nested(f: Callable[[Tensor], Tensor], v: Tensor, order: int) -> Callable[[Tensor], Tensor]:
    """The derivative of this order along v."""
    for _ in range(order):
        f = _pushed(f, v)
    return f


def _pushed(f: Callable[[Tensor], Tensor], v: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda x: tl.jvp(f, (x,), (v,))[1]  # type: ignore[no-any-return]


def works(order: int, dtype: torch.dtype = torch.float32) -> dict[str, Work]:
    f = network(dtype)
    x, v = torch.randn(2, BATCH, WIDTH, generator=torch.Generator().manual_seed(1)).to(dtype)
    line = [v, *[None] * (order - 1)]
    by_jvps = nested(f, v, order)

    def by_jet(x: Tensor) -> Tensor:
        return tl.jet(f, (x,), (line,))[1][-1]  # type: ignore[no-any-return]

    compiled = tl.compile(by_jet)
    return {
        "nested": lambda: by_jvps(x),
        "jet": lambda: by_jet(x),
        "compiled": lambda: compiled(x),
    }


def measure(quick: bool) -> dict[str, str]:
    effort = Effort(5, 0.002) if quick else Effort(31, 0.02)
    f, x = network(), torch.ones(BATCH, WIDTH)
    rows = []
    for order in ORDERS[:1] if quick else ORDERS:
        check_same(works(order, torch.float64))
        peers = works(order)
        # CPU seconds, which other processes disturb less.
        timings = by_turns({**peers, "function": lambda: f(x)}, effort, time.process_time)
        seconds = {name: timing.median for name, timing in timings.items()}
        ratios = [seconds[name] / seconds["function"] for name in peers]
        rows.append(
            [
                f"1 to {order}",
                *(f"{ratio:.1f}" for ratio in ratios),
                f"{seconds['nested'] / seconds['jet']:.2f}",
            ]
        )
    return {"taylor-mode.md": f"{page.table(HEADER, rows)}\n\n{machine.describe()}."}


if __name__ == "__main__":
    page.run(str(__doc__), measure, "taylor")
