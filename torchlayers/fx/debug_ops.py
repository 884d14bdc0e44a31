"""Operators without results that print, check or show values: torchlayers.debug.

In a captured graph they are nodes that run at each run of the graph, in the order of the capture.
All they need besides tensors is text, so that a graph with them can be saved.
"""

import ast
import builtins
import contextlib
import itertools
import json
import os
import pdb
import re
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.fx.node import has_side_effect

from torchlayers import _C
from torchlayers.core.errors import CheckError, location
from torchlayers.core.tensors.inspection import wrappers
from torchlayers.core.torch_private import FakeTensor, TorchDispatchMode, functorch

# Defined and implemented here; kept, because the operators go with it.
_library = torch.library.Library("torchlayers", "FRAGMENT")  # type: ignore[no-untyped-call]
_SCHEMA = "(Tensor[] values, str text, str placement) -> ()"
_ORDERED_SCHEMA = "(Tensor(a!) order, Tensor[] values, str text, str placement) -> ()"


class Subset(NamedTuple):
    """Samples of a batch that a vmap of control flow runs on.

    ``sizes`` are those of the batch's vmaps; ``places`` has the place in the batch of each sample,
    and ``taken`` whether it is one of them: the others stand in, and their values are not shown.
    """

    sizes: list[int]
    places: list[int] | None
    taken: list[bool] | None

    def numbers(self, row: int) -> tuple[int, ...]:
        """The sample's index in each vmap of the batch."""
        place = row if self.places is None else self.places[row]
        result: list[int] = []
        for size in reversed(self.sizes):
            place, number = divmod(place, size)
            result.insert(0, number)
        return tuple(result)


class Batch:
    """Tensors with the samples of several vmaps in front, by level, outermost first."""

    def __init__(
        self,
        values: Sequence[Tensor],
        levels: Sequence[Sequence[int]],
        subsets: dict[int, Subset],
    ) -> None:
        self._values, self._levels, self._subsets = values, levels, subsets
        sizes: dict[int, int] = {}
        for value, dims in zip(values, levels, strict=True):
            sizes.update(zip(dims, value.shape, strict=False))
        self._sizes = dict(sorted(sizes.items()))

    def selected(self, sample: str | list[int]) -> Iterator[tuple[str, list[Tensor]]]:
        """What to show: each sample with its name, one of them, or all at once."""
        if any(
            subset.taken is not None and not any(subset.taken) for subset in self._subsets.values()
        ):
            return
        if sample == "batch":
            yield "", self._values_at({level: self._rows(level) for level in self._sizes})
            return
        if isinstance(sample, list) and not self._subsets:
            chosen = dict(zip(self._sizes, sample, strict=False))
            if all(number < self._sizes[level] for level, number in chosen.items()):
                yield "", self._values_at(chosen)
            return
        rows = [self._rows(level).tolist() for level in self._sizes]
        for indices in itertools.product(*rows):
            chosen = dict(zip(self._sizes, indices, strict=True))
            numbers = self._numbers(chosen)
            if isinstance(sample, list):
                if numbers[: len(sample)] != (*sample,):
                    continue
                numbers = numbers[len(sample) :]
            shown = numbers[0] if len(numbers) == 1 else numbers
            yield f"sample {shown}: " if numbers else "", self._values_at(chosen)

    def _rows(self, level: int) -> Tensor:
        rows = torch.arange(self._sizes[level])
        taken = self._subsets[level].taken if level in self._subsets else None
        return rows if taken is None else rows[torch.tensor(taken)]

    def _numbers(self, rows: dict[int, int]) -> tuple[int, ...]:
        result: list[int] = []
        for level, row in rows.items():
            subset = self._subsets.get(level)
            result += (row,) if subset is None else subset.numbers(row)
        return tuple(result)

    def _values_at(self, chosen: dict[int, Any]) -> list[Tensor]:
        return [
            self._of_value(value, levels, chosen)
            for value, levels in zip(self._values, self._levels, strict=True)
        ]

    def _of_value(self, value: Tensor, levels: Sequence[int], chosen: dict[int, Any]) -> Tensor:
        dim = 0
        for level in levels:
            rows = chosen.get(level)
            if isinstance(rows, Tensor):
                value = value.index_select(dim, rows.to(value.device))
            elif rows is not None:
                value = value.select(dim, rows)
                continue
            dim += 1
        return value


