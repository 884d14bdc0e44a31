"""Gradients with hooks, compared with torch.func and plain autograd, whose engine calls them.

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
GRADIENTS = ["hooks", "peer", "that, µs", "torchlayers, µs", "ratio", "bar", "without hooks"]
ONE = ["one hook", "autograd's engine, µs", "torchlayers, µs", "ratio", "bar"]

Hook = Callable[[Tensor], Any]


def noted(g: Tensor) -> None:
    """Reads a gradient and changes nothing."""


def doubled(g: Tensor) -> Tensor:
    return 2 * g


def chain(count: int, hook: Hook | None) -> Callable[[Tensor], Tensor]:
    """A chain of operators, of which ``count`` have the hook on their results."""

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


def forwards(hook: Hook | None) -> dict[str, Work]:
    """Only the forward, with the hooks registered, and no gradient."""
    function = chain(COUNT, hook)
    return {
        "torchlayers": lambda: tl.vjp(function, X)[0],
        "autograd": lambda: function(X.detach().requires_grad_()).detach(),
    }


def parts_of_one(effort: Effort) -> list[list[str]]:
    """The cost of one hook among many: the total, and the part that is registering it."""
    timed = by_turns(
        {
            f"{peer} {name} {kind}": work
            for name, hook in {"none": None, "looks": noted, "changes": doubled}.items()
            for kind, those in (("all", works(COUNT, hook)), ("registering", forwards(hook)))
            for peer, work in those.items()
            if peer != "torch.func"
        },
        effort,
    )

    def of_one(peer: str, name: str, kind: str) -> float:
        with_hooks, without = (timed[f"{peer} {each} {kind}"].median for each in (name, "none"))
        return 1e6 * (with_hooks - without) / COUNT

    rows = []
    for name in ("looks", "changes"):
        costs = {}
        for peer in ("autograd", "torchlayers"):
            whole, registering = (of_one(peer, name, kind) for kind in ("all", "registering"))
            costs[peer] = {
                "": whole,
                ", registering": registering,
                ", running": whole - registering,
            }
        for part, theirs in costs["autograd"].items():
            ours = costs["torchlayers"][part]
            bar = f"{BAR:.2f}" if (name, part) == ("looks", "") else ""
            rows.append(
                [f"that {name}{part}", f"{theirs:.2f}", f"{ours:.2f}", f"{ours / theirs:.2f}", bar]
            )
    return rows


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
    tables = [page.table(GRADIENTS, rows), page.table(ONE, parts_of_one(effort))]
    return {"benchmarks.md": "\n\n".join([*tables, f"{machine.describe()}."])}


if __name__ == "__main__":
    page.run(__doc__ or "", measure, "hooks")
