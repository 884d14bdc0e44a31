"""Copies of tensors by an operator, where their memory can't be copied."""

import copy
from collections.abc import Callable
from typing import Any


def deepcopy_by_clone(
    self: Any, memo: Any, clone: Callable[[Any], Any] = lambda tensor: tensor.clone()
) -> Any:
    """Does what ``Tensor.__deepcopy__`` does by an operator, which does not touch the memory."""
    if id(self) not in memo:
        memo[id(self)] = clone(self)
        memo[id(self)].__dict__.update(copy.deepcopy(self.__dict__, memo))
    return memo[id(self)]
