"""Calls compiled functions: finds the entry for the arguments, runs it, and rebuilds the result.

The steps are: flatten, compare the signature, gather the captured tensors, run, unflatten. C++ does
them for the calls it supports (csrc/python/compiled/compiled_call.cpp); this file does them for the
first call with a signature, and for calls with other kinds of pytrees or tensors.
compiler/compiled_function.py makes the entries.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchlayers import _C
from torchlayers.compiler.capture.errors import NotWritableError
from torchlayers.compiler.capture.optimizers import FirstStepError
from torchlayers.compiler.capture.recording import OutputSource
from torchlayers.compiler.capture.side_effects import grad_of_layout
from torchlayers.compiler.capture.signature import (
    Signature,
    TensorMetadata,
    is_like,
    is_plain,
    signature,
    tensor_metadata,
    with_open,
)
from torchlayers.compiler.capture.state.carried_tensors import (
    CarriedNumber,
    CarriedTensor,
    tensors_now,
)
from torchlayers.compiler.capture.state.guards import Guards
from torchlayers.compiler.capture.state.iterators import values_found_again
from torchlayers.compiler.capture.state.outside_world import OutsideWorldError
from torchlayers.compiler.capture.tensor_hooks import HookedTensor
from torchlayers.core import pytree
from torchlayers.core.torch_private import dispatch_modes, functorch, is_jit_tracing
from torchlayers.core.trace.calls import CompiledCode

# The number of entries retained per signature, for Python state that changes back.
_KEPT = 16


_LEAF = pytree.flatten(0)[1]


class Entry(_C.CompiledEntry):
    """Runs the calls with one signature, as long as its guards hold.

    ``run`` takes the arguments' tensors and the captured ones, in one list that it may keep or
    clear, and returns a list of tensors; ``outputs`` describes how the result is built from them.
    ``run`` may be replaced at any time. It is called with grad mode off unless ``is_recorded``.
    """

    def __init__(
        self,
        signature: Signature,
        captured: list[Tensor],
        outputs: list[OutputSource],
        out_spec: pytree.TreeSpec,
        hooked: list[HookedTensor],
        guarded: Guards | None,
        carried: list[CarriedTensor | CarriedNumber],
    ) -> None:
        self.signature = signature
        self.captured = captured
        self.carried = carried
        self.guarded = guarded
        self.guards = None if guarded is None else guarded.held  # checked by C++
        self.hooked = hooked
        self.captured_like: list[TensorMetadata] = [tensor_metadata(tensor) for tensor in captured]
        self.outputs = outputs
        self.out_spec = out_spec
        # Which sizes and strides of the inputs are symbolic, counted for each over both, and what
        # these have to satisfy: a function of them, or None.
        self.open: list[list[int]] = []
        self.admits: Callable[[Sequence[int]], bool] | None = None
        # Set when it has been built.
        self.runner: Any = None
        self.owner: Callable[[], Any] = _nothing  # a weak reference to the compiled function
        self.grads_like: dict[
            int, TensorMetadata | None
        ] = {}  # the .grad of each input where it was read

    def fits(self, leaves: Sequence[Any]) -> bool:
        """Whether captured tensors, hooks and Python state are as at the capture."""
        captured = self.captured_now()
        return (
            captured is not None
            and all(map(_fits, captured, self.captured_like))
            and (self.admits is None or self.admits(self._open_numbers(leaves, captured)))
            and self.holds(leaves, captured)
        )

    def leave_open(self, places: list[list[int]], admits: Callable[[Sequence[int]], bool]) -> None:
        """Lets calls have other sizes and strides in these places of the inputs."""
        self.open, self.admits = places, admits
        count = len(places) - len(self.captured)
        of_captured = places[max(count, 0) :]
        opened = map(with_open, self.captured_like, of_captured)
        self.captured_like[: len(of_captured)] = opened

    def covers(self, call_signature: Signature) -> bool:
        """Whether this is the signature of a call, apart from what is open in it."""
        saved = self.signature
        return (call_signature.spec, call_signature.static, call_signature.modes) == (
            saved.spec,
            saved.static,
            saved.modes,
        ) and all(
            is_like(one, other)
            if isinstance(one, TensorMetadata) and isinstance(other, TensorMetadata)
            else one == other
            for one, other in zip(call_signature.leaves, saved.leaves, strict=True)
        )

    def open_numbers(self, leaves: Sequence[Any]) -> tuple[int, ...]:
        """Returns the sizes and strides of a call that are symbolic."""
        return self._open_numbers(leaves, self.captured_now() or ())

    def _open_numbers(self, leaves: Sequence[Any], captured: Sequence[Tensor]) -> tuple[int, ...]:
        inputs = [*(leaf for leaf in leaves if isinstance(leaf, Tensor)), *captured]
        layouts = [(*tensor.shape, *tensor.stride()) for tensor in inputs[: len(self.open)]]
        pairs = zip(layouts, self.open, strict=False)
        return tuple(layout[place] for layout, places in pairs for place in places)

    def holds(self, leaves: Sequence[Any], captured: Sequence[Tensor]) -> bool:
        """Like ``fits``, apart from the captured tensors themselves."""
        return (
            (self.guards is None or self.guards.hold())
            and all(hooked.still_holds() for hooked in self.hooked)
            and (not self.grads_like or self._has_such_grads(leaves, captured))
        )

    def captured_now(self) -> list[Tensor] | None:
        """Returns the captured tensors of a call; None if one that calls replace does not fit."""
        return tensors_now(self.captured, self.carried)

    def _has_such_grads(self, leaves: Sequence[Any], captured: Sequence[Tensor]) -> bool:
        tensors = [*(leaf for leaf in leaves if isinstance(leaf, Tensor)), *captured]
        return all(grad_of_layout(tensors[i]) == layout for i, layout in self.grads_like.items())

    def call(self, leaves: list[Any], captured: list[Tensor]) -> Any:
        self.calls += 1
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        with torch.set_grad_enabled(self.is_recorded and torch.is_grad_enabled()):
            computed = self.run([*tensors, *captured])
        _C.note_run(self)
        return self.result(leaves, captured, computed)

    def result(
        self, leaves: Sequence[Any], captured: Sequence[Tensor], computed: Sequence[Any]
    ) -> Any:
        """Returns the function's result, made of the leaves and of what was computed from them."""
        results = []
        for source, value in self.outputs:
            if source == "computed":
                results.append(computed[value])
            elif source == "number":
                results.append(computed[value].item())
            elif source == "argument":
                results.append(leaves[value])
            elif source == "captured":
                results.append(captured[value])
            else:
                results.append(value)
        return pytree.unflatten(results, self.out_spec)

    def returns_first(self) -> bool:
        """Whether the function's result is the first tensor that is computed."""
        return self.outputs == [OutputSource("computed", 0)] and self.out_spec == _LEAF

    def traced_how(self) -> str:
        """How it runs, as traces say it."""
        return how_it_ran(self.runner.how)

    def traced_code(self) -> CompiledCode:
        """What traces say of it. It keeps the compiled function alive."""
        return self.owner().code_of(self)  # type: ignore[no-any-return]


