"""cond: calls one of two functions, chosen by a predicate."""

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor
from typing_extensions import Unpack

from torchlayers.control_flow import all_paths
from torchlayers.control_flow.batched import branches
from torchlayers.control_flow.batched.samples import (
    base_values,
    batch_of,
    unbatch_all,
    without_function_modes,
)
from torchlayers.control_flow.checks import check_choice, check_predicate
from torchlayers.control_flow.traced import dispatch
from torchlayers.core import tracing_state, varying_values
from torchlayers.core.annotations import Ins, R
from torchlayers.core.function_checks import check_function
from torchlayers.remat.ambient_state import apply_view_modes


@tracing_state.uncompiled
def cond(
    pred: bool | Tensor,
    true_fn: Callable[[Unpack[Ins]], R],
    false_fn: Callable[[Unpack[Ins]], R],
    *operands: Unpack[Ins],
    batched: branches.Strategy = "select",
) -> R:
    """Returns true_fn(*operands) if pred is true, else false_fn(*operands).

    Without a batch, or if all samples of the batch agree, only the chosen function runs, as in
    Python's ``if``. If samples differ, both run under vmap, and each sample gets the value and
    derivatives of its own branch. docs/control-flow.md explains how.

    Args:
        pred: a bool, or a tensor that holds one.
        true_fn: takes the operands; may capture tensors. Both functions return a tensor or a
            pytree, with the same structure, shapes and dtypes, and neither writes to tensors
            that it did not create.
        false_fn: likewise.
        operands: any pytrees.
        batched: what to do if samples differ. ``"select"``: run both functions on all samples and
            select. In each function, samples that take the other branch are replaced by one that
            takes this one, so that a function never sees inputs outside its domain. ``"gather"``:
            run each function only on the samples that take it, and reassemble the results; for
            functions that are expensive or rarely taken.
    Returns:
        The result of the chosen function.
    Raises:
        TransformError: pred is not one bool, or a branch is not callable or writes to a batched
            tensor from outside it.
        StructureError: the functions return different structures, shapes or dtypes.
    Example:
        >>> def root(x):
        ...     return torchlayers.cond(x > 0, torch.sqrt, torch.zeros_like, x)
        >>> torchlayers.vmap(torchlayers.grad(root))(torch.tensor([-1.0, 0.0, 4.0]))
        tensor([0.0000, 0.0000, 0.2500])

    Source: jax.lax.cond, torch.cond.
    """
    check_choice("cond", "batched", batched, branches.STRATEGIES)
    if tracing_state.is_tracing():
        if tracing_state.is_inside("Grad", "Jvp"):
            return _cond_uncompiled(pred, true_fn, false_fn, *operands, batched=batched)
        return dispatch.cond(pred, true_fn, false_fn, operands)
    check_function("cond", "true_fn", true_fn)
    check_function("cond", "false_fn", false_fn)
    check_predicate("cond", "pred", pred)
    if isinstance(pred, bool):
        return branches.run_single_branch(true_fn if pred else false_fn, operands)
    pred = cast(Tensor, apply_view_modes(pred.reshape(())))
    if dispatch.is_recorded(pred):
        return dispatch.cond(pred, true_fn, false_fn, operands)
    if varying_values.varies(pred):
        both = (("false_fn", false_fn), ("true_fn", true_fn))
        return all_paths.choose("cond", pred.to(torch.int64), both, operands)
    values, levels = unbatch_all(pred)
    if not levels:
        return branches.run_single_branch(true_fn if base_values(values) else false_fn, operands)
    functions = (("false_fn", false_fn), ("true_fn", true_fn))
    with without_function_modes():
        which = values.flatten().long()
    return branches.run_branches(
        "cond", which, batch_of(pred, values, levels), functions, operands, batched
    )


# NOTE [Control flow in transforms that Dynamo traces]
# Dynamo can't trace torch.cond inside torch.func's grad and jvp, nor torch.while_loop inside any
# (torch 2.13: "Expected FakeTensor"). There it skips ours, and so the transform around it: NOTE
# [Graph breaks inside transforms].
_cond_uncompiled = tracing_state.skipped_while_tracing(
    cond,
    "torchlayers: torch.compile can't trace a cond inside a transform (grad or jvp). Leave out "
    "fullgraph=True: the transform then runs uncompiled; or compile it with torchlayers.compile, "
    "which captures both.",
)
