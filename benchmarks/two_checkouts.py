"""Laplacians, Taylor series and sparsity in this checkout and in another one, by turns.

``python -m benchmarks.two_checkouts PATH`` takes the path of another checkout of this repository,
built in its own .venv, and prints CPU milliseconds of a call on one thread, the least of all
rounds. The work is that of ``benchmarks.laplacian``, ``taylor_jax`` and ``sparse_jacobians``, which
both checkouts have.
"""

import argparse
import gc
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import torch

import torchlayers as tl
from benchmarks import laplacian, sparse_jacobians, taylor_jax
from benchmarks.timing import Work

HERE = Path(__file__).parents[1]
ROUNDS, SECONDS, CALLS = 12, 0.03, 3  # of a round, at least
DONE = "done"


def works() -> dict[str, Work]:
    works: dict[str, Work] = {}
    for inputs, batch in laplacian.SIZES:
        if inputs * batch < 2000:
            of = laplacian.laplacians(laplacian.network(inputs, laplacian.WIDTHS))
            name = f"Laplacian, {inputs} inputs, batch {batch}"
            works[name] = laplacian.works(of, inputs, batch)[laplacian.OURS]
    of = laplacian.exact_biharmonics(laplacian.network(5, laplacian.WIDTHS))
    works["biharmonic, 5 inputs, batch 8"] = laplacian.works(of, 5, 8)[laplacian.OURS]
    for name, function in taylor_jax.FUNCTIONS.items():
        works[f"jet to order 6, {name}"] = partial(taylor_jax.ours, function)
    for problem in sparse_jacobians.PROBLEMS:
        sized = problem._replace(size=min(problem.size, 100**2))
        name = f"{sized.name}, {sized.size} unknowns"
        of_what = "hessian" if sized.is_hessian else "jacobian"
        function, x = partial(sized.func, np=torch), sized.point()
        works[f"sparsity, {name}"] = partial(tl.sparsity, function, x, of=of_what)
        _, calls = sparse_jacobians.ours(sized)
        works[f"values, {name}"] = calls[sparse_jacobians.VALUES]
    return works


def serve() -> None:
    """Measures all works, once for each line that is read."""
    torch.set_num_threads(1)
    prepared = works()
    for work in prepared.values():
        work()
        work()
    print(DONE, flush=True)
    for _ in sys.stdin:
        gc.collect()
        for name, work in prepared.items():
            print(f"{name}\t{_least(work)}")
        print(DONE, flush=True)


def _least(work: Work) -> float:
    times: list[float] = []
    while sum(times) < SECONDS or len(times) < CALLS:
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


class Server:
    """A process that measures the package of a checkout, with this file."""

    def __init__(self, checkout: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(checkout)}
        command = [checkout / ".venv" / "bin" / "python", __file__, "--serve"]
        self.process = subprocess.Popen(
            command,
            cwd=checkout,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.seconds: dict[str, float] = {}
        self.read()

    def measure(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self.read()

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.strip() == DONE:
                return
            name, _, seconds = line.partition("\t")
            self.seconds[name] = min(float(seconds), self.seconds.get(name, float("inf")))
        sys.exit("A checkout could not be measured. Its error is above.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("checkout", type=Path, nargs="?")
    parser.add_argument("--serve", action="store_true")
    options = parser.parse_args()
    if options.serve:
        serve()
        return
    here, there = servers = [Server(HERE), Server(options.checkout.resolve())]
    for i in range(ROUNDS):
        for server in servers[:: 1 if i % 2 else -1]:
            server.measure()
    for server in servers:
        server.process.terminate()
    print("| work | there, ms | here, ms | here / there |\n|---|---:|---:|---:|")
    for name, seconds in here.seconds.items():
        other = there.seconds[name]
        print(f"| {name} | {other * 1e3:.2f} | {seconds * 1e3:.2f} | {seconds / other:.2f} |")


if __name__ == "__main__":
    main()
