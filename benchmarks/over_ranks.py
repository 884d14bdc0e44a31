"""The cost of a batch over ranks, and a model of how it scales.

python -m benchmarks.over_ranks measures the tables of docs/distributed.md, with one process and
with two."""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import torchlayers
from benchmarks import machine, page
from benchmarks.timing import Effort, by_turns
from torchlayers.distributed import psum, psum_invariant

WORLDS = (1, 2)
PREDICTED = (8, 64, 1024)
SUMS = 50
SIZES = (1_000, 30_000, 300_000, 1_000_000)  # of all_reduces, in numbers of 4 bytes
BATCHES = (64, 256, 1024)  # samples per rank
STRONG, WEAK = 4096, 1024  # samples in all, per rank
FEATURES, HIDDEN = 32, 64

Measured = dict[str, Any]


def loss(w: Tensor, x: Tensor) -> Tensor:
    return ((x @ w).tanh() ** 2).sum()


def calls(mesh: DeviceMesh) -> dict[str, Callable[[], Any]]:
    """A small vmap of one rank's samples, and the same with mesh=."""
    w, x = torch.ones(3, 2), torch.randn(8, 3)
    own = x.chunk(mesh.size())[mesh.get_local_rank()]
    alone = torchlayers.vmap(loss, (None, 0))
    works = {"vmap of the part": lambda: alone(w, own)}
    for out in ("local", "dtensor"):
        spread = torchlayers.vmap(loss, (None, 0), mesh=mesh, out=out)
        spread(w, x)
        works[f'mesh=, out="{out}"'] = lambda spread=spread: spread(w, x)
    return works


