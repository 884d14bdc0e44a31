"""The calls of a trace.

Operators, the layers around them, compiled functions, and ranges of torch.profiler's.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

SHORT_DTYPES = {
    "Float": "f32",
    "Double": "f64",
    "Half": "f16",
    "BFloat16": "bf16",
    "Long": "i64",
    "Int": "i32",
    "Short": "i16",
    "Char": "i8",
    "Byte": "u8",
    "Bool": "bool",
    "ComplexFloat": "c64",
    "ComplexDouble": "c128",
}

# Kernels that only move elements, and operators that copy by themselves where they must.
COPIES = {"aten::clone", "aten::copy_", "aten::_to_copy", "aten::contiguous"}
MAY_COPY = COPIES | {"aten::reshape", "aten::flatten", "aten::to", "aten::repeat", "aten::stack"}


class TracedTensor(NamedTuple):
    """A tensor as an operator saw it.

    ``dtype`` is a short name ("f32"); ``shape`` that of a single sample if it is batched;
    ``level`` that of the outermost layer that holds it, 0 for a plain tensor; ``batch_dim`` the
    batch dimension in its value, None if it is not batched at that level.
    """

    dtype: str
    shape: tuple[int, ...]
    level: int
    batch_dim: int | None

    def __str__(self) -> str:
        batch = "" if self.batch_dim is None else f"@{self.batch_dim}"
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]{batch}"


class Step(NamedTuple):
    """What a layer did with an operator: csrc/core/trace/trace.h lists the steps."""

    step: str
    layer: str
    level: int


# How a layer deals with an operator, by the step that tells.
HOW = {
    "typed": "typed kernel",
    "decompose": "decomposed",
    "rule": "rule",
    "torch": "torch's kernel",
    "process": "passed down",
    "send_down": "passed down",
}


@dataclass(eq=False, frozen=True)
class CompiledCode:
    """What ran calls of a compiled function with one signature.

    ``arguments`` are those of the signature in short form; ``why`` says how it differs from earlier
    ones, if there were any; ``stages`` captures the function again and returns the names of the
    passes that changed its graph, each with the graph as Python after it.
    """

    name: str
    arguments: str
    why: str
    stages: Callable[[], list[tuple[str, str]]] = field(repr=False)


@dataclass(eq=False)
class TracedCall:
    """One call of an operator at one layer; a layer from its entry to its exit; or another range.

    ``kind`` is "operator", "layer", "compiled" (a call of a compiled function) or "range";
    ``layer`` and ``level`` say at which layer an operator arrived, ``how`` what the layer did:
    "typed kernel", "rule", "torch's kernel", "decomposed" or "passed down". Below all layers the
    layer is None, and ``how`` "kernel", or "composite" for an operator that calls others. Of a
    compiled function, ``how`` is "compiled", "replayed" (and why), "uncompiled" (and why), or
    "inlined" if a transform around it ran its operators; ``is_captured`` says that it was captured
    for this call, and ``code`` what ran it. ``begin`` and ``end`` are nanoseconds of the system's
    clock; ``source`` is (file, line) of the user's code for calls that came from it.
    """

    kind: str
    name: str
    samples: int | None
    parent: "TracedCall | None"
    thread: int
    begin: int
    end: int
    has_raised: bool
    source: tuple[str, int] | None
    inputs: tuple[TracedTensor, ...]
    outputs: tuple[TracedTensor, ...]
    layer: str | None
    level: int
    how: str
    steps: tuple[Step, ...]
    is_captured: bool = False
    code: CompiledCode | None = None
    children: list["TracedCall"] = field(default_factory=list, repr=False)

    @property
    def nanoseconds(self) -> int:
        """How long it took, with all that it called."""
        return max(self.end - self.begin, 0)

    @property
    def own_nanoseconds(self) -> int:
        """How long it took without what it called."""
        return max(self.nanoseconds - sum(child.nanoseconds for child in self.children), 0)

    @property
    def is_kernel(self) -> bool:
        """Whether it is an operator's kernel, below all layers."""
        return self.how == "kernel"

    @property
    def iterations(self) -> int:
        """How many times a vmap called the operator for it, where it loops over samples; or 0."""
        if self.layer != "vmap":
            return 0
        called = self.children
        if len(called) == 1 and called[0].how == "composite":  # torch's fallback for all operators
            called = called[0].children
        count = sum(child.name == self.name for child in called)
        return count if count >= max(self._samples or 0, 2) else 0

    @property
    def _samples(self) -> int | None:
        """The batch size of the vmap at which it arrived, if the vmap was entered in the trace."""
        call = self.parent
        while call is not None:
            if call.kind == "layer" and call.level == self.level:
                return call.samples
            call = call.parent
        return None

    @property
    def is_copy(self) -> bool:
        """Whether it is a copy that a layer made, and no line of the user's."""
        by_user = self.called_by_user
        return (
            self.is_kernel
            and by_user is not self
            and _base(self.name) in COPIES
            and _base(by_user.name) not in MAY_COPY
        )

    @property
    def called_by_user(self) -> "TracedCall":
        """The operator that the user's code called, and that this one is part of."""
        call = self
        while call.parent is not None and call.parent.kind == "operator":
            call = call.parent
        return call

    @property
    def place(self) -> str:
        """Where it arrived: "vmap (level 1)", "kernel", "composite" or "compiled function"."""
        if self.kind == "compiled":
            return "compiled function"
        return self.how if self.layer is None else f"{self.layer} (level {self.level})"

    @property
    def short_name(self) -> str:
        """An operator's name without "aten::" and overload; that of a layer says its level."""
        return self.place if self.kind == "layer" else _base(self.name.removeprefix("aten::"))

    @property
    def line(self) -> str:
        """ "train.py:7", or ""."""
        return f"{os.path.basename(self.source[0])}:{self.source[1]}" if self.source else ""

    def walk(self) -> Iterator["TracedCall"]:
        """This call and all below it, in the order in which they began."""
        waiting = [self]
        while waiting:
            call = waiting.pop()
            yield call
            waiting.extend(reversed(call.children))


