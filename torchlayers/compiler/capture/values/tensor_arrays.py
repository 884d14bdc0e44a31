"""Arrays of NumPy that a function makes of tensors, to put them into arrays of its own."""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchlayers.compiler.capture.values.traced_numbers import HostArray, UnknownArrayUseError

_FLOATS = {torch.float32, torch.float64}


class TensorArray:
    """Stands for the array of ``x.numpy()``, which may only be put into another array.

    It has the arithmetic that NumPy and torch round alike.
    """

    __slots__ = ("tensor",)
    __array_ufunc__ = None  # NumPy leaves operators to this class

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def compute(self, func: Callable[..., Any], one: Any, other: Any) -> Any:
        values = [_tensor_in(operand) for operand in (one, other)]
        tensors = [operand for operand in values if isinstance(operand, Tensor)]
        dtypes = {x.dtype for x in tensors}
        are_known = len(tensors) == 2 or float in map(type, values)
        if (
            not are_known
            or len(dtypes) > 1
            or not dtypes <= _FLOATS
            or not all(map(Tensor.dim, tensors))
        ):
            raise UnknownArrayUseError
        return TensorArray(func(*values))


def _tensor_in(value: Any) -> Any:
    """Returns the tensor of an array, and anything else as it is."""
    if type(value) is TensorArray:
        return value.tensor
    return value.tensor() if type(value) is HostArray else value


def _of_arrays(func: Callable[..., Any], is_reflected: bool = False) -> Callable[..., Any]:
    def method(one: TensorArray, other: Any) -> Any:
        return one.compute(func, other, one) if is_reflected else one.compute(func, one, other)

    return method


for _name in ("add", "sub", "mul", "truediv"):
    setattr(TensorArray, f"__{_name}__", _of_arrays(getattr(operator, _name)))
    setattr(TensorArray, f"__r{_name}__", _of_arrays(getattr(operator, _name), is_reflected=True))
