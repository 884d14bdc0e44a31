"""Measurements that need a fresh process: import times, and a plain operator with and without us.

Run as a module it is that process: it measures, and prints JSON.
"""

import argparse
import importlib
import json
import statistics
import subprocess
import sys
import time
import timeit

CALLS = 20_000
REPETITIONS = 11


def measure(with_torchlayers: bool) -> dict[str, float]:
    """Seconds in a new process, of importing "torch" and "torchlayers", and of an "operator"."""
    command = [sys.executable, "-m", "benchmarks.fresh"]
    if with_torchlayers:
        command.append("--with-torchlayers")
    result = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    seconds: dict[str, float] = json.loads(result.stdout)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--with-torchlayers", action="store_true")
    modules = ["torch"]
    if parser.parse_args().with_torchlayers:
        modules.append("torchlayers")
    seconds = {module: _import_time(module) for module in modules}
    print(json.dumps(seconds | {"operator": _operator_time()}))


def _import_time(module: str) -> float:
    start = time.perf_counter()
    importlib.import_module(module)
    return time.perf_counter() - start


def _operator_time() -> float:
    import torch

    torch.set_num_threads(1)
    x = torch.ones(4)
    timer = timeit.Timer("x * x", globals={"x": x})
    timer.timeit(CALLS)  # warm-up
    return statistics.median(timer.repeat(REPETITIONS, CALLS)) / CALLS


if __name__ == "__main__":
    main()