def _nothing() -> None:
    pass


def how_it_ran(how: str) -> str:
    """A runner's ``how`` as what it did: "compiled", "replayed, until compiled", ..."""
    did = {"inductor": "compiled", "replay": "replayed", "as it is": "uncompiled"}
    parts = []
    for part in how.split("; "):
        kind = next((kind for kind in did if part.startswith(kind)), "")
        parts.append(did.get(kind, "") + part.removeprefix(kind))
    return "; ".join(parts)


def _fits(tensor: Tensor, expected: TensorMetadata) -> bool:
    return is_like(tensor_metadata(tensor), expected)


class EntryCache:
    """The entries of one function, looked up by signature."""

    def __init__(self) -> None:
        self._by_key: dict[Any, list[Entry]] = {}
        self._open: list[Entry] = []  # with symbolic sizes
        self.all: list[Entry] = []

    def find(self, call_signature: Signature, leaves: Sequence[Any]) -> Entry | None:
        for entry in reversed(self._by_key.get(call_signature.key(), ())):
            if entry.signature.spec == call_signature.spec and entry.fits(leaves):
                return entry
        for entry in self._open:
            if entry.covers(call_signature) and entry.fits(leaves):
                return entry
        return None

    def add(self, entry: Entry) -> Entry | None:
        """Adds an entry; returns the oldest for its signature if there are too many, or None."""
        self.all.append(entry)
        if entry.admits is not None:
            self._open.append(entry)
            return None
        alike = self._by_key.setdefault(entry.signature.key(), [])
        alike.append(entry)
        if len(alike) <= _KEPT:
            return None
        self.all.remove(alike[0])
        return alike.pop(0)

    def unused(self, call_signature: Signature) -> list[Entry]:
        """The last entries for a signature, none of which has run a second call."""
        latest = reversed(self._by_key.get(call_signature.key(), ()))
        return [*itertools.takewhile(lambda entry: entry.calls <= 1, latest)]


def must_inline(leaves: Sequence[Any]) -> bool:
    """Whether a layer, a capture, a mode or a tensor subclass has to see each operator."""
    return (
        _C.any_layer()
        or functorch.maybe_current_level() is not None
        or bool(dispatch_modes._get_current_dispatch_mode_stack())
        or _C.any_function_mode()
        or is_jit_tracing()
        or _C.any_dual_level_of_others()
        or any(isinstance(leaf, Tensor) and not is_plain(leaf) for leaf in leaves)
    )


def static_positions(static: Sequence[int], args: Sequence[Any]) -> set[int]:
    """The indices of the static arguments that are present; negative ones count from the end."""
    count = len(args)
    return {place % count for place in static if -count <= place < count}


def call(
    entries: EntryCache,
    make: Callable[[Signature, tuple[Any, ...], dict[str, Any]], Entry],
    func: Callable[..., Any],
    static: set[int],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Returns func(*args, **kwargs), by the entry that fits, or one that make adds."""
    dynamic = args
    if static:
        dynamic = tuple(arg for i, arg in enumerate(args) if i not in static)
    leaves, spec = pytree.flatten((dynamic, kwargs))
    if must_inline(leaves):
        return func(*args, **kwargs)
    call_signature = signature(leaves, spec, [args[i] for i in sorted(static)])
    entry = entries.find(call_signature, leaves)
    if entry is None:
        try:
            entry = make(call_signature, args, kwargs)
        except (FirstStepError, NotWritableError, OutsideWorldError):
            entry = None
        if entry is None:
            with values_found_again():
                return func(*args, **kwargs)
    if (captured := entry.captured_now()) is None:  # another thread has replaced a tensor
        return func(*args, **kwargs)
    return entry.call(leaves, captured)
