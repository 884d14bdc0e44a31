"""Decompositions to core ATen operators, beyond torch's, and to those that ONNX has."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchlayers.compiler.exported.convolutions import convolution, convolution_backward
from torchlayers.compiler.exported.keyed_numbers import normal
from torchlayers.compiler.exported.linear_algebra import (
    cholesky,
    determinant,
    inverse,
    linear_solve,
    solve_again,
    triangular_solve,
)
from torchlayers.core.operators import aten


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Returns torch's decompositions to core ATen operators, with ours."""
    table: dict[Any, Callable[..., Any]] = dict(
        torch.export.default_decompositions().items()  # type: ignore[no-untyped-call]
    )
    return {**table, **_CORE}


def native_decompositions() -> dict[Any, Callable[..., Any]]:
    """Returns decompositions of operators that AOTInductor lacks, or gets wrong."""
    return {
        **_CORE,
        _keyed.random_normal.default: _keyed.random_normal_of_tensors,
        aten.convolution.default: _of_dynamic_groups(convolution, place=8),
        aten.convolution_backward.default: _of_dynamic_groups(convolution_backward, place=9),
    }


def _of_dynamic_groups(function: Callable[..., Any], place: int) -> Callable[..., Any]:
    def decomposed(*args: Any) -> Any:
        return function(*args) if isinstance(args[place], torch.SymInt) else NotImplemented

    return decomposed


def onnx_decompositions() -> dict[Any, Callable[..., Any]]:
    """Returns decompositions of core ATen operators that torch.onnx or onnxruntime lacks."""
    return {**decompositions(), **_ONNX}


def _zeros_as(x: Tensor, other: Tensor, *, self_num_batch_dims: int = 0) -> Tensor:
    return x.new_zeros((*x.shape[:self_num_batch_dims], *other.shape))


def _of_float64(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Any]:
    """onnxruntime has some functions of float32 alone."""

    def decomposed(x: Tensor) -> Any:
        return function(x) if x.dtype is torch.float64 else NotImplemented

    return decomposed


def _leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Any:
    if x.dtype is not torch.float64:  # ONNX has the slope as a float32
        return NotImplemented
    return torch.where(x > 0, x, x * negative_slope)


_keyed: Any = torch.ops.torchlayers

_CORE: dict[Any, Callable[..., Any]] = {
    aten._new_zeros_with_same_feature_meta.default: _zeros_as,
    _keyed.random_bits.default: _keyed.random_bits_of_tensors,
    _keyed.random_fold_in.default: _keyed.random_fold_in_of_tensors,
    _keyed.random_normal.default: normal,
    _keyed.random_uniform.default: _keyed.random_uniform_of_tensors,
}
_ONNX: dict[Any, Callable[..., Any]] = {
    aten._linalg_det.default: determinant,
    aten._linalg_solve_ex.default: linear_solve,
    aten.cosh.default: _of_float64(lambda x: (x.exp() + (-x).exp()) / 2),
    aten.sinh.default: _of_float64(lambda x: (x.expm1() - (-x).expm1()) / 2),
    aten.tan.default: _of_float64(lambda x: x.sin() / x.cos()),
    aten.convolution.default: convolution,
    aten.convolution_backward.default: convolution_backward,
    aten.leaky_relu.default: _leaky_relu,
    aten.linalg_cholesky_ex.default: cholesky,
    aten.linalg_inv_ex.default: inverse,
    aten.linalg_lu_solve.default: solve_again,
    aten.linalg_solve_triangular.default: triangular_solve,
}
