"""Dynamic shapes: one entry for all sizes that change between calls.

A function is first captured for the sizes of its first call. At a call whose tensors differ only in
sizes it is captured once more, with symbols for those sizes: torch's fake tensors have SymInts for
them, and guards for whatever the function, the layers and the passes asked about them. The program
for that graph computes with the sizes of each run, so later calls run no Python and no pass again.
Sizes of arguments are symbolic with ``dynamic=True``; those of tensors that the function itself
replaces by larger ones, such as a cache, always.

NOTE [A size that is a number]
Where something used a size as a number (range, len, C++ without symbolic sizes), the guards show
it, and each shape is captured separately. But no guard reveals a number that was copied. Therefore
the first call whose sizes differ from those at the symbolic capture is also captured on its own,
and what runs is compared with that (verify.py). If they differ, the symbolic graph is discarded.
"""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from torchlayers.compiler.capture.record import record
from torchlayers.compiler.capture.recording import CapturedGraph, discard_graph_source
from torchlayers.compiler.capture.signature import (
    Signature,
    TensorMetadata,
    describe_difference,
    explain_new_signature,
    is_plain,
    tensor_metadata,
    with_open,
)
from torchlayers.compiler.capture.state.carried_tensors import CarriedTensor
from torchlayers.compiler.capture.state.state_holders import StatePlace
from torchlayers.compiler.capture.values.traced_state import TracedNumbers
from torchlayers.compiler.passes.graph_queries import communicates, inputs_of
from torchlayers.compiler.runtime.build import Built, build_captured
from torchlayers.compiler.runtime.call import Entry
from torchlayers.compiler.runtime.dynamic_comparison import are_alike, replay_in_order_of
from torchlayers.compiler.runtime.request import CompileRequest
from torchlayers.compiler.runtime.size_guards import SizeGuard, is_symbolic, open_places
from torchlayers.compiler.runtime.stages import as_python
from torchlayers.compiler.runtime.verify import VerifiedRun
from torchlayers.core import pytree
from torchlayers.core.errors import warn
from torchlayers.core.garbage_collection import gc_disabled
from torchlayers.fx.nodes import mode_of, value


class NotSymbolicError(Exception):
    """The reason why a function can't be captured with symbolic sizes."""


class ChangedSizes(NamedTuple):
    """The dimensions whose sizes differ between a call and an earlier one."""

    arguments: list[set[int]]  # of each tensor among the arguments
    state: dict[int, set[int]]  # of tensors that calls replace, by id
    numbers: list[StatePlace]  # integers that calls replace, and of which the graph depends

    @property
    def any(self) -> bool:
        return any((*self.arguments, *self.state.values(), self.numbers))


def changed_sizes(signature: Signature, built: Built) -> ChangedSizes | None:
    """Compares a call with one that an entry was captured for.

    Returns None if anything else differs, if nothing differs, or if such a size is 0 or 1, which
    torch's fake tensors specialize on.
    """
    before = built.entry
    known = before.signature
    if (signature.spec, signature.static, signature.modes) != (
        known.spec,
        known.static,
        known.modes,
    ):
        return None
    arguments, state = [], {}
    for one, other in zip(signature.leaves, known.leaves, strict=True):
        if not (isinstance(one, TensorMetadata) and isinstance(other, TensorMetadata)):
            if one != other:
                return None
        elif (dims := _changed_dims(one, other)) is None:
            return None
        else:
            arguments.append(dims)
    for carried in before.carried:
        if isinstance(carried, CarriedTensor):
            tensor = carried.places[0].read()
            is_tensor = isinstance(tensor, Tensor) and is_plain(tensor)
            dims = _changed_dims(tensor_metadata(tensor), carried.like) if is_tensor else None
            if dims is None:
                return None
            state[id(tensor)] = dims
    changed = ChangedSizes(arguments, state, _changed_numbers(built.numbers))
    return changed if changed.any else None


def _changed_numbers(numbers: TracedNumbers | None) -> list[StatePlace]:
    if numbers is None:
        return []
    now = numbers.read()
    return [
        place
        for i, place in enumerate(numbers.places)
        if i in numbers.fixed and not place.path and place.kind in _PLACES
        if type(now[i]) is int and now[i] != numbers.values[i]
        if min(now[i], numbers.values[i]) > 1
    ]


# The kinds of places that may hold a symbolic integer.
_PLACES = ("items", "list", "cell")


