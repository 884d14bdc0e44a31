"""eval_shape: the shapes of a function's results, without its values."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from torchlayers.compiler.capture.errors import ALTERNATIVES, NO_VALUES, name_of
from torchlayers.compiler.capture.record import record
from torchlayers.core import pytree
from torchlayers.core.errors import DataDependentError, TransformError
from torchlayers.core.function_checks import check_function
from torchlayers.core.tensors.shape_dtype import ShapeDtypeStruct, fake_tensors
from torchlayers.transforms.sparse.entries import SparseEntries


def eval_shape(f: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Returns the shapes, dtypes and devices of f's results, without computing them.

    f runs once on tensors without values, through whatever transforms, loops and branches are in
    it. No memory is used for its tensors, and nothing is written to them.

    Args:
        f: any function, method or module. Tensors that it captures are only looked at.
        args, kwargs: its arguments: pytrees of tensors, on any device including meta, or of
            :class:`ShapeDtypeStruct`, and of other values, which are passed as they are.
    Returns:
        f's result with a :class:`ShapeDtypeStruct` in place of each tensor.
    Raises:
        DataDependentError: f needs a Python value, or a shape, that depends on tensor data.
    Example:
        >>> x = torchlayers.ShapeDtypeStruct((500_000, 500_000), torch.float64)  # two terabytes
        >>> eval_shape(torchlayers.vmap(torchlayers.grad(torch.sum)), x).shape
        torch.Size([500000, 500000])

    Source: jax.eval_shape.
    """
    check_function("eval_shape", "f", f)
    shapes = []

    def without_results(*args: Any, **kwargs: Any) -> None:
        shapes.append(_structs_of(f(*args, **kwargs)))

    without_results.__name__ = name_of(f)
    args, kwargs = fake_tensors((args, kwargs))
    try:
        record(without_results, args, kwargs, guarded=True)
    except TransformError as error:
        text = str(error).replace(NO_VALUES, "but no values are computed.")
        if "torchlayers: compile:" not in text:
            raise
        kind = DataDependentError if isinstance(error, DataDependentError) else TransformError
        text = text.replace(ALTERNATIVES, "Use torch.where or torchlayers.cond for a branch.")
        raise kind(text.replace("compile:", "eval_shape:", 1)) from error
    return shapes[-1]


def _structs_of(result: Any) -> Any:
    def is_tensor(value: Any) -> bool:
        return isinstance(value, (Tensor, SparseEntries))

    def struct(leaf: Any) -> Any:
        return ShapeDtypeStruct.of(leaf) if is_tensor(leaf) else leaf

    return pytree.map_leaves(struct, result, is_leaf=is_tensor)
