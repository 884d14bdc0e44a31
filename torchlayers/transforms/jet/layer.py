"""The layer of jet: its tensors carry the coefficients of a truncated power series."""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from torchlayers import _C
from torchlayers.core import pytree
from torchlayers.transforms.jet import nested_jvp
from torchlayers.transforms.jet.series import Coefficient, Series, constant, fitted, plus
from torchlayers.transforms.layers.layer import Layer
from torchlayers.transforms.layers.layer_tensor import LayerTensor
from torchlayers.transforms.layers.operator_call import OperatorCall
from torchlayers.transforms.layers.operator_call import has_derivatives as has_derivatives

D = TypeVar("D", bound=Callable[..., Any])


class Jet(Layer):
    """Propagates power series through a function.

    The ``parts`` of a tensor are its coefficients 1 to ``order``, derivatives divided by
    factorials, as a tuple in which None is zero; or None for a constant.
    """

    name = "jet"

    def __init__(self, order: int) -> None:
        self.order = order

    def _new_half(self) -> _C.PythonLayer:
        return _C.JetLayer(self, self.name, self.order)

    def inputs(self, primals: Any, parts: Any) -> tuple[Any, dict[str, Any]]:
        """Takes the primals, and for each of their leaves its coefficients 1 to order."""
        leaves, spec = pytree.flatten(primals)
        wrapped = [
            self.result(leaf, coefficients)
            for leaf, coefficients in zip(leaves, parts, strict=True)
        ]
        return pytree.unflatten(wrapped, spec), {}

    def outputs(self, result: Any) -> tuple[Any, list[Any]]:
        """Returns the result's values, and for each of its leaves the coefficients, or None."""
        parts = [leaf.parts if self._owns(leaf) else None for leaf in pytree.leaves(result)]
        return super().outputs(result), parts

    def result(self, value: Tensor, coefficients: Sequence[Coefficient]) -> Tensor:
        """A tensor with these coefficients, 1 to order; a constant if all of them are None."""
        if all(c is None for c in coefficients) or not has_derivatives(value):
            return value
        parts = [None if c is None else fitted(c, value) for c in coefficients]
        return self.tensor(value, tuple(parts))

    def results(self, value: Any, series: Any) -> Any:
        """The results of an operator, one or several; the series of a constant may be None."""
        if isinstance(value, Tensor):
            is_constant = series is None or not has_derivatives(value)
            return self.result(value, [] if is_constant else [series[k] for k in self.orders])
        if value is None:  # a gradient that the caller does not want
            return None
        return tuple(
            self.results(*result_parts) for result_parts in zip(value, series, strict=True)
        )

    def joined(self, coefficients: Sequence[Coefficient]) -> Tensor:
        """A tensor with these coefficients, from 0 on, of the same shape and dtype."""
        value, *rest = coefficients
        for coefficient in rest:
            if coefficient is not None:
                return self.tensor(value, tuple(rest))
        return value  # type: ignore[no-any-return]

    @property
    def orders(self) -> range:
        return range(1, self.order + 1)

    def by_nested_jvps(self, op: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Differentiates the operator by nested jvps."""
        call = Call(self, op, args, kwargs)
        value = call.value
        if call.is_constant:
            return value
        places = [i for i, leaf in enumerate(pytree.leaves(value)) if has_derivatives(leaf)]
        if not places:
            return value

        def with_derivatives(*operands: Tensor) -> tuple[Tensor, ...]:
            results = pytree.leaves(call.on(operands))
            return tuple(results[i] for i in places)

        factorials = [math.factorial(n) for n in range(self.order + 1)]
        curves = [
            [None if x[n] is None else x[n] * factorials[n] for n in range(self.order + 1)]
            for x in call.series
        ]
        derivatives = nested_jvp.derivatives(with_derivatives, curves, self.order)
        leaves, spec = pytree.flatten(value)
        for j, i in enumerate(places):
            coefficients = [derivatives[n][j] / factorials[n] for n in self.orders]
            leaves[i] = self.result(leaves[i], coefficients)
        return pytree.unflatten(leaves, spec)


class Call(OperatorCall):
    """A call of an operator on tensors of the layer, by their series.

    Attributes:
        series: of the operands.
    """

    def __init__(
        self,
        layer: Jet,
        op: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        places: Sequence[int] | None = None,
    ) -> None:
        super().__init__(layer, op, args, kwargs, places)
        self.series = [series_of(x) for x in self.operands]

    @property
    def is_constant(self) -> bool:
        return all(x.is_constant for x in self.series)

    def as_series(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments, with a series for each tensor."""
        return self._filled(
            [series_of(x) if isinstance(x, LayerTensor) else x for x in self._leaves]
        )

    def jointly_linear(self, value: Any) -> Any:
        """The series of the results if the operator is linear in all operands together."""

        @functools.cache
        def at(k: int) -> Any:
            terms = [x[k] for x in self.series]
            if all(term is None for term in terms):
                return None
            pairs = zip(terms, self.series, strict=True)
            return self.on([torch.zeros_like(x[0]) if t is None else t for t, x in pairs])

        if isinstance(value, Tensor):
            return Series(at)
        return tuple(
            Series(lambda k, i=i: None if at(k) is None else at(k)[i])  # type: ignore[misc]
            for i in range(len(value))
        )

    def multilinear(self) -> Series:
        """The series of the result if the operator is linear in each operand."""

        def compute(k: int) -> Coefficient:
            total = None
            for orders in itertools.product(range(k + 1), repeat=len(self.series) - 1):
                if sum(orders) > k:
                    continue
                pairs = zip(self.series, (*orders, k - sum(orders)), strict=True)
                terms = [x[i] for x, i in pairs]
                if not any(term is None for term in terms):
                    total = plus(total, self.on(terms))
            return total

        return Series(compute)


def in_cpp(step: str) -> Callable[[D], D]:
    """Decorator of a rule that C++ carries out for most calls (csrc/layers/taylor.h), for all
    coefficients in one step. What it declines comes here: lists of tensors and several results."""

    def mark(rule: D) -> D:
        rule._torchlayers_step = step  # type: ignore[attr-defined]
        return rule

    return mark


def rule(*ops: Any, step: str = "") -> Callable[[D], D]:
    """Decorator that registers a rule written with series.

    Args:
        ops: as for :meth:`Layer.rule`.
        step: as for :func:`in_cpp`.
    Returns:
        A decorator of ``define(value, *args, **kwargs)``, which gets the operator's result on the
        values, and its arguments with a :class:`Series` for each tensor, and returns the series of
        the result: for several results a tuple of them, with None for a constant. It may return
        NotImplemented, for nested jvps.
    """

    def register(define: D) -> D:
        @functools.wraps(define)
        def run(layer: Jet, op: Any, *args: Any, **kwargs: Any) -> Any:
            call = Call(layer, op, args, kwargs)
            value = call.value
            if call.is_constant:
                return value
            series_args, named = call.as_series()
            series = define(value, *series_args, **named)
            if series is NotImplemented:
                return layer.by_nested_jvps(op, *args, **kwargs)
            return layer.results(value, series)

        Jet.rule(*ops)(in_cpp(step)(run))
        return define

    return register


def known(tensor: LayerTensor) -> list[Coefficient]:
    """All coefficients of a tensor that is not a constant."""
    return [tensor.value, *tensor.parts]


def series_of(tensor: LayerTensor) -> Series:
    if tensor.parts is None:
        return constant(tensor.value)
    return Series(lambda k: tensor.parts[k - 1], tensor.value)
