"""Control flow in a recording, where a predicate has no value yet."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensor


def is_recorded(values: Tensor) -> bool:
    return isinstance(values, FakeTensor)


def cond(
    pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Any
) -> Any:
    return torch.cond(pred, true_fn, false_fn, operands)


def switch(index: Tensor, branches: Sequence[Callable[..., Any]], operands: Any) -> Any:
    raise NotImplementedError


def while_loop(cond_fn: Callable[..., Any], body_fn: Callable[..., Any], init: Any) -> Any:
    raise NotImplementedError
