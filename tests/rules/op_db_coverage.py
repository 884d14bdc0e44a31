"""Counts the operators of torch's op_db that jet, laplacian and sparsity take:
``python -m tests.rules.op_db_coverage``.

An operator is taken if two samples of it are: jet to order 2 and laplacian raise no error, and
sparsity knows the structure (``unknown`` is empty).
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import torchlayers as tl
from tests.rules.opinfo.cases import Case, cases, full_name, ops

SAMPLES, MOST = 2, 400  # elements of a sample's inputs


def total(case: Case) -> Callable[..., Tensor]:
    """The sum of an operator's results, a real number."""

    def func(*inputs: Tensor) -> Tensor:
        torch.default_generator.manual_seed(0)
        results = [x for x in case.differentiable(*inputs) if x.numel()]
        parts = [torch.view_as_real(x) if x.is_complex() else x for x in results]
        return torch.stack([part.double().sum() for part in parts]).sum()

    return func


def by_jet(func: Callable[..., Tensor], inputs: list[Tensor]) -> bool:
    ones = [torch.ones_like(x) for x in inputs]
    tl.jet(func, tuple(inputs), tuple([one, one] for one in ones))
    return True


def by_laplacian(func: Callable[..., Tensor], inputs: list[Tensor]) -> bool:
    tl.laplacian(func, tuple(range(len(inputs))))(*inputs)
    return True


def by_sparsity(func: Callable[..., Tensor], inputs: list[Tensor]) -> bool:
    return not tl.sparsity(func, *inputs, argnums=tuple(range(len(inputs)))).unknown


TRANSFORMS = {"jet": by_jet, "laplacian": by_laplacian, "sparsity": by_sparsity}


def samples(op: Any) -> list[Case]:
    """Those with real inputs that are differentiable at all."""
    chosen = []
    for case in cases(op, torch.float64, 8):
        is_small = 0 < sum(x.numel() for x in case.inputs) <= MOST
        if not is_small or any(x.is_complex() for x in case.inputs):
            continue
        try:
            tl.grad(total(case), tuple(range(len(case.inputs))))(*case.inputs)
        except Exception:  # it has no gradient, whatever it raises
            continue
        chosen.append(case)
    return chosen[:SAMPLES]


def takes(transform: str, case: Case) -> bool:
    try:
        return TRANSFORMS[transform](total(case), case.inputs)
    except Exception:  # whatever a transform raises, it does not take the operator
        return False


def main() -> None:
    warnings.simplefilter("ignore")
    tried = 0
    refused: dict[str, list[str]] = {name: [] for name in TRANSFORMS}
    for op in ops(torch.float64):
        if not (chosen := samples(op)):
            continue
        tried += 1
        for transform in TRANSFORMS:
            if not all(takes(transform, case) for case in chosen):
                refused[transform].append(full_name(op))
    for transform, names in refused.items():
        print(f"{transform}: {tried - len(names)} of {tried}; not {', '.join(names) or 'one'}")


if __name__ == "__main__":
    main()
