"""Runs a call of a function within a memory budget, and recomputes its saved tensors on demand."""

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchlayers import _C
from torchlayers._C import alias_of
from torchlayers.core import pytree, tracing_state
from torchlayers.core.errors import TransformError
from torchlayers.core.layer_stack import transformed
from torchlayers.core.torch_private import fake_mode, functorch, torch_private
from torchlayers.fx.recomputation import is_capturing
from torchlayers.remat.budget.plan import Plan
from torchlayers.remat.budget.stages import TapeSummary
from torchlayers.remat.budget.tape import (
    MemoryState,
    Tape,
    TapedOperator,
    TensorRead,
    below_layers,
    recompute,
)
from torchlayers.remat.checkpoint import AdoptedHooks

_PLANS = 16  # cached plans per function
_plans: "weakref.WeakKeyDictionary[Any, dict[Any, Plan]]" = weakref.WeakKeyDictionary()


def budgeted(
    api: str, func: Callable[..., Any], memory_budget: int | float | None
) -> Callable[..., Any]:
    """Wraps a function to save at most memory_budget bytes for its gradient. The wrapper is called
    inside a layer."""
    if memory_budget is None:
        return func
    _check(api, memory_budget)
    plans = _plans_of(func)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if tracing_state.is_tracing() or not torch.is_grad_enabled() or is_capturing() or _fake():
            return func(*args, **kwargs)
        level = functorch.maybe_current_level()
        key = repr(memory_budget), level, _signature(args, kwargs)  # 1 is not 1.0
        region = _Region(api, func, memory_budget, plans.get(key))
        result = region.run(args, kwargs)
        if key not in plans and len(plans) >= _PLANS:
            plans.pop(next(iter(plans)), None)
        assert region.plan is not None
        plans[key] = region.plan
        return result

    return transformed(func, wrapper)


def _check(api: str, budget: Any) -> None:
    is_number = isinstance(budget, (int, float)) and not isinstance(budget, bool)
    if is_number and 0 < budget <= (1 if isinstance(budget, float) else budget):
        return
    raise TransformError(
        f"torchlayers: {api}: memory_budget must be a number of bytes, an int greater than 0, or a "
        "fraction of the bytes saved without a budget, a float greater than 0 and at most 1.0, got "
        f"{budget!r}."
    )


def _plans_of(func: Any) -> dict[Any, Plan]:
    try:
        return _plans.setdefault(func, {})
    except TypeError:  # func does not support weak references, or is not hashable
        return {}


def _signature(args: Any, kwargs: Any) -> Any:
    leaves = pytree.leaves((args, kwargs))
    return tuple((x.shape, x.dtype) for x in leaves if isinstance(x, Tensor))


def _fake() -> bool:
    """Whether fake tensors are in use."""
    return fake_mode() is not None


class _PackedTensor(NamedTuple):
    """A tensor that a level has saved: the tensors that hold its data, as reads from the tape, and
    the wrappers around them."""

    region: "_Region"
    shell: _C.Shell
    numbers: list[TensorRead | Tensor]
    operator: int  # whose gradient needs it


