"""Control flow in a recording, where a predicate has no value yet."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensor

from torchlayers.errors import DataDependentError, location


def is_recorded(values: Tensor) -> bool:
    """Whether there are no values, as tensors without data stand in for those of later calls."""
    return isinstance(values, FakeTensor)


def cond(
    pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Any
) -> Any:
    return torch.cond(pred, true_fn, false_fn, operands)


def refuse(api: str) -> None:
    raise DataDependentError(
        f"torchlayers: compile: {api} is decided by the value of a tensor, and what is compiled is "
        f"recorded before there is one.{location()} Use torchlayers.cond, name an argument that "
        "decides in static_argnums, or leave that part outside."
    )
