"""Checks and conversions of arguments, shared by the samplers."""

import functools
import importlib
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from torchlayers.core.device import is_on_host
from torchlayers.core.errors import TransformError
from torchlayers.distributed import dtensor

Shape: TypeAlias = int | Sequence[int]
Number: TypeAlias = float | Tensor

_ops: Any = torch.ops.torchlayers


def check_key(api: str, key: Any) -> None:
    if isinstance(key, Tensor) and key.dtype == torch.int64 and key.dim() == 0:
        return
    if not isinstance(key, Tensor):
        got = type(key).__name__
        advice = "Create one from an int with torchlayers.random.key."
    elif key.dtype != torch.int64:
        got = f"a tensor of {key.dtype}"
        advice = "Create one from an int with torchlayers.random.key."
    else:
        got = f"a tensor of {key.numel()} keys, of shape {tuple(key.shape)}"
        advice = "To draw with each of several keys, use torchlayers.vmap."
    raise TransformError(
        f"torchlayers: {api}: a key must be an int64 tensor without dimensions, got {got}. {advice}"
    )


def operator_for(name: str, key: Tensor) -> Any:
    """Returns the operator, or when compiling for a device its decomposition, if it has one: a
    compiler fuses that into one kernel."""
    if torch.compiler.is_compiling():
        of_tensors = f"{name}_of_tensors"
        name = of_tensors if not is_on_host(key) and hasattr(_ops, of_tensors) else name
    elif dtensor.is_dtensor_below(key):
        importlib.import_module("torchlayers.random.sharding")
    return getattr(_ops, name)


def drawn(
    numbers: str, api: str, key: Tensor, shape: Shape, dtype: torch.dtype | None, *use: int
) -> Tensor:
    """Draws bits, or uniform or normal numbers; a dtype of None means torch's default dtype."""
    check_key(f"random.{api}", key)
    dtype = torch.get_default_dtype() if dtype is None else dtype
    result: Tensor = operator_for(f"random_{numbers}", key)(key, as_tuple(shape), dtype, *use)
    return result


def as_tuple(shape: Shape) -> tuple[int, ...]:
    sizes = tuple(shape) if isinstance(shape, Sequence) else (shape,)
    if any(isinstance(size, float) or size < 0 for size in sizes):
        raise TransformError(
            f"torchlayers: random: a shape is an int or ints, none of them negative, got {shape!r}."
        )
    return sizes


def shape_of(api: str, shape: Shape | None, *parameters: Number) -> tuple[int, ...]:
    """Returns the result's shape: the given one, or the broadcast shape of the parameters."""
    if shape is not None:
        return as_tuple(shape)
    shapes = [parameter.shape for parameter in parameters if isinstance(parameter, Tensor)]
    try:
        return broadcast(shapes)
    except RuntimeError as error:
        raise TransformError(
            f"torchlayers: random.{api}: the parameters' shapes don't broadcast: "
            f"{', '.join(str(tuple(parameter_shape)) for parameter_shape in shapes)}."
        ) from error


def broadcast(shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
    return tuple(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]


def expanded(api: str, name: str, parameter: Tensor, shape: Sequence[int]) -> Tensor:
    try:
        return parameter.expand(tuple(shape))
    except RuntimeError as error:
        raise TransformError(
            f"torchlayers: random.{api}: {name} of shape {tuple(parameter.shape)} does not "
            f"broadcast to the shape {tuple(shape)}."
        ) from error


def like(api: str, numbers: Tensor, **parameters: Number) -> list[Tensor]:
    """Converts the parameters to tensors with the dtype, device and shape of the numbers."""
    return [
        expanded(
            api,
            name,
            torch.as_tensor(parameter, dtype=numbers.dtype, device=numbers.device),
            numbers.shape,
        )
        for name, parameter in parameters.items()
    ]


def dtype_of(dtype: torch.dtype | None, *parameters: Number) -> torch.dtype:
    """Returns the dtype of numbers: that of floating-point parameters if None is requested."""
    if dtype is not None:
        return dtype
    dtypes = [x.dtype for x in parameters if isinstance(x, Tensor) and x.is_floating_point()]
    return functools.reduce(torch.promote_types, dtypes) if dtypes else torch.get_default_dtype()


def of_shape(api: str, result: Tensor, shape: Shape) -> Tensor:
    if tuple(result.shape) != as_tuple(shape):
        raise TransformError(
            f"torchlayers: random.{api}: the parameters broadcast to {tuple(result.shape)}, not to "
            f"the shape {as_tuple(shape)}."
        )
    return result
