"""op_db's samples as functions of their differentiable tensors."""

import itertools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.testing._internal import common_utils
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo import core
from torch.utils import _pytree as pytree

# Real low-precision dtypes, in which rounding is visible.
LOW = (torch.float32, torch.bfloat16, torch.float16)


@dataclass
class Case:
    """One sample of one operator: ``func(*inputs)`` calls it on the differentiable tensors."""

    func: Callable[..., Any]
    inputs: list[Tensor]

    def scalar(self, *inputs: Tensor) -> Tensor:
        """The sum of all floating-point and complex results, as one real number."""
        total: Any = 0
        for leaf in self.differentiable(*inputs):
            total = total + (leaf.abs() if leaf.is_complex() else leaf).sum()
        return total

    def differentiable(self, *inputs: Tensor) -> list[Tensor]:
        """The results that have derivatives, as dense tensors."""
        return [
            leaf if leaf.layout is torch.strided else leaf.to_dense()
            for leaf in pytree.tree_leaves(self.func(*inputs))
            if isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex())
        ]

    def batched(self, dim: int = 0) -> list[Tensor]:
        """Each input stacked with a slightly different copy, along `dim`."""
        return [torch.stack([x, x * 0.9], dim=dim) for x in self.inputs]

    def in_double(self) -> "Case":
        """The same case in double precision, with the tangents of this one."""
        wide = {dtype: torch.float64 for dtype in LOW} | {torch.complex64: torch.complex128}
        return Widened(self.func, [x.to(wide.get(x.dtype, x.dtype)) for x in self.inputs], self)

    def tangents(self) -> list[Tensor]:
        generator = torch.Generator().manual_seed(7)
        return [
            torch.randn(x.shape, generator=generator, dtype=x.dtype)
            if x.dtype != torch.bfloat16
            else torch.randn(x.shape, generator=generator).to(x.dtype)
            for x in self.inputs
        ]


@dataclass
class Widened(Case):
    """A case in double precision, made from a lower-precision one."""

    narrow: Case

    def tangents(self) -> list[Tensor]:
        pairs = zip(self.narrow.tangents(), self.inputs, strict=True)
        return [t.to(x.dtype) for t, x in pairs]


def full_name(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def ops(dtype: torch.dtype) -> list[Any]:
    """The operators of op_db that can be differentiated and have samples of this dtype."""
    return [op for op in op_db if op.supports_autograd and dtype in op.supported_dtypes("cpu")]


def cases(op: Any, dtype: torch.dtype, limit: int | None) -> list[Case]:
    """The operator's samples, each with its differentiable tensors as inputs."""
    torch.manual_seed(0)
    # torch searches the stack for a unittest test, which takes long under pytest.
    unfound = [mock.patch.object(m, "extract_test_fn", lambda: None) for m in (common_utils, core)]
    device = torch.empty(0).device  # of this test run
    with warnings.catch_warnings(), unfound[0], unfound[1], torch.device("cpu"):
        warnings.simplefilter("ignore")
        samples = op.sample_inputs("cpu", dtype, requires_grad=False)
        found = (case for sample in samples if (case := _case(op, sample, device)))
        return list(itertools.islice(found, limit))


def _case(op: Any, sample: Any, device: torch.device) -> Case | None:
    leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    leaves = [leaf.to(device) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    places = [
        i
        for i, leaf in enumerate(leaves)
        if isinstance(leaf, Tensor)
        and (leaf.is_floating_point() or leaf.is_complex())
        and leaf.layout == torch.strided
    ]
    if not places:
        return None

    def func(*inputs: Tensor) -> Any:
        filled = list(leaves)
        for place, value in zip(places, inputs, strict=True):
            filled[place] = value
        head, args, kwargs = pytree.tree_unflatten(filled, spec)
        return op.op(head, *args, **kwargs)

    return Case(func, [leaves[i].detach().clone() for i in places])
