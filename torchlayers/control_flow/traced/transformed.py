"""Transforms of a function of tensors that layer rules share: jvp, vjp, and batching."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchlayers import _C
from torchlayers.autograd_function.batching import add_batch_dims, remove_batch_dims
from torchlayers.control_flow.batched.samples import broadcast_flags
from torchlayers.fx.debug_ops import muted, taking
from torchlayers.transforms.jvp import jvp
from torchlayers.transforms.vjp import vjp

Tensors = Sequence[Tensor]
# Takes a list of tensors, which it does not mutate.
OnTensors = Callable[[Tensors], list[Tensor]]


def differentiable(x: Any) -> bool:
    return isinstance(x, Tensor) and (x.is_floating_point() or x.is_complex())


def differentiable_positions(wanted: Iterable[Any], tensors: Tensors) -> list[int]:
    """Returns the indices of the tensors that are wanted and can have a derivative."""
    pairs = zip(wanted, tensors, strict=True)
    return [i for i, (is_wanted, x) in enumerate(pairs) if is_wanted and differentiable(x)]


def or_zeros(
    derivatives: Sequence[Tensor | None], places: Sequence[int], tensors: Tensors
) -> list[Tensor]:
    """Returns the derivatives at these places, and zeros like the tensors where one is absent."""
    pairs = [(derivatives[i], tensors[i]) for i in places]
    return [torch.zeros_like(x) if derivative is None else derivative for derivative, x in pairs]


def jvp_of(
    func: OnTensors, tensors: Tensors, places: Sequence[int], tangents: Tensors
) -> tuple[list[Tensor], list[Tensor]]:
    """Returns func's results, and the tangents of the differentiable ones.

    Args:
        places: the indices of the tensors that the tangents belong to.
    """
    if not places:
        results = func(tensors)
        return results, [torch.zeros_like(x) for x in results if differentiable(x)]
    order: list[bool] = []

    def noted(*some: Tensor) -> Any:
        outputs = func(_with(tensors, places, some))
        order[:] = map(differentiable, outputs)
        return [x for x in outputs if differentiable(x)], [
            x for x in outputs if not differentiable(x)
        ]

    with muted():
        values, outputs, others = jvp(
            noted, tuple(tensors[i] for i in places), tuple(tangents), has_aux=True
        )
    value, other = iter(values), iter(others)
    return [next(value if is_differentiable else other) for is_differentiable in order], outputs


def vjp_of(
    func: OnTensors, tensors: Tensors, places: Sequence[int], cotangents: Tensors
) -> list[Tensor]:
    """Returns cotangents of tensors[places], given those of func's differentiable results."""

    def floats(*some: Tensor) -> list[Tensor]:
        return [x for x in func(_with(tensors, places, some)) if differentiable(x)]

    if not places or not cotangents:
        return [torch.zeros_like(tensors[i]) for i in places]
    with muted():
        _, pull = vjp(floats, *(tensors[i] for i in places))
    return [*pull([*cotangents])]


def _with(tensors: Tensors, places: Sequence[int], some: Tensors) -> list[Tensor]:
    changed = [*tensors]
    for i, x in zip(places, some, strict=True):
        changed[i] = x
    return changed


class VmappedFunction:
    """Runs functions on all samples of a vmap.

    Args:
        info: the vmap's info: batch size and randomness.
        is_batched: whether each tensor is batched, along its first dimension.
        taken: whether each sample takes the functions; None if all do. Others have stand-ins, which
            torchlayers.debug does not print.
    """

    def __init__(self, info: Any, is_batched: Sequence[bool], taken: Tensor | None = None) -> None:
        self.info = info
        self.is_batched = is_batched
        self.taken = taken

    def run(self, func: OnTensors, tensors: Tensors) -> tuple[list[Tensor], list[bool]]:
        """Returns the function's results, batch dimensions first, and which of them are batched."""
        dims = [0 if is_one_batched else None for is_one_batched in self.is_batched]
        entry = _C.vmap_entry(self.info.batch_size, self.info.randomness)
        with entry as level, taking(level, self.info.batch_size, self.taken):
            outputs, out_dims = remove_batch_dims(func(add_batch_dims(tensors, dims)), level)
        return move_batch_first(outputs, out_dims), [dim is not None for dim in out_dims]

    def rows(self, func: OnTensors, tensors: Tensors, wanted: Sequence[bool]) -> list[Tensor]:
        """Returns the function's results; the wanted ones always have a batch dimension."""
        return self.spread(*self.run(func, tensors), wanted)

    def spread(self, tensors: Tensors, has: Sequence[bool], wanted: Sequence[bool]) -> list[Tensor]:
        """Gives the tensors a batch dimension where it is wanted and they do not have it."""
        return [
            x.expand(self.info.batch_size, *x.shape) if is_wanted and not its else x
            for x, its, is_wanted in zip(tensors, has, wanted, strict=False)
        ]


def move_batch_first(values: Tensors, dims: Sequence[int | None]) -> list[Tensor]:
    """Moves the batch dimensions of the values, if any, to the front."""
    return [
        x if dim in (None, 0) else x.movedim(dim, 0) for x, dim in zip(values, dims, strict=True)
    ]


def with_stand_ins(rows: Tensor, taken: Tensor) -> Tensor:
    """Replaces samples that are not taken by the detached values of the first one taken."""
    first = taken.to(torch.uint8).argmax().reshape(1)
    return torch.where(broadcast_flags(taken, rows), rows, rows.index_select(0, first).detach())