def names() -> dict[str, Callable[[], Any]]:
    """Sums inside a vmap: over one sample, and over all samples."""
    x = torch.randn(64, 16)

    def often(op: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        def f(x: Tensor) -> Tensor:
            for _ in range(SUMS):
                op(x)
            return x

        return f

    plain = torchlayers.vmap(often(lambda x: x.sum(0)))
    named = torchlayers.vmap(often(lambda x: psum(x, "batch")), axis_name="batch")
    return {"sum": lambda: plain(x), "psum": lambda: named(x)}


def network_loss(p: dict[str, Tensor], x: Tensor) -> Tensor:
    return ((torch.tanh(x @ p["w"]) @ p["v"]) ** 2).sum()


def parameters() -> dict[str, Tensor]:
    return {"w": torch.randn(FEATURES, HIDDEN), "v": torch.randn(HIDDEN, 1)}


def together(work: Callable[[], Any], rounds: int, block: int) -> float:
    """Seconds per call, with all ranks calling together: the slowest rank in its fastest round."""
    work()
    fastest = float("inf")
    for _ in range(rounds):
        dist.barrier()
        begun = time.perf_counter()
        for _ in range(block):
            work()
        fastest = min(fastest, (time.perf_counter() - begun) / block)
    slowest = torch.tensor(fastest)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return slowest.item()


def measure(quick: bool) -> Measured:
    """Measures on each of the ranks."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))["dp"]
    effort = Effort(3, 0.02) if quick else Effort(15, 0.1)
    rounds, block = (2, 3) if quick else (8, 20)
    p = parameters()
    spread = torchlayers.vmap(torchlayers.grad(network_loss), (None, 0), mesh=mesh, out="local")

    def step(size: int) -> Callable[[], Any]:
        """Per-sample gradients of ``size`` samples per rank, and the sum of the clipped ones."""
        x = torch.randn(size * mesh.size(), FEATURES)

        def run() -> Any:
            gradients = spread(p, x)
            norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients.values()]).norm(dim=0)
            scale = (1 / norms).clamp(max=1)
            sums = {name: torch.tensordot(scale, g, 1) for name, g in gradients.items()}
            return psum_invariant(sums, mesh)

        return run

    works = {**calls(mesh), **names()}
    seconds = {name: t.median for name, t in by_turns(works, effort, time.process_time).items()}
    dist.barrier()
    return {
        "seconds": seconds,
        "reduced": [together(reduced(size, mesh), rounds, block) for size in SIZES],
        "steps": [together(step(size), rounds, max(block // 4, 1)) for size in BATCHES],
    }


def reduced(size: int, mesh: DeviceMesh) -> Callable[[], Any]:
    x = torch.randn(size)
    return lambda: psum_invariant(x, mesh)


def line(xs: tuple[int, ...], ys: list[float]) -> tuple[float, float]:
    """The coefficients of y = a + b x with the smallest relative error, neither negative."""
    x, y = torch.tensor(xs, dtype=torch.float64), torch.tensor(ys, dtype=torch.float64)
    columns = torch.stack([1 / y, x / y], 1)
    a, b = torch.linalg.lstsq(columns, torch.ones(len(xs), 1, dtype=torch.float64)).solution
    return max(a.item(), 0.0), max(b.item(), 0.0)


class Model:
    """Predicts a step's seconds: the load of the fullest rank, and an all_reduce on a ring."""

    def __init__(self, alone: Measured, both: Measured) -> None:
        self.fixed, self.of_sample = line(BATCHES, alone["steps"])
        pair, of_number = line(SIZES, both["reduced"])
        self.latency, self.of_byte = pair / 2, of_number / 4
        self.bytes = 4 * sum(value.numel() for value in parameters().values())

    def __call__(self, ranks: int, samples: int) -> float:
        load = self.fixed + self.of_sample * -(-samples // ranks)
        if ranks == 1:
            return load
        return (
            load
            + 2 * (ranks - 1) * self.latency
            + 2 * (ranks - 1) / ranks * self.bytes * self.of_byte
        )


def tables(quick: bool) -> dict[str, str]:
    found = {world: started(world, quick) for world in WORLDS}
    costs = page.table(
        ["µs", *(f"{world} rank{'s' if world > 1 else ''}" for world in WORLDS)],
        [
            [name, *(f"{found[world]['seconds'][name] * 1e6:.1f}" for world in WORLDS)]
            for name in found[1]["seconds"]
            if name not in ("sum", "psum")
        ],
    )
    ratios = ", ".join(
        f"{found[w]['seconds']['psum'] / found[w]['seconds']['sum']:.2f}" for w in WORLDS
    )
    model = Model(found[1], found[2])
    rows = []
    for ranks in (*WORLDS, *PREDICTED):
        strong, weak = model(ranks, STRONG), model(ranks, WEAK * ranks)
        measured = f"{found[ranks]['steps'][-1] * 1e3:.2f}" if ranks in found else "predicted"
        rows.append(
            [
                str(ranks),
                f"{strong * 1e3:.2f}",
                f"{model(1, STRONG) / strong / ranks:.2f}",
                f"{weak * 1e3:.2f}",
                measured,
            ]
        )
    scaling = page.table(
        [
            "ranks",
            f"{STRONG} samples, ms",
            "efficiency",
            f"{WEAK} a rank, ms",
            "measured, ms",
        ],
        rows,
    )
    text = f"""{machine.describe()}, gloo, both ranks on it. A `vmap` of 8 samples of 3 numbers:

{costs}

`psum` over the samples of a vmap takes {ratios} times a `sum` of a sample there. Both are times of
the processor.

A step of DP-SGD (per-sample gradients of {model.bytes // 4} parameters, clipped sums, one
all_reduce) takes {model.fixed * 1e6:.0f} µs and {model.of_sample * 1e6:.2f} µs a sample of the
fullest rank; an all_reduce of n bytes around a ring of W ranks 2 (W - 1) times
{model.latency * 1e6:.0f} µs, and 2 (W - 1) / W n times {model.of_byte * 1e9:.2f} ns.

That is fitted on this run with one and two ranks. What it says of more is a **prediction**: each
with a core of its own, and a network like this machine's loopback. Latency, around a ring, is what
it says will limit them, so give each rank samples enough.

{scaling}"""
    return {"distributed.md": text}


def started(world: int, quick: bool) -> Measured:
    """The measurements of the first rank, with ``world`` ranks."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            subprocess.Popen(
                [
                    *(sys.executable, "-m", "benchmarks.over_ranks", *(["--quick"] * quick)),
                    *("--rank", str(rank), "--world", str(world), "--folder", folder),
                ]
            )
            for rank in range(world)
        ]
        assert not any(rank.wait() for rank in ranks)
        result: Measured = json.loads((Path(folder) / "measured").read_text())
        return result


def as_rank(rank: int, world: int, folder: str, quick: bool) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world
    )
    found = measure(quick)
    if rank == 0:
        (Path(folder) / "measured").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    if "--rank" in sys.argv:
        parser = argparse.ArgumentParser()
        parser.add_argument("--quick", action="store_true")
        parser.add_argument("--rank", type=int)
        parser.add_argument("--world", type=int)
        parser.add_argument("--folder")
        given = parser.parse_args()
        as_rank(given.rank, given.world, given.folder, given.quick)
    else:
        page.run(__doc__, tables, "over ranks")
