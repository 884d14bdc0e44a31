"""cond: one of two functions, as a predicate says."""

from collections.abc import Callable
from typing import Any, cast

from torch import Tensor

from torchlayers.control_flow.batched import branches
from torchlayers.control_flow.batched.samples import batch_of, in_sight, numbers, quietly
from torchlayers.control_flow.checks import check_choice, check_function, check_predicate
from torchlayers.control_flow.traced import dispatch
from torchlayers.core import tracing_state
from torchlayers.remat.ambient_state import seen


def cond(
    pred: bool | Tensor,
    true_fn: Callable[..., Any],
    false_fn: Callable[..., Any],
    *operands: Any,
    batched: str = "select",
) -> Any:
    """true_fn(*operands) where pred holds, else false_fn(*operands).

    Where all samples of a batch agree, or there is no batch, only the function that is taken runs,
    and this is Python's ``if``. Where they differ, both run under vmap, and each sample has the
    value and the derivatives of the one that it takes. docs/control-flow.md tells how.

    Args:
        pred: a bool, or a tensor that holds one.
        true_fn: takes the operands; may capture tensors. Like false_fn it returns a tensor or a
            pytree, both of one structure, shapes and dtypes. Neither writes to what is not its own.
        false_fn: likewise.
        operands: any pytrees.
        batched: what to do where samples differ. ``"select"``: run both on all samples, and choose.
            Samples that don't take a function run as one that does, so that it never meets what it
            is not meant for. ``"gather"``: run each on the samples that take it, and put the
            results together again; for functions that are dear, or rarely taken.
    Returns:
        What the function returned.
    Raises:
        TransformError: pred is not one bool, a branch can't be called, or writes to a batched
            tensor from outside it.
        StructureError: the functions return different structures, shapes or dtypes.
    Example:
        >>> def root(x):
        ...     return torchlayers.cond(x > 0, torch.sqrt, torch.zeros_like, x)
        >>> torchlayers.vmap(torchlayers.grad(root))(torch.tensor([-1.0, 0.0, 4.0]))
        tensor([0.0000, 0.0000, 0.2500])

    Source: jax.lax.cond, torch.cond.
    """
    check_choice("cond", "batched", batched, branches.WAYS)
    if tracing_state.is_tracing():
        return dispatch.cond(pred, true_fn, false_fn, operands)
    check_function("cond", "true_fn", true_fn)
    check_function("cond", "false_fn", false_fn)
    check_predicate("cond", "pred", pred)
    if isinstance(pred, bool):
        return branches.run_one(true_fn if pred else false_fn, operands)
    pred = cast(Tensor, seen(pred.reshape(())))
    if dispatch.is_recorded(pred):
        return dispatch.cond(pred, true_fn, false_fn, operands)
    values, levels = in_sight(pred)
    if not levels:
        return branches.run_one(true_fn if numbers(values) else false_fn, operands)
    functions = (("false_fn", false_fn), ("true_fn", true_fn))
    with quietly():
        which = values.flatten().long()
    return branches.run("cond", which, batch_of(pred, values, levels), functions, operands, batched)
