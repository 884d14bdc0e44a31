"""A call of an operator, as the rules of a layer look at it."""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchlayers.core import pytree
from torchlayers.core.operator_schema import schema_of
from torchlayers.core.torch_private import OpOverload
from torchlayers.transforms.jvp import jvp
from torchlayers.transforms.layers.layer import Layer
from torchlayers.transforms.layers.layer_tensor import LayerTensor
from torchlayers.transforms.layers.memory_layout import DEPEND_ON_LAYOUT, laid_out
from torchlayers.transforms.layers.rule_table import facts


class OperatorCall:
    """A call of an operator, as a function of the tensors of a layer among its arguments.

    For rules that serve many operators: it finds the tensors, also in lists, calls the operator on
    others in their place, and differentiates it by what is stated about it.

    Args:
        layer, op, args, kwargs: as a rule has them.
        places: the positions of arguments whose tensors are operands, with parts or without. By
            default all tensors that have parts are operands.
    Attributes:
        layer, op, args, kwargs: these.
    Example:
        >>> class Tangent(torchlayers.Layer):
        ...     "parts is a tangent."
        >>> @Tangent.rule("any")
        ... def push(layer, op, *args, **kwargs):
        ...     call = torchlayers.OperatorCall(layer, op, args, kwargs)
        ...     return call.results(call.tangent([x.parts for x in call.operands]))
        >>> with Tangent() as layer:
        ...     x = layer.tensor(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 0.0]))
        ...     y = layer.apply(lambda x: (x.exp() * x).sum(), x)
        >>> y.parts
        tensor(5.4366)
    """

    def __init__(
        self,
        layer: Layer,
        op: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        places: Sequence[int] | None = None,
    ) -> None:
        self.layer, self.op, self.args, self.kwargs = layer, op, args, kwargs
        self._operand_places = places

    @functools.cached_property
    def operands(self) -> list[LayerTensor]:
        """The tensors of the layer that the call is a function of. Others count as constants."""
        places = self._operand_places
        # The arguments, with lists of tensors taken apart, and the length of each list.
        named = {**_required_keywords(self.op), **self.kwargs}
        self._keywords = tuple(named)
        self._lengths: list[int | None] = []
        self._leaves: list[Any] = []
        self._indices: list[int] = []  # of the operands, among the leaves
        self._places: list[int] = []  # of the arguments that they are, or are in
        self._constants: set[int] = set()  # the places of other tensors
        for place, arg in enumerate((*self.args, *named.values())):
            is_list = isinstance(arg, (list, tuple)) and any(
                isinstance(x, LayerTensor) for x in arg
            )
            self._lengths.append(len(arg) if is_list else None)
            for leaf in arg if is_list else (arg,):
                if isinstance(leaf, LayerTensor):
                    has_parts = leaf.parts is not None
                    if has_parts if places is None else place in places:
                        self._indices.append(len(self._leaves))
                        self._places.append(place)
                    else:
                        self._constants.add(place)
                self._leaves.append(leaf)
        return [self._leaves[i] for i in self._indices]

    @functools.cached_property
    def arguments(self) -> dict[str, Any]:
        """The arguments by name, those left out with their defaults."""
        names, defaults = _signature(self.op)
        return defaults | dict(zip(names, self.args, strict=False)) | self.kwargs

    @property
    def names(self) -> list[str]:
        """The names of the operator's arguments."""
        return _signature(self.op)[0]

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    @property
    def values(self) -> list[Tensor]:
        """The values of the operands."""
        return [x.value for x in self.operands]

    @functools.cached_property
    def value(self) -> Any:
        """The operator's results on the values."""
        return self.on(self.values)

    def on(self, operands: Sequence[Tensor]) -> Any:
        """Calls the operator, below the layer, with other tensors in place of the operands.

        Example:
            >>> class Pair(torchlayers.Layer):
            ...     "parts is another tensor."
            >>> with Pair() as layer:
            ...     x = layer.tensor(torch.ones(2), torch.tensor([3.0, 4.0]))
            ...     call = torchlayers.OperatorCall(layer, torch.ops.aten.mul.Tensor, (x, 2), {})
            ...     call.on([torch.tensor(5.0)])
            tensor(10.)
        """
        assert len(operands) == len(self.operands)  # which takes the arguments apart
        leaves = [leaf.value if isinstance(leaf, LayerTensor) else leaf for leaf in self._leaves]
        for i, operand in zip(self._indices, operands, strict=True):
            leaves[i] = operand
        args, kwargs = self._filled(leaves)
        return self.op(*args, **kwargs)

    def moved(self, read: Callable[[LayerTensor], Any]) -> Any:
        """Calls the operator on what ``read`` returns for each tensor of the layer: for operators
        that only move elements ("structural"), parts move as values do.

        Example:
            >>> class Pair(torchlayers.Layer):
            ...     "parts is another tensor."
            >>> with Pair() as layer:
            ...     x = layer.tensor(torch.ones(2), torch.tensor([3.0, 4.0]))
            ...     op = torch.ops.aten.flip.default
            ...     call = torchlayers.OperatorCall(layer, op, (x, [0]), {})
            ...     call.moved(lambda x: x.parts)
            tensor([4., 3.])
        """
        return self.layer.send_down(self.op, self.args, self.kwargs, read)

    def tangent(self, tangents: Sequence[Tensor | None]) -> Any:
        """The derivative of the results along tangents of the operands.

        It is the operator itself where that is stated to be linear, and a jvp otherwise.

        Args:
            tangents: one for each operand, with None for zeros. They may have other memory
                layouts than the values.
        Returns:
            A tangent for each result, in the structure of ``value``; None for a result that has no
            derivative, and for all if all tangents are None.
        Example:
            >>> class Pair(torchlayers.Layer):
            ...     "parts is another tensor."
            >>> with Pair() as layer:
            ...     x = layer.tensor(torch.ones(2), torch.tensor([3.0, 4.0]))
            ...     call = torchlayers.OperatorCall(layer, torch.ops.aten.exp.default, (x,), {})
            ...     call.tangent([x.parts])
            tensor([ 8.1548, 10.8731])
        """
        pairs = zip(tangents, self.operands, strict=True)
        moving = [i for i, (tangent, _) in enumerate(pairs) if tangent is not None]
        if not moving:
            return pytree.map_leaves(lambda _: None, self.value)
        if self._is_jointly_linear():
            pairs = zip(tangents, self.operands, strict=True)
            return self._linear([torch.zeros_like(x.value) if t is None else t for t, x in pairs])
        if self._is_multilinear(moving):
            return self._multilinear(tangents, moving)
        leaves, spec = pytree.flatten(self.value)
        places = [i for i, leaf in enumerate(leaves) if has_derivatives(leaf)]

        def func(*primals: Any) -> list[Tensor]:
            values = self.values
            for i, primal in zip(moving, primals, strict=True):
                values[i] = primal
            results = pytree.leaves(self.on(values))
            return [results[i] for i in places]

        primals = tuple(self.operands[i].value for i in moving)
        pushed = jvp(func, primals, tuple(tangents[i] for i in moving))[1]
        tangent_leaves: list[Tensor | None] = [None] * len(leaves)
        for i, tangent in zip(places, pushed, strict=True):
            tangent_leaves[i] = tangent
        return pytree.unflatten(tangent_leaves, spec)

    def results(self, parts: Any) -> Any:
        """The results as tensors of the layer.

        Args:
            parts: of the result; of several results a sequence. A result whose parts are None is a
                constant.
        Example:
            >>> class Pair(torchlayers.Layer):
            ...     "parts is another tensor."
            >>> with Pair() as layer:
            ...     x = layer.tensor(torch.ones(2), torch.tensor([3.0, 4.0]))
            ...     call = torchlayers.OperatorCall(layer, torch.ops.aten.exp.default, (x,), {})
            ...     call.results(x.parts).parts
            tensor([3., 4.])
        """
        if isinstance(self.value, Tensor):
            return self.value if parts is None else self.layer.tensor(self.value, parts)
        return tuple(
            value if part is None else self.layer.tensor(value, part)
            for value, part in zip(self.value, parts, strict=True)
        )

    def _filled(self, leaves: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments, with others in place of the leaves: what lists hold, and all the rest."""
        rest = iter(leaves)
        args = [
            next(rest) if length is None else list(itertools.islice(rest, length))
            for length in self._lengths
        ]
        count = len(args) - len(self._keywords)
        return tuple(args[:count]), dict(zip(self._keywords, args[count:], strict=True))

    def _is_jointly_linear(self) -> bool:
        """In all operands, with zeros for none of the other tensors."""
        if not isinstance(self.op, OpOverload):
            return False
        known = facts(self.op)
        if known["is_linear"]:
            return not self._constants
        places = {*known["linear_in"]} if known["is_linear_together"] else set()
        return places >= {*self._places} and not places & self._constants

    def _is_multilinear(self, moving: Sequence[int]) -> bool:
        if not isinstance(self.op, OpOverload) or any(n is not None for n in self._lengths):
            return False
        known = facts(self.op)
        is_linear = all(self._places[i] in known["linear_in"] for i in moving)
        return is_linear and not known["is_linear_together"]

    def _linear(self, operands: list[Tensor]) -> Any:
        """The operator on tangents, in memory layouts in which it does to them what it does to the
        values."""
        if self.op in DEPEND_ON_LAYOUT:
            operands[0] = laid_out(self.op, self.values[0], operands[0], self.args[1:])
        return self.on(operands)

    def _multilinear(self, tangents: Sequence[Any], moving: Sequence[int]) -> Any:
        total = None
        for i in moving:
            operands = self.values
            operands[i] = tangents[i]
            term = self._linear(operands)
            total = term if total is None else total + term
        return total


def has_derivatives(value: Any) -> bool:
    """Whether it is a floating-point or complex tensor."""
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


@functools.cache
def _signature(op: Any) -> tuple[list[str], dict[str, Any]]:
    """The names of an operator's arguments, and their defaults; None for those without."""
    defaults = {
        argument.name: argument.default_value if argument.has_default_value() else None
        for argument in schema_of(op).arguments
    }
    return [*defaults], defaults


@functools.cache
def keyword_names(op: Any) -> frozenset[str]:
    """The names of an operator's keyword-only arguments."""
    return frozenset(a.name for a in schema_of(op).arguments if a.kwarg_only)


@functools.cache
def _required_keywords(op: Any) -> dict[str, None]:
    """Keywords without a default value, which a call has to name also if the value is None."""
    arguments = schema_of(op).arguments
    return {a.name: None for a in arguments if a.kwarg_only and not a.has_default_value()}
