"""Gradients with hooks beside torch.func and plain autograd, whose engine calls them.

``python -m benchmarks.hooks`` prints the table and writes it into docs/benchmarks.md; with
``--quick`` it is rough, and printed only.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.func
from torch import Tensor

import torchlayers as tl
from benchmarks import machine, page
from benchmarks.timing import Effort, Work, by_turns, check_same

X = torch.linspace(-1, 1, 8)
COUNT = 20
BAR = 0.5
HEADER = ["hooks", "peer", "that, µs", "torchlayers, µs", "ratio", "bar", "without hooks"]

Hook = Callable[[Tensor], Any]


def noted(g: Tensor) -> None:
    """Looks at a gradient."""


def doubled(g: Tensor) -> Tensor:
    return 2 * g


def chain(count: int, hook: Hook | None) -> Callable[[Tensor], Tensor]:
    """So many of the operators have the hook on what they return."""

    def function(x: Tensor) -> Tensor:
        for i in range(COUNT):
            x = x.sin()
            if hook is not None and i < count:
                x.register_hook(hook)  # type: ignore[no-untyped-call]
        return x.sum()

    return function


HOOKS: dict[str, tuple[int, Hook]] = {
    "one that looks": (1, noted),
    "one that changes": (1, doubled),
    f"{COUNT} that look": (COUNT, noted),
    f"{COUNT} that change": (COUNT, doubled),
}


def works(count: int, hook: Hook | None) -> dict[str, Work]:
    function = chain(count, hook)
    ours, torch_funcs = tl.grad(function), torch.func.grad(function)

    def plain() -> Tensor:
        x = X.detach().requires_grad_()
        return torch.autograd.grad(function(x), x)[0]

    return {"torchlayers": lambda: ours(X), "torch.func": lambda: torch_funcs(X), "autograd": plain}


def measure(quick: bool) -> dict[str, str]:
    effort = Effort(5, 0.001) if quick else Effort(51, 0.002)
    without = {peer: timing.median for peer, timing in by_turns(works(0, None), effort).items()}
    rows = []
    for name, (count, hook) in HOOKS.items():
        hooked = works(count, hook)
        check_same(hooked)
        times = {peer: timing.median for peer, timing in by_turns(hooked, effort).items()}
        for peer in ("torch.func", "autograd"):
            rows.append(
                [
                    name,
                    peer,
                    f"{1e6 * times[peer]:.0f}",
                    f"{1e6 * times['torchlayers']:.0f}",
                    f"{times['torchlayers'] / times[peer]:.2f}",
                    f"{BAR:.2f}" if peer == "torch.func" else "",
                    f"{without['torchlayers'] / without[peer]:.2f}",
                ]
            )
    return {"benchmarks.md": "\n\n".join([page.table(HEADER, rows), f"{machine.describe()}."])}


if __name__ == "__main__":
    page.run(__doc__ or "", measure, "hooks")
