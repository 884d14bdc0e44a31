"""switch: calls one of several functions, chosen by its index."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from typing_extensions import Unpack

from torchlayers.control_flow import all_paths
from torchlayers.control_flow.batched import branches as sides
from torchlayers.control_flow.batched.samples import (
    base_values,
    batch_of,
    unbatch_all,
    without_function_modes,
)
from torchlayers.control_flow.checks import check_choice
from torchlayers.control_flow.traced import dispatch
from torchlayers.core import tracing_state, varying_values
from torchlayers.core.annotations import Ins, R
from torchlayers.core.errors import TransformError
from torchlayers.core.function_checks import check_function
from torchlayers.remat.ambient_state import apply_view_modes


@tracing_state.uncompiled
def switch(
    index: int | Tensor,
    branches: Sequence[Callable[[Unpack[Ins]], R]],
    *operands: Unpack[Ins],
    batched: sides.Strategy = "select",
) -> R:
    """Returns ``branches[index](*operands)``, where the index may be batched.

    Args:
        index: an int, or an integer tensor that holds one. It is clamped to the valid range.
        branches: functions of the operands, as those of :func:`cond`.
        operands: any pytrees.
        batched: ``"select"`` or ``"gather"``, as for :func:`cond`.
    Returns:
        The result of the chosen function.
    Raises:
        TransformError: the index is not one integer, there are no branches, or one is not callable.
        StructureError: the branches return different structures, shapes or dtypes.
    Example:
        >>> powers = [torch.ones_like, lambda x: x, torch.square]
        >>> def power(i, x):
        ...     return torchlayers.switch(i, powers, x)
        >>> torchlayers.vmap(power, in_dims=(0, None))(torch.arange(4), torch.tensor(3.0))
        tensor([1., 3., 9., 9.])

    Source: jax.lax.switch.
    """
    check_choice("switch", "batched", batched, sides.STRATEGIES)
    functions = tuple(branches)
    if not functions:
        raise TransformError("torchlayers: switch: there are no branches.")
    for i, branch in enumerate(functions):
        check_function("switch", f"branches[{i}]", branch)
    if isinstance(index, int):
        return sides.run_single_branch(functions[min(max(index, 0), len(functions) - 1)], operands)
    _check_index(index)
    if tracing_state.is_tracing():
        if tracing_state.is_inside("Grad", "Jvp"):
            return _switch_uncompiled(index, functions, *operands, batched=batched)
        return dispatch.switch(index.reshape(()), functions, operands)
    index = cast(Tensor, apply_view_modes(index.reshape(())))
    if dispatch.is_recorded(index):
        return dispatch.switch(index, functions, operands)
    named = [(f"branches[{i}]", branch) for i, branch in enumerate(functions)]
    if varying_values.varies(index):
        return all_paths.choose("switch", index.clamp(0, len(functions) - 1), named, operands)
    values, levels = unbatch_all(index)
    with without_function_modes():
        which = values.clamp(0, len(functions) - 1).long().flatten()
    if not levels:
        return sides.run_single_branch(functions[base_values(which)[0]], operands)
    batch = batch_of(index, values, levels)
    return sides.run_branches("switch", which, batch, named, operands, batched)


def _check_index(index: Any) -> None:
    if not isinstance(index, Tensor):
        got = type(index).__name__
    elif index.dtype == torch.bool or index.is_floating_point() or index.is_complex():
        got = f"a tensor of dtype {index.dtype}"
    elif index.numel() != 1:
        got = f"a tensor of shape {tuple(index.shape)}"
    else:
        return
    raise TransformError(
        f"torchlayers: switch: index must be an int or a tensor that holds one integer, got {got}."
    )


# NOTE [Control flow in transforms that Dynamo traces]
_switch_uncompiled = tracing_state.skipped_while_tracing(
    switch,
    "torchlayers: torch.compile can't trace a switch inside a transform (grad or jvp). Leave out "
    "fullgraph=True: the transform then runs uncompiled; or compile it with torchlayers.compile, "
    "which captures both.",
)
