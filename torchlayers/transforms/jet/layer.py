"""The layer of jet: its tensors carry the coefficients of a truncated power series."""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from torchlayers.core import pytree
from torchlayers.core.operator_schema import schema_of
from torchlayers.transforms.jet import nested_jvp
from torchlayers.transforms.jet.series import Coefficient, Series, constant, fitted, plus
from torchlayers.transforms.layers.layer import Layer
from torchlayers.transforms.layers.layer_tensor import LayerTensor

D = TypeVar("D", bound=Callable[..., Any])


class Jet(Layer):
    """Propagates power series through a function.

    The ``parts`` of a tensor are its coefficients 1 to ``order``, derivatives divided by
    factorials, as a tuple in which None is zero; or None for a constant.
    """

    name = "jet"

    def __init__(self, order: int) -> None:
        self.order = order

    def inputs(self, primals: Any, parts: Any) -> tuple[Any, dict[str, Any]]:
        """Takes the primals, and for each of their leaves its coefficients 1 to order."""
        leaves, spec = pytree.flatten(primals)
        wrapped = [self.result(leaf, own) for leaf, own in zip(leaves, parts, strict=True)]
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
        return tuple(self.results(*each) for each in zip(value, series, strict=True))

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
        value = call.value()
        if call.is_constant:
            return value
        places = [i for i, each in enumerate(pytree.leaves(value)) if has_derivatives(each)]
        if not places:
            return value

        def with_derivatives(*operands: Tensor) -> tuple[Tensor, ...]:
            results = pytree.leaves(call.on(operands))
            return tuple(results[i] for i in places)

        factorials = [math.factorial(n) for n in range(self.order + 1)]
        curves = [
            [None if x[n] is None else x[n] * factorials[n] for n in range(self.order + 1)]
            for x in call.operands
        ]
        derivatives = nested_jvp.derivatives(with_derivatives, curves, self.order)
        leaves, spec = pytree.flatten(value)
        for j, i in enumerate(places):
            own = [derivatives[n][j] / factorials[n] for n in self.orders]
            leaves[i] = self.result(leaves[i], own)
        return pytree.unflatten(leaves, spec)


class Call:
    """A call of an operator on tensors of the layer.

    Args:
        places: the positions of arguments whose tensors are operands, constant or not. By default
            all tensors that are not constants are operands.
    Attributes:
        operands: the series of the operands. Other tensors count as constants.
    """

    def __init__(
        self,
        layer: Jet,
        op: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        places: Sequence[int] | None = None,
    ) -> None:
        self.op = op
        kwargs = {**_required_keywords(op), **kwargs}
        if places is not None:
            args = tuple(arg if i in places else _values_of(arg) for i, arg in enumerate(args))
        # The arguments, with lists of tensors taken apart, and the length of each list.
        self._keywords = tuple(kwargs)
        self._lengths: list[int | None] = []
        leaves: list[Any] = []
        for arg in (*args, *kwargs.values()):
            is_list = isinstance(arg, list) and any(isinstance(x, LayerTensor) for x in arg)
            self._lengths.append(len(arg) if is_list else None)
            leaves += arg if is_list else [arg]
        self._operands = [
            i
            for i, leaf in enumerate(leaves)
            if isinstance(leaf, LayerTensor) and (places is not None or leaf.parts is not None)
        ]
        self.operands = [series_of(leaves[i]) for i in self._operands]
        self._leaves = leaves

    @property
    def is_constant(self) -> bool:
        return all(x.is_constant for x in self.operands)

    def value(self) -> Any:
        return self.on([x[0] for x in self.operands])

    def on(self, operands: Sequence[Tensor]) -> Any:
        """Calls the operator with other tensors in place of the operands."""
        leaves = [_value_of(leaf) for leaf in self._leaves]
        for i, operand in zip(self._operands, operands, strict=True):
            leaves[i] = operand
        args, kwargs = self._put_together(leaves)
        return self.op(*args, **kwargs)

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments, with a series for each tensor."""
        leaves = [series_of(x) if isinstance(x, LayerTensor) else x for x in self._leaves]
        return self._put_together(leaves)

    def _put_together(self, leaves: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        given = iter(leaves)
        args = [
            next(given) if length is None else list(itertools.islice(given, length))
            for length in self._lengths
        ]
        count = len(args) - len(self._keywords)
        return tuple(args[:count]), dict(zip(self._keywords, args[count:], strict=True))

    def jointly_linear(self, value: Any) -> Any:
        """The series of the results if the operator is linear in all operands together."""

        @functools.cache
        def at(k: int) -> Any:
            terms = [x[k] for x in self.operands]
            if all(term is None for term in terms):
                return None
            pairs = zip(terms, self.operands, strict=True)
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
            for orders in itertools.product(range(k + 1), repeat=len(self.operands) - 1):
                if sum(orders) > k:
                    continue
                pairs = zip(self.operands, (*orders, k - sum(orders)), strict=True)
                terms = [x[i] for x, i in pairs]
                if not any(term is None for term in terms):
                    total = plus(total, self.on(terms))
            return total

        return Series(compute)


def rule(*ops: Any) -> Callable[[D], D]:
    """Decorator that registers a rule written with series.

    Args:
        ops: as for :meth:`Layer.rule`.
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
            value = call.value()
            if call.is_constant:
                return value
            as_series, named = call.arguments()
            series = define(value, *as_series, **named)
            if series is NotImplemented:
                return layer.by_nested_jvps(op, *args, **kwargs)
            return layer.results(value, series)

        Jet.rule(*ops)(run)
        return define

    return register


@functools.cache
def _required_keywords(op: Any) -> dict[str, None]:
    """Keywords without a default value, which a call has to name also if the value is None."""
    arguments = schema_of(op).arguments
    return {a.name: None for a in arguments if a.kwarg_only and not a.has_default_value()}


def known(tensor: LayerTensor) -> list[Coefficient]:
    """All coefficients of a tensor that is not a constant."""
    return [tensor.value, *tensor.parts]


def series_of(tensor: LayerTensor) -> Series:
    if tensor.parts is None:
        return constant(tensor.value)
    return Series(lambda k: tensor.parts[k - 1], tensor.value)


def _value_of(leaf: Any) -> Any:
    return leaf.value if isinstance(leaf, LayerTensor) else leaf


def _values_of(arg: Any) -> Any:
    return [_value_of(leaf) for leaf in arg] if isinstance(arg, list) else _value_of(arg)


def has_derivatives(value: Any) -> bool:
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())
