"""Tape: records the operators that a function calls at the bottom of the stack, and the states of
memory that they read and make."""

import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchlayers._C import Looks, alias_of, memory_of
from torchlayers.core import operator_schema, pytree
from torchlayers.core.errors import RecomputationError
from torchlayers.core.flops import flop_formula
from torchlayers.core.operator_schema import schema_of
from torchlayers.core.torch_private import OpOverload, TorchDispatchMode, torch_c
from torchlayers.fx.callbacks import CALLBACK_OPS

_torch: Any = torch  # its private names have no type stubs


class MemoryState:
    """The contents of a piece of memory between two writes.

    Attributes:
        base: a tensor on that memory; None if it is not held and the operator has to run again.
        operator: the operator that makes it from the operator's reads; None if it can't be
            recomputed: inputs from outside, random numbers, and values whose making was not seen.
        is_outside: whether the memory was allocated outside the function.
    """

    __slots__ = ("base", "bytes", "is_outside", "is_read", "looks", "number", "operator", "version")

    def __init__(self, number: int, size: int, operator: "TapedOperator | None") -> None:
        self.number = number
        self.bytes = size
        self.operator = operator
        self.base: Tensor | None = None
        self.looks: Looks | None = None
        self.version = 0
        self.is_outside = False
        self.is_read = False

    def hold(self, tensor: Tensor) -> None:
        self.base, self.looks, self.version = tensor, Looks(tensor), _version(tensor)

    def let_go(self) -> None:
        if self.operator is not None:
            self.base = None

    def is_alive(self) -> bool:
        """Whether it is held and unmodified."""
        if self.base is None:
            return False
        if _version(self.base) == self.version:
            return True
        if self.operator is None:
            raise RecomputationError(
                "torchlayers: memory_budget: a tensor that the function has read or created, of "
                f"shape {tuple(self.base.shape)} and {self.base.dtype}, has since been modified in "
                "place, but is needed for its gradient. Use the out-of-place operator, or write to "
                "a clone."
            )
        self.base = None
        return False

    def tensor(self, looks: Looks) -> Tensor:
        if self.base is None:
            raise RecomputationError(
                "torchlayers: memory_budget: an operator has written random numbers to a tensor "
                "already saved for its gradient, and they can't be reproduced. Use "
                "torchlayers.checkpoint, or omit memory_budget."
            )
        return self.base if looks == self.looks else looks.seen(self.base)


class TensorRead(NamedTuple):
    """A tensor argument of an operator: a state of memory, and the tensor's view of it."""

    state: MemoryState
    looks: Looks


class TapedOperator(NamedTuple):
    """One operator call, the `place`-th on the tape.

    `makes` lists the states that it made, by number, each with the index i of its tensor among the
    leaves of the results, or -1 - i for an argument leaf i that it wrote to.
    """

    place: int
    func: Any
    leaves: list[Any]  # of the arguments, with a TensorRead in place of each tensor
    spec: Any  # for _unflattened
    makes: list[tuple[int, int]]


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


@contextmanager
def below_layers() -> Iterator[None]:
    """Runs the block below all layers, without gradient recording, autocast or function modes."""
    layers, casts = torch_c._DisableFuncTorch(), torch_c._DisableAutocast()
    with layers, torch.DisableTorchFunction(), casts, torch.no_grad():
        yield


class _OperatorTraits(NamedTuple):
    is_view: bool
    written: tuple[tuple[int, str], ...]  # position and name of the arguments that it writes to
    may_repeat: bool


# Arguments of older batch norms that are written, although their schemas do not say so.
_STATISTICS = {"running_mean", "running_var"}


@functools.cache
def _traits_of(op: Any) -> _OperatorTraits:
    if schema_of(op) is None:  # a higher-order operator
        return _OperatorTraits(False, (), False)
    written = operator_schema.places_written(op)
    written += tuple(
        (i, argument.name)
        for i, argument in enumerate(schema_of(op).arguments)
        if argument.name in _STATISTICS and (i, argument.name) not in written
    )
    is_view = not written and operator_schema.is_view(op)
    is_apart = op in CALLBACK_OPS or "c10d" in op.namespace
    repeats = not operator_schema.is_random(op) and not is_apart
    return _OperatorTraits(is_view, written, repeats)


