"""The table of docs/deploy.md: transforms and targets, and what is refused."""

import re
from collections.abc import Sequence
from typing import NamedTuple

import torch

from tests.compiler.exported.transforms import table
from torchlayers.core import pytree

TARGETS = ("torch.export", "ONNX", "AOTInductor in C++")
SIZES = ("static", "dynamic")
DTYPES = (torch.float32, torch.float64)


class Refusal(NamedTuple):
    """A cell that does not work: patterns of the transform, target and case, and why."""

    transform: str
    target: str
    case: str
    why: str
    words: str


REFUSED: tuple[Refusal, ...] = ()


class Untried(NamedTuple):
    """Cells that no run has tried yet, so that the page does not claim them: as in Refusal."""

    transform: str
    target: str
    case: str


# In C++, a run of all cells takes an hour.
_IN_CPP = "AOTInductor in C[+][+]"
_TRIED = (
    "grad|vjp|jvp|hvp|vmap|vmap.grad.|vmap.grad. of a CNN's parameters|jacrev|vmap.jacrev.|"
    "jacfwd|vmap.jacfwd.|hessian|vmap.hessian.|laplacian|jet|a sparse Jacobian|"
    "vmap of a sparse Hessian|a CSR Jacobian"
)
UNTRIED: tuple[Untried, ...] = (
    Untried(".*", _IN_CPP, "float64, dynamic"),
    Untried(f"(?!({_TRIED})$).*", _IN_CPP, "float64, static"),
)


def case_of(dtype: torch.dtype, sizes: str) -> str:
    return f"{str(dtype).removeprefix('torch.')}, {sizes}"


def refusal_of(transform: str, target: str, case: str) -> Refusal | None:
    for refusal in REFUSED:
        if _covers(refusal, transform, target, case):
            return refusal
    return None


def is_untried(transform: str, target: str, case: str) -> bool:
    return any(_covers(untried, transform, target, case) for untried in UNTRIED)


def _covers(patterns: Refusal | Untried, transform: str, target: str, case: str) -> bool:
    return all(map(re.fullmatch, patterns[:3], (transform, target, case)))


def has_case(transform: str, sizes: str) -> bool:
    return sizes == "static" or table(torch.float32)[transform].batch is not None


def tensors_of(values: object) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.leaves(values) if isinstance(leaf, torch.Tensor)]


def larger(args: Sequence[object], batch: Sequence[object]) -> list[object]:
    """The arguments with a batch that is three times as large, where it is dynamic."""

    def grown(argument: object, spec: object) -> object:
        return torch.cat([argument] * 3) if spec is not None else argument  # type: ignore[list-item]

    return [*map(grown, args, batch)]