class _Region:
    def __init__(
        self,
        api: str,
        func: Callable[..., Any],
        budget: int | float,
        expected: Plan | None,
    ) -> None:
        self.api, self.func, self.budget = api, func, budget
        self.depth = functorch.maybe_current_level() or 0
        self.expected = expected
        self.plan: Plan | None = None
        self.tape: Tape | None = Tape(self._note_made, self._wrote, weighs=expected is None)
        self.states = self.tape.states
        self.compared = 0  # operators that match the expected outline
        self.packs: list[tuple[int, int]] = []
        self.for_next: list[tuple[list[Any], int]] = []  # saved for the next operator's gradient
        self.alive: set[int] = set()
        self.holds_all = expected is None and isinstance(budget, int)
        self.stage = -1
        self.lock = threading.RLock()

    def run(self, args: Any, kwargs: Any) -> Any:
        assert self.tape is not None
        try:
            with AdoptedHooks(self._pack, _unpack), self.tape:
                result = self.func(*args, **kwargs)
            self._finish()
        finally:
            self.tape = None  # breaks the reference cycle
        return result

    # While the function runs

    def _note_made(self, state: MemoryState, tensor: Tensor) -> None:
        if self._is_as_expected():
            assert self.expected is not None
            holds = state.number in self.expected.at_first
        else:
            holds = self.holds_all
        if not holds or not state.bytes:
            return
        state.hold(alias_of(tensor))
        self.alive.add(state.number)
        if self.holds_all and self._bytes(self.alive) > self.budget:
            self.holds_all = False
            self._let_go(self.alive)

    def _wrote(self, old: MemoryState, new: MemoryState) -> None:
        """Updates tensors saved for an operator that then writes to them (an argument it fills):
        the state after the write is the one saved."""
        assert self.tape is not None
        index = len(self.tape.outline)
        for places, operator in self.for_next:
            for i, place in enumerate(places):
                if operator == index and isinstance(place, TensorRead) and place.state is old:
                    places[i] = TensorRead(new, place.looks)
                    self.packs.append((new.number, index))

    def _is_as_expected(self) -> bool:
        if self.expected is None:
            return False
        assert self.tape is not None
        outline, expected = self.tape.outline, self.expected.outline.calls
        new = slice(self.compared, len(outline))
        if outline[new] == expected[new]:
            self.compared = len(outline)
            return True
        self._expect_nothing()
        return False

    def _expect_nothing(self) -> None:
        """Stops following the expected plan. Costs are measured from now on; those of past
        operators are taken from the expected plan."""
        assert self.tape is not None and self.expected is not None
        count, costs = len(self.tape.outline), self.expected.costs
        self.tape.costs = [*costs[:count], *[1.0] * (count - len(costs))]
        self.tape.weighs = True
        self.expected = None

    def _pack(self, tensor: Tensor) -> Any:
        if (functorch.maybe_current_level() or 0) > self.depth or self.tape is None:
            return _C.without_graphs(tensor)
        self.tape.settle()
        shell, numbers = _C.taken_apart(tensor)
        holder = _C.holder_of(tensor)  # shares its version counter
        if not torch_private._is_functional_tensor(holder):  # whose value is never written to
            numbers[-1] = holder
        places: list[TensorRead | Tensor] = []
        index = len(self.tape.outline) - _C.packs_result()
        for number in numbers:
            read = self.tape.read_of(number)
            if read is None:
                places.append(_C.without_graphs(number))
                continue
            places.append(read)
            read.state.is_read = True
            self.packs.append((read.state.number, index))
        if self.for_next and self.for_next[-1][1] != index:
            self.for_next.clear()
        if index == len(self.tape.outline):
            self.for_next.append((places, index))
        return _PackedTensor(self, shell, places, index)

    def _finish(self) -> None:
        assert self.tape is not None
        self.for_next.clear()
        self.tape.settle()
        outline = TapeSummary(self.tape.outline, self.packs)
        expected = self.expected if self._is_as_expected() else None
        if expected is not None and expected.outline == outline:
            self.plan = expected
        else:
            if self.expected is not None:
                self._expect_nothing()
            name = pytree.name_of(self.func)
            self.plan = Plan(self.api, name, outline, self.tape.costs, self.budget)
        self.expected = None
        self._let_go(self.alive - set(self.plan.at_first))
        for state in self.states:
            if state.number not in self.plan.first_stage:  # never needed again
                state.operator = state.base = None

    # In a reverse pass

    def tensors(self, saved: _PackedTensor) -> list[Tensor]:
        with self.lock:
            if self.plan is not None:
                self._reach(self.plan.stage_of(saved.operator))
            missing = {
                place.state.number
                for place in saved.numbers
                if isinstance(place, TensorRead) and not place.state.is_alive()
            }
            if missing:
                with below_layers():
                    self._compute(missing)
            tensors = [
                place.state.tensor(place.looks) if isinstance(place, TensorRead) else place
                for place in saved.numbers
            ]
            if self.plan is None:  # a reverse pass inside the function
                self._let_go(missing)
            return tensors

    def _reach(self, stage: int) -> None:
        """Frees values that only later stages, which have been reversed, need."""
        if stage == self.stage:
            return
        self.stage = stage
        assert self.plan is not None
        first = self.plan.first_stage
        self._let_go([number for number in self.alive if first.get(number, stage) > stage])

    def _compute(self, missing: set[int]) -> None:
        plan = self.plan
        if plan is None:
            self._make(missing)
            return
        there = {number for number in self.alive if self.states[number].is_alive()}
        if plan.chain is None:
            wanted = {*plan.at_first}
        else:
            room = plan.room - self._bytes(there)
            wanted = plan.wanted(plan.begins(self.stage, there), self.stage, room)
        self._make(wanted | missing)

    def _make(self, wanted: set[int]) -> None:
        """Computes the wanted states from those held, and holds them."""
        operators: dict[int, TapedOperator] = {}
        waiting = [self.states[number] for number in wanted]
        while waiting:
            state = waiting.pop()
            operator = state.operator
            if operator is None or operator.place in operators or state.is_alive():
                state.is_alive()  # raises if the state is lost
                continue
            operators[operator.place] = operator
            waiting += [leaf.state for leaf in operator.leaves if isinstance(leaf, TensorRead)]
        left: Counter[int] = Counter()
        for operator in operators.values():
            left.update(_reads(operator))
        computed: set[int] = set()
        for _, operator in sorted(operators.items()):
            reads = set(_reads(operator))
            left.subtract(_reads(operator))
            over = {n for n in reads & computed if not left[n] and n not in wanted}
            results = recompute(operator, over)
            for number, tensor in results:
                if self.states[number].operator is operator and not self.states[number].is_alive():
                    self.states[number].hold(tensor)
                    computed.add(number)
            del results, tensor
            made_now = {number for number, _ in operator.makes}
            idle = {n for n in made_now & computed if not left[n] and n not in wanted}
            for number in over | idle:
                self.states[number].let_go()
                computed.discard(number)
        self.alive |= wanted & computed

    def _let_go(self, numbers: Iterable[int]) -> None:
        numbers = [*numbers]
        for number in numbers:
            self.states[number].let_go()
        self.alive.difference_update(numbers)

    def _bytes(self, numbers: Iterable[int]) -> int:
        return sum(self.states[number].bytes for number in numbers)


def _reads(operator: TapedOperator) -> list[int]:
    return [leaf.state.number for leaf in operator.leaves if isinstance(leaf, TensorRead)]


def _unpack(packed: _PackedTensor | Tensor) -> Tensor:
    if isinstance(packed, Tensor):
        return packed
    return packed.shell.around(packed.region.tensors(packed))