def _flattened(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], Any]:
    """Returns the arguments as a list that contains all their tensors, and a spec to rebuild them.

    Usually no argument is a container of tensors, and a full pytree flatten is avoided.
    """
    leaves = [*args, *kwargs.values()] if kwargs else [*args]
    for leaf in leaves:
        kind = type(leaf)
        if kind is dict or (
            (kind is list or kind is tuple) and any(isinstance(element, Tensor) for element in leaf)
        ):
            return _flattened_deeply(args, kwargs)
    return leaves, (len(args), tuple(kwargs))


def _flattened_deeply(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], Any]:
    return pytree.flatten((args, kwargs))


def _unflattened(leaves: list[Any], spec: Any) -> Any:
    if not isinstance(spec, tuple):
        return pytree.unflatten(leaves, spec)
    count, names = spec
    return leaves[:count], dict(zip(names, leaves[count:], strict=True))


def _results(result: Any) -> Any:
    return (result,) if isinstance(result, Tensor) else pytree.leaves(result)


class Tape(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that records operators while it is active.

    Args:
        made: called with each state that an operator has made and could make again, and a tensor
            on it, which the callee may hold.
        wrote: called with a state that the current operator has written to, and the new state.
        weighs: whether to measure costs.
    """

    def __init__(
        self,
        on_made: Callable[[MemoryState, Tensor], None],
        wrote: Callable[[MemoryState, MemoryState], None],
        weighs: bool,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.on_made = on_made
        self.wrote = wrote
        self.weighs = weighs
        self.states: list[MemoryState] = []
        self.outline: list[Any] = []  # one entry per operator; compared to tell tapes apart
        self.costs: list[float] = []
        self._now: dict[int, MemoryState] = {}  # by the memory's address, until it is freed
        self._watched: dict[int, Any] = {}
        self._just_written: list[MemoryState] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        kind = _traits_of(func)
        if kind.is_view:
            return func(*args, **kwargs)
        self.settle()
        flatten = _flattened if isinstance(func, OpOverload) else _flattened_deeply
        leaves, spec = flatten(args, kwargs)
        reads: list[Any] = [
            self.read_of(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves
        ]
        written = self._written(kind, args, kwargs, leaves) if kind.written else []
        may_repeat = kind.may_repeat and None not in [
            read for read, leaf in zip(reads, leaves, strict=True) if isinstance(leaf, Tensor)
        ]
        for i in written:
            if reads[i] is not None and not self._protect(reads[i].state):
                may_repeat = False
        result = func(*args, **kwargs)
        operator = TapedOperator(len(self.outline), func, reads, spec, [])
        for i in written:
            if reads[i] is not None:
                self._wrote(operator, leaves[i], reads[i].state, may_repeat, i)
        for i, leaf in enumerate(_results(result)):
            address = memory_of(leaf) if isinstance(leaf, Tensor) else 0
            if address and address not in self._now:
                self._note_made(operator, leaf, may_repeat, i)
        for read in reads:
            if isinstance(read, TensorRead):
                read.state.is_read = True
        numbers = tuple(read.state.number for read in reads if isinstance(read, TensorRead))
        sizes = tuple((number, self.states[number].bytes) for number, _ in operator.makes)
        self.outline.append((func, numbers, sizes, may_repeat))
        if self.weighs:
            self.costs.append(_cost(func, args, kwargs, result))
        return result

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        self._watched.clear()  # their callbacks refer to this tape
        self._now.clear()

    def settle(self) -> None:
        """Rereads the version counters of states just written: they are incremented only when the
        operator has returned through all layers."""
        while self._just_written:
            state = self._just_written.pop()
            if state.base is not None:
                state.version = _version(state.base)

    def read_of(self, tensor: Tensor) -> TensorRead | None:
        """Returns the current state of the tensor's memory; None if its memory is unknown."""
        address = memory_of(tensor)
        if address == 0:
            return None
        state = self._now.get(address)
        if state is None:
            state = self._new(tensor, None)
            state.is_outside = True
            state.bytes = 0
            state.hold(alias_of(tensor))
            self._now[address] = state
        return TensorRead(state, Looks(tensor))

    def _new(self, tensor: Tensor, operator: TapedOperator | None) -> MemoryState:
        state = MemoryState(len(self.states), tensor.untyped_storage().nbytes(), operator)
        self.states.append(state)
        return state

    def _note_made(
        self, operator: TapedOperator, tensor: Tensor, may_repeat: bool, place: int
    ) -> None:
        storage = tensor.untyped_storage()
        address = memory_of(tensor)
        state = self._new(tensor, operator if may_repeat else None)
        self._now[address] = state
        self._watched[address] = weakref.ref(storage, functools.partial(self._gone, address))
        self._keep(state, tensor)
        operator.makes.append((state.number, place))

    def _keep(self, state: MemoryState, tensor: Tensor) -> None:
        if state.operator is None:
            state.hold(alias_of(tensor))
        else:
            self.on_made(state, tensor)

    def _gone(self, address: int, reference: Any) -> None:
        if self._watched.get(address) is reference:
            del self._watched[address], self._now[address]

    def _written(
        self,
        kind: _OperatorTraits,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        leaves: list[Any],
    ) -> list[int]:
        """Returns the indices of the leaves that the operator writes to."""
        targets = {
            id(leaf)
            for i, name in kind.written
            for leaf in pytree.leaves(args[i] if i < len(args) else kwargs.get(name))
            if isinstance(leaf, Tensor)
        }
        return [i for i, leaf in enumerate(leaves) if id(leaf) in targets]

    def _protect(self, state: MemoryState) -> bool:
        """Preserves a state before its memory is written to, by a copy if it can't be recomputed.

        Returns whether the state remains available.
        """
        if state.operator is not None:
            state.let_go()
        elif state.base is not None and (state.is_outside or state.is_read):
            base = state.base
            state.hold(Looks(base).seen(_cloned(base)))
        else:  # random numbers that have not been read
            state.base = None
            return False
        return True

    def _wrote(
        self,
        operator: TapedOperator,
        tensor: Tensor,
        old: MemoryState,
        may_repeat: bool,
        place: int,
    ) -> None:
        address = memory_of(tensor)
        if self._now.get(address) is not old:
            return  # the second of two written arguments that share memory
        state = self._new(tensor, operator if may_repeat and not old.is_outside else None)
        self._now[address] = state
        if old.is_outside:
            state.is_outside = True
            state.bytes = 0
        self._keep(state, tensor)
        self._just_written.append(state)
        self.wrote(old, state)
        operator.makes.append((state.number, -1 - place))


def _cloned(base: Tensor) -> Tensor:
    """Returns a tensor on a copy of all of base's memory."""
    with below_layers():
        return Looks.at_all_of(base).seen(base).clone()


def recompute(operator: TapedOperator, overwritten: set[int]) -> list[tuple[int, Tensor]]:
    """Runs an operator again, at the bottom of the stack; returns (state number, tensor) pairs.

    Args:
        overwritten: the states that are no longer needed, which it may overwrite.
    """
    written = {operator.leaves[-1 - place].state.number for _, place in operator.makes if place < 0}
    copies: dict[int, Tensor] = {}
    leaves = []
    for leaf in operator.leaves:
        if isinstance(leaf, TensorRead):
            state = leaf.state
            assert state.base is not None
            if state.number in written and state.number not in overwritten:
                if state.number not in copies:
                    copies[state.number] = _cloned(state.base)
                leaf = leaf.looks.seen(copies[state.number])
            else:
                leaf = state.tensor(leaf.looks)
        leaves.append(leaf)
    args, kwargs = _unflattened(leaves, operator.spec)
    results = _results(operator.func(*args, **kwargs))
    return [
        (number, results[place] if place >= 0 else leaves[-1 - place])
        for number, place in operator.makes
    ]


# The fixed cost of an operator call, in bytes moved, and the flops that cost as much as one byte.
_CALL = 1 << 14
_FLOPS_A_BYTE = 8


def _cost(func: Any, args: Any, kwargs: Any, result: Any) -> float:
    moved = sum(
        leaf.numel() * leaf.element_size()
        for leaf in pytree.leaves((args, kwargs, result))
        if isinstance(leaf, Tensor) and memory_of(leaf)
    )
    counted = flop_formula(func)
    flops = counted(*args, **kwargs, out_val=result) if counted is not None else 0
    return float(_CALL + moved + flops / _FLOPS_A_BYTE)


def is_product(func: Any) -> bool:
    """Whether its cost is dominated by flops rather than memory traffic, as of a matrix product."""
    return flop_formula(func) is not None