def _changed_dims(now: TensorMetadata, before: TensorMetadata) -> set[int] | None:
    is_alike = now._replace(shape=before.shape, stride=before.stride) == before
    if not is_alike or len(now.shape) != len(before.shape):
        return None
    pairs = [*zip(now.shape, before.shape, strict=True)]
    dims = {dim for dim, (one, other) in enumerate(pairs) if one != other}
    return None if any(min(pairs[dim]) < 2 for dim in dims) else dims


class DynamicShapes:
    """The entries of one function whose graphs have symbolic sizes.

    Args:
        name: of the function.
        arguments: whether sizes of arguments may be symbolic.
    """

    def __init__(self, name: str, arguments: bool) -> None:
        self._name = name
        self._arguments = arguments
        self._all: list[_DynamicEntry] = []
        self._failed = False

    def confirm(
        self,
        request: CompileRequest,
        signature: Signature,
        leaves: Sequence[Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> Entry | None:
        """Returns the entry of this call if it has run for other sizes alone, and is right."""
        for dynamic in self._all:
            if dynamic.confirm(request, signature, leaves, args, kwargs):
                return dynamic.built.entry
        return None

    def build(
        self,
        request: CompileRequest,
        signature: Signature,
        before: Sequence[Built],
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> Built | None:
        """Captures a call with symbolic sizes, if it differs from an earlier one only in sizes.

        If that can't be done, a warning says why, and it is not tried again.

        Args:
            before: what was built so far.
        """
        self._failed = self._failed or any(dynamic.guard.is_refuted() for dynamic in self._all)
        if self._failed:
            return None
        for built in reversed(before):
            changed = changed_sizes(signature, built) if built.entry.admits is None else None
            if changed is not None and (self._arguments or not any(changed.arguments)):
                break
        else:
            return None
        try:
            dynamic = _DynamicEntry(request, signature, changed, args, kwargs)
        except NotSymbolicError as error:
            self._failed = True
            if any(changed.arguments) and not self._all:
                warn(
                    f"torchlayers: compile: {self._name} can't be captured with symbolic sizes: "
                    f"{error}. Each shape is captured separately.",
                )
            return None
        self._all.append(dynamic)
        dynamic.built.why = _why(signature, built, changed)
        return dynamic.built


def _why(signature: Signature, before: Built, changed: ChangedSizes) -> str:
    if signature != before.entry.signature:
        return explain_new_signature(signature, before.entry.signature)
    for state in before.entry.carried:
        if isinstance(state, CarriedTensor):
            now = tensor_metadata(state.places[0].read())
            if now != state.like:
                return f"{state.name} {describe_difference(now, state.like)}"
    return f"{changed.numbers[0].key} is {changed.numbers[0].read()}"


class _DynamicEntry:
    """One entry with symbolic sizes. NOTE [A size that is a number]."""

    @gc_disabled()
    @discard_graph_source()
    def __init__(
        self,
        request: CompileRequest,
        call_signature: Signature,
        changed: ChangedSizes,
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> None:
        start = time.perf_counter()
        captured_graph = _with_open_state(
            _captured(request, call_signature, changed, args, kwargs), changed
        )
        fakes = [value(node) for node in inputs_of(captured_graph.graph)]
        signature = _with_open_leaves(call_signature, fakes)
        count = sum(isinstance(leaf, TensorMetadata) for leaf in call_signature.leaves)
        _refuse_numbers(changed, fakes[:count], captured_graph, fakes[count:])
        self._changed = changed
        mode: Any = mode_of(captured_graph.graph.graph)
        try:
            self.guard = SizeGuard(mode.shape_env, fakes)
        except ValueError as error:
            raise NotSymbolicError(str(error)) from error
        self._captured_graph = captured_graph
        self.built = build_captured(request, signature, args, kwargs, captured_graph, "", start)
        entry = self.built.entry
        entry.leave_open([*map(open_places, fakes)], self.guard)
        self.guard.first = entry.open_numbers(pytree.leaves((tuple(args), kwargs)))
        self.built.stages = lambda: [
            ("captured, with symbolic sizes", as_python(captured_graph.graph))
        ]
        self.guard.runs = self.built.runs
        self.guard.is_confirmed = not request.settings.check

    def confirm(
        self,
        request: CompileRequest,
        signature: Signature,
        leaves: Sequence[Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> bool:
        """Whether the entry runs this call, the first one with sizes other than at the capture.

        It is captured for its sizes too, and what runs is compared with that.
        """
        entry, guard = self.built.entry, self.guard
        if guard.is_confirmed or guard.is_refuted() or not entry.covers(signature):
            return False
        first, guard.first = guard.first, entry.open_numbers(leaves)
        try:
            alone = None
            if entry.fits(leaves):
                alone = self._capture(request, signature, args, kwargs)
        except Exception:  # the function's own, or a refusal: it is captured once more, alone
            alone = None
        if alone is None:
            guard.first = first
            return False
        if not are_alike(alone, self._captured_graph):
            guard.first, guard.is_unlike = first, True
            return False
        if isinstance(self.built.runs, VerifiedRun):
            self.built.runs.compare_with(replay_in_order_of(alone, self._captured_graph))
        guard.is_confirmed = True
        return True

    def _capture(
        self,
        request: CompileRequest,
        signature: Signature,
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> CapturedGraph:
        return record(
            request.func,
            args,
            kwargs,
            gradients=signature.modes.grad,
            guarded=request.settings.guards,
            replaced=request.replaced,
            sizes=self._changed.numbers,
        )


def _captured(
    request: CompileRequest,
    signature: Signature,
    changed: ChangedSizes,
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> CapturedGraph:
    try:
        captured_graph = record(
            request.func,
            args,
            kwargs,
            gradients=signature.modes.grad,
            symbolic=changed.arguments,
            symbolic_state=changed.state,
            sizes=changed.numbers,
            guarded=request.settings.guards,
            replaced=request.replaced,
        )
    except Exception as error:
        lines = str(error).strip().splitlines()
        raise NotSymbolicError(lines[0] if lines else type(error).__name__) from error
    if captured_graph.gradients is not None:
        raise NotSymbolicError("it is differentiated by plain autograd")
    if captured_graph.effects.grads_read:
        raise NotSymbolicError("it reads .grad of its inputs")
    if captured_graph.stepped:
        raise NotSymbolicError("it steps an optimizer")
    if captured_graph.lost or captured_graph.effects.writes.once:
        names = [write.name for write in captured_graph.lost]
        raise NotSymbolicError(f"it changes {', '.join(names) or 'what calls can not repeat'}")
    if drawn := captured_graph.effects.writes.drawn_from:
        raise NotSymbolicError(f"it changes {', '.join(state.name for state in drawn)}")
    if captured_graph.effects.writes.arrays:
        raise NotSymbolicError("it reads or sets elements of NumPy arrays")
    if communicates(captured_graph.graph):
        raise NotSymbolicError("other ranks' sizes are not known")
    return captured_graph


def _refuse_numbers(
    changed: ChangedSizes,
    arguments: Sequence[Any],
    captured_graph: CapturedGraph,
    captured: Sequence[Any],
) -> None:
    """Raises if a size that is to be symbolic is a number in the graph."""
    pairs = [*zip(arguments, changed.arguments, strict=True)]
    state = {
        **changed.state,
        **{id(tensor): {0} for _, tensor in captured_graph.effects.writes.sizes},
    }
    pairs += [
        (fake, state[id(tensor)])
        for tensor, fake in zip(captured_graph.captured, captured, strict=False)
        if id(tensor) in state
    ]
    if not all(is_symbolic(fake.shape[dim]) for fake, dims in pairs for dim in dims):
        raise NotSymbolicError("a size is used as a number, as by len or range")


def _with_open_leaves(signature: Signature, fakes: Sequence[Any]) -> Signature:
    inputs = iter(fakes)
    leaves = [
        with_open(leaf, open_places(next(inputs))) if isinstance(leaf, TensorMetadata) else leaf
        for leaf in signature.leaves
    ]
    return signature._replace(leaves=tuple(leaves))


def _with_open_state(captured_graph: CapturedGraph, changed: ChangedSizes) -> CapturedGraph:
    """Lets the tensors that calls replace have other sizes at each call."""
    count = len(captured_graph.captured)
    fakes = [value(node) for node in inputs_of(captured_graph.graph)][-count:] if count else []
    carried = [*captured_graph.carried]
    for i, state in enumerate(carried):
        if not isinstance(state, CarriedTensor):
            continue
        if state.position is not None:
            places = open_places(fakes[state.position])
        else:  # it is stored, and not read
            dims = len(state.like.shape)
            sizes = changed.state.get(id(state.places[0].read()), set[int]())
            places = [*sizes, *range(dims, 2 * dims)] if sizes else []
        carried[i] = state._replace(like=with_open(state.like, places))
    return captured_graph._replace(carried=carried)