class Placement(NamedTuple):
    """The samples that are shown, as text: see :class:`Batch` and :class:`Subset`.

    The last tensors of a call are the ``places`` and ``taken`` of subsets.
    """

    levels: list[list[int]]
    sample: str | list[int]
    subsets: list[tuple[int, list[int], bool, bool]]

    def batch(self, values: Sequence[Tensor]) -> Batch:
        count = len(self.levels)
        rest = iter(values[count:])
        subsets = {
            level: Subset(
                sizes,
                next(rest).tolist() if has_index else None,
                next(rest).tolist() if has_taken else None,
            )
            for level, sizes, has_index, has_taken in self.subsets
        }
        return Batch(values[:count], self.levels, subsets)


class _Shown:
    """A tensor in a formatted text: its numbers, without "tensor(...)"."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def __format__(self, spec: str) -> str:
        if spec:
            return _formatted(self._tensor.tolist(), spec)
        match = _NUMBERS.fullmatch(str(self._tensor))
        if match is None:  # sparse, a subclass, …
            return str(self._tensor)
        return match[1].replace("\n" + " " * len("tensor("), "\n")

    def __str__(self) -> str:
        return format(self)

    def __repr__(self) -> str:
        return repr(self._tensor)


_NUMBERS = re.compile(
    r"tensor\((.*?)(?:,\s+(?:dtype|device|size|requires_grad|grad_fn)=.*)?\)", re.S
)


def _formatted(numbers: Any, spec: str) -> str:
    if isinstance(numbers, list):
        return f"[{', '.join(_formatted(number, spec) for number in numbers)}]"
    return format(numbers, spec)


_thread = threading.local()


@contextlib.contextmanager
def _set(name: str, value: Any) -> Iterator[None]:
    """Inside, the thread's state of this name has this value at first."""
    before = getattr(_thread, name, None)
    setattr(_thread, name, value)
    try:
        yield
    finally:
        setattr(_thread, name, before)


def captured() -> contextlib.AbstractContextManager[None]:
    """Around a capture: whether it has met one of the operators is known for it alone."""
    return _set("is_in_capture", False)


def note_use() -> None:
    if getattr(_thread, "is_in_capture", None) is not None:  # else nothing is captured
        _thread.is_in_capture = True


def silent() -> contextlib.AbstractContextManager[None]:
    """Inside, the operators do nothing: make_fx runs an operator on constants that it captures."""
    return _set("is_silent", True)


def is_silent() -> bool:
    return bool(getattr(_thread, "is_silent", False))