def walk(outermost: list[TracedCall]) -> Iterator[TracedCall]:
    """All calls, in the order in which they began."""
    for call in outermost:
        yield from call.walk()


def calls_of(first: int, records: list[tuple[Any, ...]], until: int) -> list[TracedCall]:
    """The outermost calls of a recording.

    Args:
        first: the number of the first record.
        records: what _C.stop_trace returns.
        until: when the recording ended, which a call that has not ended by then is given as end.
    """
    calls: list[TracedCall] = []
    outermost: list[TracedCall] = []
    for record in records:
        kind, name, level, samples, parent, thread, begin, end, has_raised, source = record[:10]
        inputs, outputs, steps, is_captured, run = record[10:]
        around = calls[parent - first] if parent >= first else None
        code, how = run or (None, "inlined" if kind == "compiled" else kind)
        call = TracedCall(
            kind,
            name,
            samples if samples >= 0 else None,
            around,
            thread,
            begin,
            end or until,
            has_raised,
            source,
            tuple(_tensor(*tensor) for tensor in inputs),
            tuple(_tensor(*tensor) for tensor in outputs),
            name if kind == "layer" else None,
            level,
            how,
            tuple(Step(*step) for step in steps),
            is_captured,
            code,
        )
        if around is not None and around.kind == "compiled" and around.source == source:
            call.source = None  # the line is that of the compiled function's call
        calls.append(call)
        (outermost if around is None else around.children).append(call)
    for call in calls:
        if call.kind == "operator":
            _find_layer(call)
    return outermost


def _base(name: str) -> str:
    return name.partition(".")[0]


def _tensor(dtype: str, shape: tuple[int, ...], level: int, batch_dim: int | None) -> TracedTensor:
    return TracedTensor(SHORT_DTYPES.get(dtype, dtype), shape, level, batch_dim)


def _find_layer(call: TracedCall) -> None:
    if not call.steps:
        parts = any(child.kind == "operator" for child in call.children)
        call.how = "composite" if parts else "kernel"
        return
    call.layer, call.level = call.steps[0].layer, call.steps[0].level
    taken = {step.step for step in call.steps}
    call.how = next((how for step, how in HOW.items() if step in taken), call.steps[0].step)
