"""Checkpoints and budgets: the memory that a gradient takes, and the time.

``python -m benchmarks.memory`` writes a table into docs/benchmarks.md and draws the memory over
time as docs/images/memory.svg; with ``--quick`` the table is rough, and printed only.

Bars: a transformer whose blocks are checkpointed takes at most the memory of plain autograd with
torch.utils.checkpoint around the same blocks, and at most its time.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import torchlayers as tl
from benchmarks import machine, page
from benchmarks.timing import Effort, Timing, by_turns
from benchmarks.transformer import Block
from torchlayers.memory import PeakMemory

PICTURE = page.IMAGES / "memory.svg"
BLOCKS, WIDTH, HEADS, TOKENS, SAMPLES = 12, 128, 4, 64, 4
BUDGET = 0.15

AUTOGRAD, TORCHS = "autograd", "autograd, torch.utils.checkpoint a block"
PLAIN, OURS = "grad", "grad, checkpoint a block"
BUDGETED = f"grad, memory_budget={BUDGET}"
OFFLOADED = "autograd, saved tensors on disk"
DRAWN = {PLAIN: "plain", OURS: "checkpointed", BUDGETED: "budgeted", OFFLOADED: "offloaded"}

Work = Callable[[], list[Tensor]]
Wrap = Callable[[nn.Module, Tensor], Tensor]


class Network(nn.Module):
    def __init__(self, wrap: Wrap) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block(WIDTH, HEADS) for _ in range(BLOCKS))
        self.wrap = wrap

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = self.wrap(block, x)
        return x.square().mean()


def plainly(block: nn.Module, x: Tensor) -> Tensor:
    result: Tensor = block(x)
    return result


def works(folder: Path) -> dict[str, Work]:
    """The gradients with respect to all parameters."""
    torch.manual_seed(1)
    x = torch.randn(SAMPLES, TOKENS, WIDTH)
    outside: set[int] = set()  # parameters, which exist before and after

    def by_autograd(wrap: Wrap) -> Work:
        network = Network(wrap)
        outside.update(value.data_ptr() for value in network.parameters())
        return lambda: list(torch.autograd.grad(network(x), [*network.parameters()]))

    def by_grad(wrap: Wrap, **options: Any) -> Work:
        network = Network(wrap)
        parameters = {name: value.detach() for name, value in network.named_parameters()}
        transform = tl.grad(lambda values: tl.functional_call(network, values, (x,)), **options)
        return lambda: list(transform(parameters).values())

    def offloaded() -> list[Tensor]:
        count = 0

        def pack(tensor: Tensor) -> Any:
            nonlocal count
            value = tensor.detach()
            if value.data_ptr() in outside:
                return tensor
            count += 1
            path = folder / str(count)
            value.contiguous().numpy().tofile(path)
            return path, value.shape, value.dtype

        def unpack(packed: Any) -> Tensor:
            if isinstance(packed, Tensor):
                return packed
            path, shape, dtype = packed
            return torch.from_file(str(path), size=shape.numel(), dtype=dtype).reshape(shape)

        with saved_tensors_hooks(pack, unpack):
            return by_hand()

    by_hand = by_autograd(plainly)
    return {
        AUTOGRAD: by_hand,
        PLAIN: by_grad(plainly),
        TORCHS: by_autograd(lambda block, x: checkpoint(block, x, use_reentrant=False)),
        OURS: by_grad(lambda block, x: tl.checkpoint(block)(x)),
        BUDGETED: by_grad(plainly, memory_budget=BUDGET),
        OFFLOADED: offloaded,
    }


class Timeline(PeakMemory):
    """Records the bytes held after each operator."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[int] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        self.held.append(self._held)
        return result


def timeline(work: Work) -> list[int]:
    work()  # allocates what is created only once
    with Timeline() as memory:
        work()
    return memory.held


def draw(timelines: dict[str, list[int]], picture: Path) -> None:
    """Draws the timelines; the same data gives the same file."""
    import matplotlib

    matplotlib.rcParams["svg.hashsalt"] = picture.name
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.5), layout="constrained")
    axes = figure.add_subplot()
    for name, label in DRAWN.items():
        held = timelines[name]
        axes.plot([bytes / 2**20 for bytes in held], label=f"{label}: {max(held) / 2**20:.0f} MiB")
    axes.set(xlabel="operators", ylabel="MiB held", xlim=0, ylim=0)
    axes.legend()
    figure.savefig(picture, metadata={"Date": None})


def rows(peaks: dict[str, float], times: dict[str, Timing]) -> list[list[str]]:
    def ratio(value: float, of: float, bar: bool) -> str:
        missed = ", missed" if bar and value > of else ""
        return f"{value / of:.2f}{missed}"

    return [
        [
            name,
            f"{peaks[name] / 2**20:.1f}",
            str(times[name]),
            ratio(peaks[name], peaks[TORCHS], name == OURS),
            ratio(times[name].median, times[TORCHS].median, name == OURS),
            "1.0" if name == OURS else "",
        ]
        for name in peaks
    ]


def measure(quick: bool) -> dict[str, str]:
    """The table, followed by a line about the machine."""
    effort = Effort(rounds=3, block=0.05) if quick else Effort(rounds=9, block=0.2)
    with tempfile.TemporaryDirectory() as folder:
        calls = works(Path(folder))
        expected = calls[AUTOGRAD]()
        for work in calls.values():
            for found, wanted in zip(work(), expected, strict=True):
                torch.testing.assert_close(found, wanted)
        timelines = {name: timeline(work) for name, work in calls.items()}
        times = {
            name: t.scaled(1e3) for name, t in by_turns(calls, effort, time.process_time).items()
        }
    if not quick:
        draw(timelines, PICTURE)
    peaks = {name: max(held) for name, held in timelines.items()}
    header = (
        f"gradient of a transformer of {BLOCKS} blocks",
        "peak, MiB",
        "processor's ms",
        "peak over torch's checkpoints",
        "time over them",
        "bar",
    )
    return {"benchmarks.md": f"{page.table(header, rows(peaks, times))}\n\n{machine.describe()}."}


if __name__ == "__main__":
    page.run(__doc__ or "", measure, "memory")