class _Mute(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Drops the operators from a graph that is captured."""

    supports_higher_order_operators = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return None if func in DEBUG_OPS else func(*args, **(kwargs or {}))


@contextlib.contextmanager
def muted() -> Iterator[None]:
    """Inside, a function runs once more, for its derivative, and neither prints nor stops."""
    is_in_capture = getattr(_thread, "is_in_capture", None)
    dropping = _Mute() if is_in_capture else contextlib.nullcontext()  # type: ignore[no-untyped-call]
    with _set("is_muted", True), dropping:
        yield


def is_muted() -> bool:
    return bool(getattr(_thread, "is_muted", False))


def taking(level: int, size: Any, taken: Tensor | None) -> contextlib.AbstractContextManager[None]:
    """Inside, a function runs at this level on the samples that are taken, of a batch."""
    if taken is None:
        return contextlib.nullcontext()
    return _set("subsets", (*subsets(), (level, size, taken)))


def subsets() -> tuple[tuple[int, Any, Tensor], ...]:
    """The level, the batch size (perhaps symbolic) and the samples of each."""
    return getattr(_thread, "subsets", None) or ()


Dims: TypeAlias = list[tuple[int, int]]  # the level and the batch dimension of each vmap


def nest(tensor: Tensor) -> tuple[Tensor, Dims]:
    """The plain tensor in a nest of wrappers, and the vmaps on the way, outermost level first."""
    dims: Dims = []
    plain = tensor
    for wrapper in wrappers(tensor):
        if wrapper.batch_dim is not None:
            dims.insert(0, (wrapper.level, wrapper.batch_dim))
        plain = wrapper.inner
    return plain, dims


def call_below(
    op: Any, nests: Sequence[tuple[Tensor, Dims]], text: str, placement: "Placement"
) -> None:
    """Calls an operator below all layers, with the samples of the nests' vmaps in front."""

    def below() -> None:
        with torch.no_grad(), torch.DisableTorchFunction():
            op([_in_front(plain, dims) for plain, dims in nests], text, json.dumps(placement))

    is_fake = any(isinstance(plain, FakeTensor) for plain, _ in nests)
    with silent() if is_fake else contextlib.nullcontext():
        if functorch.maybe_current_level() is None:
            below()
        else:
            _C.at_level(0, below)


def _in_front(plain: Tensor, dims: Dims) -> Tensor:
    rest = [*range(plain.dim())]
    front = [rest.pop(dim) for _, dim in dims]
    value = plain.detach()
    return value.permute(*front, *rest) if front else value


def _is_here(op: Any, values: Sequence[Tensor], text: str, placement: str) -> bool:
    """Whether the operator is to run. One of a graph that layers run is called again below them."""
    if is_silent() or is_muted() or any(isinstance(value, FakeTensor) for value in values):
        return False
    nests = [nest(value) for value in values]
    if all(value is plain for value, (plain, _) in zip(values, nests, strict=True)):
        return True
    placed = Placement(*json.loads(placement))
    outer = 1 + max((level for _, dims in nests for level, _ in dims), default=0)
    count = len(placed.levels)
    levels = [
        [*(level for level, _ in dims), *(outer + level for level in known)]
        for known, (_, dims) in zip(placed.levels, nests[:count], strict=True)
    ]
    subsets = [(outer + subset[0], subset[1], subset[2], subset[3]) for subset in placed.subsets]
    call_below(op, nests, text, Placement(levels, placed.sample, subsets))
    return False


def _print(values: list[Tensor], text: str, placement: str) -> None:
    if _is_here(debug_print, values, text, placement):
        for name, shown in _selected(values, placement):
            builtins.print(name + text.format(*map(_Shown, shown)), flush=True)


def _breakpoint(values: list[Tensor], text: str, placement: str) -> None:
    if os.environ.get("PYTHONBREAKPOINT") == "0":
        return
    if _is_here(debug_breakpoint, values, text, placement):
        filename, number, names, constants = json.loads(text)
        for _, shown in _selected(values, placement):
            stop(filename, number, dict(zip(names, shown, strict=True)), constants)


def _check(values: list[Tensor], text: str, placement: str) -> None:
    if not _is_here(debug_check, values, text, placement) or values[0].all():
        return
    message, line = json.loads(text)
    failed = list[str]()
    for name, (holds, *shown) in (selected := _selected(values, placement)):
        if not holds.all():
            failed.append(name + message.format(*map(_Shown, shown)))
    if not failed:
        return
    count = f"{len(failed)} of {len(selected)} samples failed: " if len(selected) > 1 else ""
    rest = "" if len(failed) <= _MOST_SHOWN else "; ..."
    listed = "; ".join(failed[:_MOST_SHOWN]) + rest
    text = f"{count}{listed}".removesuffix(".")  # a number may end in one
    raise CheckError(f"torchlayers: debug.check: {text}.{line or location()}")


_MOST_SHOWN = 5


def _selected(values: list[Tensor], placement: str) -> list[tuple[str, list[Tensor]]]:
    placed = Placement(*json.loads(placement))
    with torch.no_grad():
        return [*placed.batch(values).selected(placed.sample)]


def stop(filename: str, number: int, values: dict[str, Tensor], constants: dict[str, str]) -> None:
    """Stops in the debugger at a line of the user's, with these variables."""
    debugger = pdb.Pdb(nosigint=True)  # else Ctrl-C would be the debugger's from then on
    namespace: dict[str, Any] = {name: ast.literal_eval(text) for name, text in constants.items()}
    namespace |= {**values, "__name__": "__main__", "torch": torch, "_stop": debugger.set_trace}
    line = compile("\n" * (number - 1) + "_stop()", filename, "exec")
    exec(line, namespace)


def _define(name: str, function: Any, schema: str = _SCHEMA) -> Any:
    _library.define(name + schema)  # type: ignore[no-untyped-call]
    _library.impl(name, function, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    op = getattr(torch.ops.torchlayers, name).default
    torch.library.register_fake(f"torchlayers::{name}", _nothing, lib=_library)
    has_side_effect(op)
    return op


def _nothing(*args: Any) -> None:
    pass


debug_print = _define("debug_print", _print)
debug_breakpoint = _define("debug_breakpoint", _breakpoint)
debug_check = _define("debug_check", _check)
DEBUG_OPS = {debug_print, debug_breakpoint, debug_check}

# The same, for Inductor: it drops an operator without results, and moves it, unless it writes to a
# tensor that the next one writes to as well.
IN_ORDER = {
    op: _define(f"{op.name().partition('::')[2]}_in_order", function, _ORDERED_SCHEMA)
    for op, function in (
        (debug_print, lambda order, *args: _print(*args)),
        (debug_breakpoint, lambda order, *args: _breakpoint(*args)),
        (debug_check, lambda order, *args: _check(*args)),
    )
}

_FIELD = re.compile("[{}]")


def escaped(text: str) -> str:
    """The text as a format string that gives it again."""
    return _FIELD.sub(lambda match: match[0] * 2, text)
