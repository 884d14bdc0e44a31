"""The outputs that a Jacobian is taken of."""

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor


def with_dense_outputs(func: Callable[..., Any], has_aux: bool) -> Callable[..., Any]:
    """Makes func return dense matrices instead of sparse ones, whose elements have no pattern."""

    @functools.wraps(func, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        result = func(*args, **kwargs)
        if isinstance(result, Tensor):
            return result
        from torchlayers.transforms.sparse.entries import dense  # which imports this room

        if has_aux and isinstance(result, tuple) and len(result) == 2:
            return dense(result[0]), result[1]
        return dense(result)

    return call
