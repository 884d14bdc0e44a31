"""The choice of a derivative's mode, made once for arguments of these shapes, and kept."""

import contextlib
import types
from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from torchlayers.compiler.capture.record import record
from torchlayers.compiler.capture.state.guards import Guards
from torchlayers.compiler.jacobian.differentiated import DifferentiatedFunction
from torchlayers.compiler.jacobian.mode_costs import (
    JacobianCosts,
    ModeCosts,
    ModeCounter,
    describe_arguments,
    fakes,
    first_line,
    outside_layers,
)
from torchlayers.core import pytree
from torchlayers.core.tensors.shape_dtype import ShapeDtypeStruct
from torchlayers.core.tensors.tensor_versions import version_of
from torchlayers.fx.operator_tracer import records_operators
from torchlayers.remat.checkpoint import without_saved_tensor_hooks
from torchlayers.taps.loop_steps import without_listeners
from torchlayers.transforms.jacobian.basis import refuse_complex, require_tensors
from torchlayers.transforms.sparse.bookkeeping import bookkeeping
from torchlayers.transforms.sparse.coloring import Coloring, coloring
from torchlayers.transforms.sparse.detection.layer import plain_value
from torchlayers.transforms.sparse.detection.trial_run import trial_run

_NO_PATTERN = "since what its sparsity pattern depends on changes between calls"
# A pattern is not looked for in a Jacobian with fewer products than the first, which are cheap, or
# more elements than the second: one of a dense Jacobian would take some 16 bytes for each.
_FEW_PRODUCTS, _MANY_ELEMENTS = 8, 30_000_000
# So many signatures are kept, and so often a pattern that no longer holds is detected again.
_MOST_SIGNATURES, _MOST_PATTERNS = 64, 2


class PatternBasis:
    """What a detected pattern depends on: constants, whose zeros and indices are in it.

    Args:
        args: the call's arguments, those in ``places`` being differentiated.
        captured: the tensors that the function captures.
        guards: the Python state that it read.
    """

    def __init__(
        self,
        args: tuple[Any, ...],
        places: tuple[int, ...],
        captured: list[Tensor],
        guards: Guards | None,
    ) -> None:
        self._places = places
        self._others = [_cloned(value) for value in _constants(args, places)]
        self._captured = [(tensor, version_of(tensor)) for tensor in captured]
        self._guards = guards

    def holds(self, args: tuple[Any, ...]) -> bool:
        """Whether nothing of it has changed."""
        return (
            all(version_of(tensor) == version for tensor, version in self._captured)
            and (self._guards is None or not self._guards.failed())
            and all(map(_is_same, self._others, _constants(args, self._places)))
        )


