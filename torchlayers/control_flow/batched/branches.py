"""Runs one of several functions for each sample; shared by cond and switch."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor

from torchlayers.control_flow.batched.samples import (
    SampleBatch,
    base_values,
    broadcast_flags,
    without_function_modes,
)
from torchlayers.control_flow.batched.subset_vmap import run_on_subset
from torchlayers.control_flow.checks import check_alike
from torchlayers.core import pytree
from torchlayers.random.seeded import BranchDraws

Strategy: TypeAlias = Literal["select", "gather"]
STRATEGIES = get_args(Strategy)


def run_branches(
    api: str,
    which: Tensor,
    batch: SampleBatch,
    branches: Sequence[tuple[str, Callable[..., Any]]],
    operands: Sequence[Any],
    batched: str,
) -> Any:
    """Runs each sample through the branch it takes.

    Args:
        api: the caller's name in error messages.
        which: the index of the branch that each sample takes, with all samples in one dimension.
        batch: the samples.
        branches: pairs of a name for error messages and a function.
        operands: the arguments of the branches.
        batched: ``"select"`` or ``"gather"``.
    """
    with without_function_modes():
        taken = [i for i, count in enumerate(base_values(which.bincount())) if count]
    if len(taken) <= 1:  # all samples take the same branch
        return run_single_branch(branches[taken[0] if taken else 0][1], operands)
    with without_function_modes(), BranchDraws() as draws:
        return _run_each(api, which, taken, batch, branches, operands, batched, draws)


def run_single_branch(branch: Callable[..., Any], operands: Sequence[Any]) -> Any:
    """Runs a branch that all samples take."""
    with BranchDraws() as draws:
        draws.start()
        return branch(*operands)


def _run_each(
    api: str,
    which: Tensor,
    taken: Sequence[int],
    batch: SampleBatch,
    branches: Sequence[tuple[str, Callable[..., Any]]],
    operands: Sequence[Any],
    batched: str,
    draws: BranchDraws,
) -> Any:
    name_of_first, spec = "", None
    rows: list[Any] = []
    order = []
    for i in taken:
        name, branch = branches[i]
        takes = which == i
        draws.start()
        if batched == "gather":
            index = takes.nonzero().squeeze(1)
            order.append(index)
            leaves, its_spec = run_on_subset(branch, operands, batch, index=index)
        else:
            leaves, its_spec = run_on_subset(branch, operands, batch, taken=takes)
        if spec is None:
            name_of_first, spec = name, its_spec
            rows = [[leaf] for leaf in leaves]
            continue
        first = [parts[0] for parts in rows]
        if its_spec != spec or [*map(_kind, leaves)] != [*map(_kind, first)]:
            check_alike(api, _sample(first, spec), name_of_first, _sample(leaves, its_spec), name)
        for parts, leaf in zip(rows, leaves, strict=True):
            if batched == "gather":
                parts.append(leaf)
            elif leaf is not None:
                parts[0] = torch.where(broadcast_flags(takes, leaf), leaf, parts[0])
    assert spec is not None
    if order:
        back = torch.cat(order).argsort()
        rows = [[parts[0] if parts[0] is None else torch.cat(parts)[back]] for parts in rows]
    return pytree.unflatten(
        [leaf if leaf is None else batch.rebatch(leaf) for (leaf,) in rows], spec
    )


def _kind(rows: Tensor | None) -> Any:
    return None if rows is None else (rows.dtype, rows.shape[1:])


def _sample(leaves: Sequence[Tensor | None], spec: pytree.TreeSpec) -> Any:
    """The result of one sample, for error messages."""
    return pytree.unflatten([rows if rows is None else rows[0] for rows in leaves], spec)
