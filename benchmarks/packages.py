"""The speedup of packages that call modules by torch.func's functional_call.

python -m benchmarks.packages measures the table of docs/benchmarks.md, and writes it there, for
those of laplace-torch, opacus and curvlinops-for-pytorch that are installed.
"""

import importlib
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from time import process_time
from typing import Any

import torch
import torch.func
from torch import Tensor, nn

import torchlayers
from benchmarks import machine, page
from benchmarks.modules import FUNC, MIXED, OURS
from benchmarks.timing import Effort, by_turns, check_same
from torchlayers.core import torch_func

Work = Callable[[], tuple[Tensor, ...]]

NAMES = torch_func.__all__
PEERS: Mapping[str, Mapping[str, Any]] = {
    FUNC: {},
    MIXED: {name: getattr(torchlayers, name) for name in NAMES if name != "functional_call"},
    OURS: {name: getattr(torchlayers, name) for name in NAMES},
}
DISTRIBUTIONS = ("laplace-torch", "opacus", "curvlinops-for-pytorch")


@contextmanager
def replaced(package: str, functions: Mapping[str, Any]) -> Iterator[None]:
    """Replaces torch.func's functions, there and wherever the package has imported them."""
    theirs = {id(getattr(torch_func, name)): name for name in functions}
    modules = [
        module
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] == package or name == "torch.func"
    ]
    with ExitStack() as stack:
        for module in modules:
            for name, value in list(vars(module).items()):
                if id(value) in theirs:
                    stack.callback(setattr, module, name, value)
                    setattr(module, name, functions[theirs[id(value)]])
        yield


def layers(count: int) -> nn.Module:
    """Linear layers, 8 wide."""
    torch.manual_seed(0)
    inner = (part for _ in range(count - 1) for part in (nn.Linear(8, 8), nn.Tanh()))
    return nn.Sequential(*inner, nn.Linear(8, 3))


def data() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(8, 8), torch.randint(3, (8,))


def laplace_jacobians(count: int) -> Work:
    from laplace.curvature.curvature import CurvatureInterface

    interface, (x, _) = CurvatureInterface(layers(count), "classification"), data()
    return lambda: interface.jacobians(x)


def opacus_samples(count: int) -> Work:
    """Opacus' per-sample gradients for layers without a formula; here forced for all layers."""
    from opacus import GradSampleModule

    model, (x, labels) = GradSampleModule(layers(count), force_functorch=True), data()
    loss = nn.CrossEntropyLoss()

    def work() -> tuple[Tensor, ...]:
        model.zero_grad(set_to_none=True)
        loss(model(x), labels).backward()
        return tuple(parameter.grad_sample for parameter in model.parameters())

    return work


def curvlinops_products(kind: str, count: int) -> Work:
    curvlinops = importlib.import_module("curvlinops")
    model = layers(count)
    params = list(model.parameters())
    linear = getattr(curvlinops, kind)(
        model, nn.CrossEntropyLoss(), params, [data()], check_deterministic=False
    )
    vector = torch.linspace(-1, 1, sum(p.numel() for p in params))
    return lambda: (linear @ vector,)


# Name: the package, and a function that makes the work for a number of layers.
CASES: dict[str, tuple[str, Callable[[int], Work]]] = {
    "Laplace, jacobians": ("laplace", laplace_jacobians),
    "Opacus, grad samples": ("opacus", opacus_samples),
    "curvlinops, Hessian": ("curvlinops", partial(curvlinops_products, "HessianLinearOperator")),
    "curvlinops, GGN": ("curvlinops", partial(curvlinops_products, "GGNLinearOperator")),
}


def row(name: str, count: int, effort: Effort) -> list[str]:
    package, make = CASES[name]
    importlib.import_module(package)
    inside = {peer: partial(replaced, package, functions) for peer, functions in PEERS.items()}
    works = {}
    for peer in PEERS:
        with inside[peer]():
            works[peer] = make(count)
    check_same({peer: partial(within, inside[peer], works[peer]) for peer in PEERS})
    times = {
        peer: timing.scaled(1e6)
        for peer, timing in by_turns(works, effort, process_time, inside).items()
    }
    ratios = [times[OURS].median / times[peer].median for peer in (FUNC, MIXED)]
    return [
        f"{name}, {count} layers",
        *(str(times[peer]) for peer in PEERS),
        *(f"{ratio:.2f}" for ratio in ratios),
    ]


def within(context: Callable[[], Any], work: Work) -> tuple[Tensor, ...]:
    with context():
        return tuple(tensor.detach().clone() for tensor in work())


def measure(quick: bool) -> dict[str, str]:
    effort = Effort(rounds=5, block=0.02) if quick else Effort(rounds=21, block=0.05)
    header = ("µs", *PEERS, f"/ {FUNC}", "/ with its functional_call")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the packages warn about their own code
        rows = [
            row(name, count, effort)
            for name, (package, _) in CASES.items()
            if find_spec(package)
            for count in (2, 16)
        ]
    table = page.table(header, rows)
    return {"benchmarks.md": f"{table}\n\n{machine.describe()}; {'; '.join(versions())}."}


def versions() -> Iterator[str]:
    for name in DISTRIBUTIONS:
        try:
            yield f"{name} {version(name)}"
        except PackageNotFoundError:
            yield f"{name} is not installed"


if __name__ == "__main__":
    page.run(__doc__ or "", measure, "packages")