def _constants(args: tuple[Any, ...], places: tuple[int, ...]) -> list[Any]:
    """The values of the arguments that are not differentiated; None of one that has no values."""
    leaves = [leaf for i, arg in enumerate(args) if i not in places for leaf in pytree.leaves(arg)]
    with bookkeeping():
        return [plain_value(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]


def _cloned(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _is_same(old: Any, new: Any) -> bool:
    if isinstance(old, Tensor) and isinstance(new, Tensor):
        return torch.equal(old, new)
    return isinstance(new, (int, float, str)) and type(old) is type(new) and old == new


def _holds(basis: PatternBasis | None, args: tuple[Any, ...]) -> bool:
    """Whether a decision applies here; in a captured graph, one by a pattern does not."""
    return basis is None or (not records_operators() and basis.holds(args))


class Decision(NamedTuple):
    """The mode for one signature.

    Attributes:
        costs: the reasons.
        without_pattern: the better one of forward and reverse mode, with its chunk size.
        coloring, basis: of the sparse mode; None in another.
    """

    costs: JacobianCosts
    without_pattern: tuple[str, int | None]
    coloring: Coloring | None = None
    basis: PatternBasis | None = None

    def without(self, reason: str) -> "Decision":
        """The better one of forward and reverse mode, where a pattern can't be relied on."""
        mode, chunk_size = self.without_pattern
        text = self.costs._replace(mode=mode, chunk_size=chunk_size, why=reason)
        return Decision(text, self.without_pattern)

    def function(self, differentiated: DifferentiatedFunction) -> Callable[..., Any]:
        """The derivative in the chosen mode."""
        if self.coloring is not None:
            return differentiated.sparse(self.coloring, self.costs.chunk_size)
        return differentiated.in_mode(*self.without_pattern)


class _Shared:
    """Decisions for one piece of code, which hold nothing of the functions that run it."""

    def __init__(self) -> None:
        self.by_signature: dict[Any, Decision] = {}
        self.patterns: dict[Any, int] = {}  # how many were detected


_shared: WeakKeyDictionary[Any, _Shared] = WeakKeyDictionary()


def _shared_by(func: Callable[..., Any]) -> _Shared:
    """The decisions for a function's code: a lambda that is made at each call has one code."""
    while (wrapped := getattr(func, "__wrapped__", None)) is not None:
        func = wrapped
    if isinstance(func, types.MethodType):
        func = func.__func__
    code: Any = getattr(func, "__code__", func)
    try:
        return _shared.setdefault(code, _Shared())
    except TypeError:  # it can't be hashed, or not referred to weakly
        return _Shared()


def _shapes_in_closure(func: Callable[..., Any]) -> tuple[Any, ...]:
    """The shapes of tensors that a function captures directly; two closures may differ in them."""
    cells = getattr(func, "__closure__", None) or ()
    shapes: list[Any] = []
    for cell in cells:
        with contextlib.suppress(ValueError):  # it is empty
            leaves = pytree.leaves(cell.cell_contents)
            shapes += [tuple(leaf.shape) for leaf in leaves if isinstance(leaf, Tensor)]
    return tuple(shapes)


def _signature_of_tensors(args: tuple[Any, ...]) -> Any:
    """What a decision is kept for if all arguments are tensors; None otherwise."""
    if not all(isinstance(arg, Tensor) for arg in args):
        return None
    return tuple([(arg.shape, arg.dtype, arg.device) for arg in args])


class _LastCall(NamedTuple):
    """The function for tensors of the last call's shapes, which most often the next one has, too.

    Comparing them takes a third of the time of looking up a signature.
    """

    signature: tuple[tuple[torch.Size, torch.dtype, torch.device], ...]
    basis: PatternBasis | None
    function: Callable[..., Any]

    def is_for(self, args: tuple[Any, ...]) -> bool:
        if len(args) != len(self.signature):
            return False
        for arg, (shape, dtype, device) in zip(args, self.signature, strict=True):
            if not isinstance(arg, Tensor) or arg.shape != shape:
                return False
            if arg.dtype is not dtype or arg.device != device:
                return False
        return True


class Decisions:
    """Decides for the calls of one derivative, and keeps what was decided.

    Args:
        differentiated: the function.
        memory_budget: bytes; None for half of the free memory.
        anchor: the user's function. With names in argnums, ``differentiated`` has another one, made
            anew at each call.
    """

    def __init__(
        self,
        differentiated: DifferentiatedFunction,
        memory_budget: int | None,
        anchor: Callable[..., Any],
    ) -> None:
        self._differentiated = differentiated
        self._budget = memory_budget
        self._shared = _shared_by(anchor)
        self._takes_patterns = anchor is differentiated.func
        self._captured_shapes = _shapes_in_closure(anchor)
        self._by_signature: dict[Any, tuple[Decision, Callable[..., Any]]] = {}
        self._last: _LastCall | None = None

    def function_for(self, args: tuple[Any, ...]) -> Callable[..., Any]:
        """The derivative in the mode for these arguments."""
        last = self._last
        if last is not None and last.is_for(args) and _holds(last.basis, args):
            return last.function
        of_tensors = _signature_of_tensors(args)
        signature = of_tensors or self._signature(args)
        match = self._by_signature.get(signature)
        if match is not None and _holds(match[0].basis, args):
            decision, function = match
        else:
            decision, function = self._decide_anew(signature, args)
        if of_tensors is not None and not records_operators():
            self._last = _LastCall(of_tensors, decision.basis, function)
        return function

    def _decide_anew(
        self, signature: Any, args: tuple[Any, ...]
    ) -> tuple[Decision, Callable[..., Any]]:
        api = self._differentiated.api
        refuse_complex(api, "argument", args)
        places = pytree.positions(api, self._differentiated.argnums, len(args))
        require_tensors(api, pytree.leaves(pytree.pick(args, places)), args, places)
        is_captured = records_operators()
        decision = self._decide(self._signature(args), args, is_captured)
        function = decision.function(self._differentiated)
        if not is_captured:
            self._by_signature[signature] = decision, function
            if len(self._by_signature) > _MOST_SIGNATURES:
                del self._by_signature[next(iter(self._by_signature))]
        return decision, function

    def costs(self) -> tuple[JacobianCosts, ...]:
        """Those of the signatures so far."""
        return tuple(decision.costs for decision, _ in self._by_signature.values())

    def _signature(self, args: tuple[Any, ...]) -> Any:
        """What a decision is kept for: shapes, and not values, on which only patterns depend."""
        leaves, spec = pytree.flatten(args)
        facts = [
            (tuple(leaf.shape), leaf.dtype, leaf.device)
            if isinstance(leaf, Tensor)
            else leaf
            if isinstance(leaf, (int, str)) and len(self._shared.by_signature) < _MOST_SIGNATURES
            else type(leaf)
            for leaf in leaves
        ]
        return self._differentiated.key, self._budget, self._captured_shapes, spec, *facts

    def _decide(self, signature: Any, args: tuple[Any, ...], is_captured: bool) -> Decision:
        earlier = self._shared.by_signature.get(signature)
        detected = self._shared.patterns.get(signature, 0)
        if earlier is not None and (not detected or detected > _MOST_PATTERNS or is_captured):
            return earlier
        if is_captured:
            return decide_by_sizes(self._differentiated, args, "inside a captured function")
        reason = "argnums has names" if not self._takes_patterns else ""
        decision = decide(self._differentiated, args, self._budget, reason)
        if len(self._shared.by_signature) <= 2 * _MOST_SIGNATURES:
            shared = decision if decision.coloring is None else decision.without(_NO_PATTERN)
            self._shared.by_signature[signature] = shared
        if decision.coloring is not None:
            self._shared.patterns[signature] = detected + 1
        return decision


def decide(
    differentiated: DifferentiatedFunction,
    args: tuple[Any, ...],
    memory_budget: int | None,
    no_pattern: str = "",
) -> Decision:
    """Counts the costs in each mode, and chooses.

    Args:
        differentiated, args: the function and its arguments.
        memory_budget: bytes; None for half of the free memory.
        no_pattern: why the sparse mode is not to be tried.
    """
    counter = ModeCounter(differentiated, args)
    modes = [counter.count("forward"), counter.count("reverse")]
    possible = [mode for mode in modes if not mode.refusal]
    if not possible:
        return decide_by_sizes(differentiated, args, modes[0].refusal, tuple(modes))
    colored: Coloring | None = None
    if not no_pattern:
        no_pattern = _reason_against_pattern(counter)
    if not no_pattern:
        try:
            colored = _find_coloring(differentiated, args)
        except Exception as error:
            no_pattern = f"no pattern: {first_line(error)}"
    if colored is not None:
        if colored.num_colors < min(mode.products for mode in possible):
            modes.append(counter.count("sparse", colored))
        else:
            no_pattern = f"the pattern needs {colored.num_colors} products, too"
    if no_pattern:
        modes.append(ModeCosts("sparse", refusal=no_pattern))
    chunks = {mode.mode: counter.chunk_size(mode, memory_budget) for mode in possible}
    times = {mode.mode: counter.seconds_in_chunks(mode, chunks[mode.mode]) for mode in possible}
    best = min(possible, key=lambda mode: times[mode.mode])
    chosen, chunk_size = best, chunks[best.mode]
    if not modes[-1].refusal:
        chunk_size_of_sparse = counter.chunk_size(modes[-1], memory_budget)
        if counter.seconds_in_chunks(modes[-1], chunk_size_of_sparse) < times[best.mode]:
            chosen, chunk_size = modes[-1], chunk_size_of_sparse
    why = "which has the least estimate" if len(modes) > 1 else "the only one possible"
    if chunk_size is not None:
        why += f", {chunk_size} products at a time to stay within the memory budget"
    shape = counter.height, counter.width
    text = JacobianCosts(
        describe_arguments(args), shape, tuple(modes), chosen.mode, chunk_size, why
    )
    without_pattern = best.mode, chunks[best.mode]
    if chosen.mode != "sparse":
        return Decision(text, without_pattern)
    try:
        return Decision(text, without_pattern, colored, _basis_of_pattern(differentiated, args))
    except Exception:  # some state can't be compared
        return Decision(text, without_pattern).without(_NO_PATTERN)


def _reason_against_pattern(counter: ModeCounter) -> str:
    """Why no pattern is looked for; empty to look for one."""
    if any(isinstance(leaf, ShapeDtypeStruct) for leaf in pytree.leaves(counter.args)):
        return "a pattern depends on values, and the arguments are shapes"
    if refusal := counter.differentiated.reason_against_sparse(counter.outputs):
        return refusal
    if min(counter.height, counter.width) <= _FEW_PRODUCTS:
        return f"not tried, with at most {_FEW_PRODUCTS} products otherwise"
    if counter.height * counter.width > _MANY_ELEMENTS:
        return f"not tried for more than {_MANY_ELEMENTS:,} elements (sparse=True has no limit)"
    return ""


def _find_coloring(differentiated: DifferentiatedFunction, args: tuple[Any, ...]) -> Coloring:
    # A checkpoint recomputes the derivative and not this, and taps are met once.
    with without_saved_tensor_hooks(), without_listeners():
        pattern = differentiated.detect_pattern(args)
    with bookkeeping():
        return coloring(pattern, differentiated.coloring_mode)


def _basis_of_pattern(
    differentiated: DifferentiatedFunction, args: tuple[Any, ...]
) -> PatternBasis:
    places = pytree.positions(differentiated.api, differentiated.argnums, len(args))
    with outside_layers():
        captured = record(differentiated.func, fakes(args), guarded=True, writes=False)
    if any(tensor.is_inference() for tensor in captured.captured):
        raise ValueError("writes to tensors of inference mode are not counted")
    return PatternBasis(args, places, captured.captured, captured.guards)


def decide_by_sizes(
    differentiated: DifferentiatedFunction,
    args: tuple[Any, ...],
    reason: str,
    modes: tuple[ModeCosts, ...] = (),
) -> Decision:
    """Chooses by the numbers of inputs and outputs alone: the function runs once for the latter."""
    places = pytree.positions(differentiated.api, differentiated.argnums, len(args))
    with trial_run():
        result = differentiated.func(*args)
    is_pair = differentiated.has_aux and isinstance(result, tuple) and result
    output = result[0] if is_pair else result
    inputs, outputs = (
        sum(leaf.numel() for leaf in pytree.leaves(tree) if isinstance(leaf, Tensor))
        for tree in (pytree.pick(args, places), output)
    )
    mode = differentiated.mode_by_sizes(outputs, inputs)
    shape = differentiated.rows(outputs, inputs), inputs
    why = f"by its sizes alone ({reason})"
    text = JacobianCosts(describe_arguments(args), shape, modes, mode, None, why)
    return Decision(text, (mode, None))
