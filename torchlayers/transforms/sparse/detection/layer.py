"""The layer of sparsity detection: its tensors carry the set of inputs that each element needs."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from torchlayers import _C
from torchlayers.core import operator_schema, pytree
from torchlayers.core.device import has_data
from torchlayers.core.operator_schema import schema_of
from torchlayers.core.torch_private import (
    FakeTensor,
    OpOverload,
    functorch,
    is_batched_wrapper,
    is_grad_wrapper,
    torch_private,
)
from torchlayers.transforms.layers.layer import Layer
from torchlayers.transforms.layers.layer_tensor import LayerTensor
from torchlayers.transforms.layers.operator_call import OperatorCall
from torchlayers.transforms.sparse.bookkeeping import bookkeeping
from torchlayers.transforms.sparse.detection.index_sets import (
    IndexSets,
    composed,
    entries,
    identity,
    singletons,
    union,
    union_all,
)

D = TypeVar("D", bound=Callable[..., Any])


class Sparsity(Layer):
    """Propagates index sets through a function.

    The ``parts`` of a tensor are :class:`IndexSets`, or None for a constant. Beside the positions
    of inputs there is one more index, the mark of values that depend on the inputs without a
    derivative (``x > 0``, ``floor(x)``): they are no constants, so that what they select differs
    between inputs. The locally valid pattern needs no mark, as all values are known.

    Args:
        count: the number of inputs.
        is_local: whether the pattern is for the given values only.
    Attributes:
        unknown: the operators that were taken as dense, by name.
        reads: the lines at which Python read a value that depends on the inputs.
    """

    name = "sparsity"

    def __init__(self, count: int, is_local: bool) -> None:
        self.count = count
        self.is_local = is_local
        with bookkeeping():
            self.table = identity(count + 1)
        self.unknown: dict[str, None] = {}
        self.reads: dict[str, None] = {}

    def inputs(self, args: Sequence[Any], places: Sequence[int]) -> tuple[Any, dict[str, Any]]:
        args, first = [*args], 0
        for place in places:
            leaves, spec = pytree.flatten(args[place])
            tracked = []
            for leaf in leaves:
                with bookkeeping():
                    sets = singletons(leaf.shape, first, self.table)
                tracked.append(self.tensor(leaf, sets))
                first += leaf.numel()
            args[place] = pytree.unflatten(tracked, spec)
        return tuple(args), {}

    def outputs(self, result: Any) -> Any:
        """The result's values, and the sets of each of its leaves."""
        sets = [self.sets(leaf) for leaf in pytree.leaves(result)]
        return super().outputs(result), sets

    def sets(self, x: Any) -> IndexSets | None:
        return x.parts if isinstance(x, LayerTensor) and self._owns(x) else None

    def result(self, value: Tensor, sets: IndexSets | None) -> Tensor:
        """A tensor with these sets; a constant if all are empty."""
        if sets is None or sets.is_empty:
            return value
        if not is_differentiable(value):
            if self.is_local:
                return value
            sets = self.marked(sets)
        return self.tensor(value, sets)

    def marked(self, sets: IndexSets) -> IndexSets:
        """The mark alone, for elements whose sets are not empty."""
        return IndexSets(torch.where(sets.ids == 0, 0, self.count + 1), self.table)

    def process(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Also for operators without inputs: random numbers are others in the next call."""
        result = super().process(op, args, kwargs)
        if self.is_local or result is NotImplemented or not operator_schema.is_random(op):
            return result
        return pytree.map_tensors(self._drawn, result)

    def _drawn(self, numbers: Tensor) -> Tensor:
        if isinstance(numbers, LayerTensor) and self._owns(numbers):
            return numbers
        with bookkeeping():
            sets = IndexSets(torch.full(numbers.shape, self.count + 1), self.table)
        return self.tensor(numbers, sets)

    def note_read(self) -> None:
        """Notes the line that is running: it reads a value that depends on the inputs."""
        if not self.is_local:
            self.reads[self.location().strip()] = None

    def unruled(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An operator or Function without a rule: by the structure of its vjp; if there is none,
        each result depends on all operands, and the operator is noted as unknown."""
        value = self.send_down(op, args, kwargs)
        leaves, spec = pytree.flatten((args, kwargs))
        parts = {i: sets for i, leaf in enumerate(leaves) if (sets := self.sets(leaf)) is not None}
        if not parts:
            return value
        with bookkeeping():
            total = union_all([*parts.values()], ())
            if total.is_empty:
                return value
        results = [
            leaf
            for leaf in pytree.leaves(value)
            if isinstance(leaf, Tensor) and is_differentiable(leaf)
        ]
        sets_of_results: dict[int, IndexSets] = {}
        operands = [i for i in parts if is_differentiable(leaves[i])]
        # Others that vary choose between structures, as an index does.
        varying = operands + [i for i in parts if not (self.is_local or i in operands)]
        structures = None
        if results and operands:
            below = [leaf.value if self._owns(leaf) else leaf for leaf in leaves]

            def call(*tensors: Tensor) -> Any:
                filled = [*below]
                for i, x in zip(varying, tensors, strict=True):
                    filled[i] = x
                args, kwargs = pytree.unflatten(filled, spec)
                return self.send_down(op, args, kwargs)

            structures = self.structure_of(call, [below[i] for i in varying], results)
            # A custom operator may have been told, by a flag, that no gradient is needed.
            is_custom = isinstance(op, OpOverload) and op.namespace != "aten"
            if is_custom and structures is not None:
                count = sum(x.numel() for x in results)
                with bookkeeping():
                    affects = [
                        bool((entries(structure)[1] < count).any()) for structure in structures
                    ]
                structures = structures if all(affects) else None
        with bookkeeping():
            if structures is not None:
                pairs = [
                    (parts[i], structure) for i, structure in zip(operands, structures, strict=True)
                ]
                sets_of_results = composed(pairs, results)
                if not self.is_local:  # also those without a derivative vary
                    mark = self.marked(total)
                    sets_of_results = {
                        i: union([x, mark], x.shape) for i, x in sets_of_results.items()
                    }
            elif results and self._has_inputs(total):
                self.unknown[_name_of(op)] = None

            def with_sets(result: Tensor) -> Tensor:
                return self.result(
                    result, sets_of_results.get(id(result), total.expand(result.shape))
                )

            return pytree.map_tensors(with_sets, value)

    def structure_of(
        self, func: Callable[..., Any], operands: Sequence[Tensor], results: Sequence[Tensor]
    ) -> list[IndexSets] | None:
        """Which elements of func's results each element of a differentiated operand affects; None
        for all."""
        return None

    def _has_inputs(self, total: IndexSets) -> bool:
        """Whether a set has more than the mark."""
        _, members = entries(total.reshape([1]))
        return bool((members < self.count).any())

    def _process_undecomposed(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if isinstance(op, OpOverload) and not schema_of(op).is_mutable:
            with _C.Below():
                return self.unruled(op, args, kwargs)
        return super()._process_undecomposed(op, args, kwargs)

    def _process_function(self, function: Any, operands: tuple[Any, ...]) -> Any:
        operands = tuple(pytree.map_all_tensors(self._plain_or_owned, operands))
        with _C.Below():
            return self.unruled(function, operands, {})


class Call(OperatorCall):
    """A call of an operator on tensors of the layer, for rules written with index sets."""

    layer: Sparsity
    value: Any

    def __init__(
        self, layer: Sparsity, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        super().__init__(layer, op, args, kwargs)
        # Now: the rules run where nothing of it is seen by other layers.
        self.value = layer.send_down(op, args, kwargs)

    @property
    def shape(self) -> torch.Size:
        """The shape of the first result."""
        value = self.value if isinstance(self.value, Tensor) else self.value[0]
        return value.shape

    @property
    def tensors(self) -> list[LayerTensor]:
        arguments = self.arguments.values()
        leaves = [
            x for arg in arguments for x in (arg if isinstance(arg, (list, tuple)) else [arg])
        ]
        return [x for x in leaves if isinstance(x, LayerTensor)]

    def sets(self, x: Any) -> IndexSets | None:
        """The sets of an argument, by name or itself; None if it is a constant or no tensor."""
        if isinstance(x, str):
            x = self.arguments.get(x)
        return self.layer.sets(x)

    def parts(self, *names: str) -> list[IndexSets]:
        """The sets of these arguments, by default of all, without those of constants."""
        chosen = [self.arguments.get(name) for name in names] if names else self.tensors
        return [sets for sets in map(self.sets, chosen) if sets is not None]

    def known(self, x: Any) -> Tensor | None:
        """The value of a tensor, on the CPU, if it does not vary with the inputs."""
        if isinstance(x, str):
            x = self.arguments.get(x)
        if not isinstance(x, LayerTensor):
            return x if isinstance(x, Tensor) else None
        sets = self.sets(x)
        if sets is not None and not self.layer.is_local and not sets.is_empty:
            return None
        return plain_value(x.value)

    def zeros(self, x: Any) -> Tensor | None:
        """Which elements are zero, of those whose value does not vary with the inputs."""
        if isinstance(x, (bool, int, float, complex)):
            return torch.tensor(x == 0)
        if not isinstance(x, LayerTensor):
            return None
        value = plain_value(x.value)
        if value is None:
            return None
        is_zero = value == 0
        sets = self.sets(x)
        if sets is not None and not self.layer.is_local:
            is_zero = is_zero & (sets.ids == 0)
        return is_zero

    def local(self, x: Any) -> Tensor | None:
        """The value of a tensor if the pattern is local."""
        if not self.layer.is_local:
            return None
        if isinstance(x, Tensor) and not isinstance(x, LayerTensor):
            return plain_value(x)
        return self.known(x)


def rule(*ops: Any) -> Callable[[D], D]:
    """Decorator that registers a rule written with index sets.

    Args:
        ops: as for :meth:`Layer.rule`.
    Returns:
        A decorator of ``define(call)``, which returns the sets of the result, a tuple of those for
        several, or None for a constant. It may return NotImplemented: the operator is decomposed.
    """

    def register(define: D) -> D:
        @functools.wraps(define)
        def run(layer: Sparsity, op: Any, *args: Any, **kwargs: Any) -> Any:
            call = Call(layer, op, args, kwargs)
            if not call.parts():
                return call.value
            with bookkeeping():
                sets = define(call)
                if sets is NotImplemented:
                    return sets
                if isinstance(call.value, Tensor):
                    return layer.result(call.value, sets)
                if not isinstance(sets, (tuple, list)) or isinstance(sets, IndexSets):
                    sets = [sets] * len(call.value)
                pairs = zip(call.value, sets, strict=True)
                results = [x if x is None else layer.result(x, parts) for x, parts in pairs]
                return type(call.value)(results) if type(call.value) is list else tuple(results)

        Sparsity.rule(*ops)(run)
        return define

    return register


def plain_value(x: Tensor) -> Tensor | None:
    """The tensor below all layers, on the CPU; None if a vmap batches it or it has no values."""
    if is_batched_wrapper(x):
        return None
    if is_grad_wrapper(x):
        return plain_value(functorch.get_unwrapped(x))
    if torch_private._is_functional_tensor(x):
        torch_private._functionalize_sync(x)
        return plain_value(functorch.get_unwrapped(x))
    if isinstance(x, FakeTensor) or not has_data(x) or x.layout != torch.strided:
        return None
    return x.detach().cpu()


def is_differentiable(value: Tensor) -> bool:
    return value.is_floating_point() or value.is_complex()


def _name_of(op: Any) -> str:
    if isinstance(op, OpOverload):
        return str(op)
    return str(getattr(op, "_torchlayers_source", op.__name__))


broadcast_shapes: Any = torch.broadcast_shapes  # which has no annotations
