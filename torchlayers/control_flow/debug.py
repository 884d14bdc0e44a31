"""print, check and breakpoint for values in transforms, control flow and compiled functions."""

import ast
import json
import os
import pdb
import re
import string
import sys
from collections.abc import Iterable, Iterator, Sequence
from types import FrameType
from typing import Any, TypeAlias

import torch
from torch import Tensor

from torchlayers.control_flow.batched.subset_vmap import SubsetVmapMode
from torchlayers.control_flow.nans import nans
from torchlayers.core import pytree, tracing_state
from torchlayers.core.errors import TransformError, is_user_file, location
from torchlayers.core.torch_private import FakeTensor
from torchlayers.fx import debug_ops
from torchlayers.fx.debug_ops import (
    Placement,
    call_below,
    debug_breakpoint,
    debug_check,
    debug_print,
    escaped,
    is_muted,
    nest,
    note_use,
)
from torchlayers.remat.ambient_state import apply_view_modes, innermost_view_mode

__all__ = ["breakpoint", "check", "nans", "print"]

Samples: TypeAlias = str | int | Sequence[int]


def print(fmt: str, *args: Any, sample: Samples = "each", **kwargs: Any) -> None:
    """Prints values at each run of this line, inside vmap, grad, loops and compiled functions.

    Python's own print shows a tensor inside a transform as a nest of wrappers, and in a compiled
    function it runs only while the function is captured. This one prints the numbers: in a
    compiled function at each call, in a loop at each step, always in the order of the program.

    Args:
        fmt: a format string, as of str.format: ``"x = {x:.3f}, norm {}"``.
        args, kwargs: tensors, pytrees of tensors and any other values for its fields.
        sample: which samples to print, if values are batched. "each": one line for every sample of
            all vmaps around, which begins with its index. An int: that sample only, without an
            index; with nested vmaps a tuple of ints, the outermost vmap's first; vmaps for which
            there is none keep their samples in front. "batch": all samples at once, as one tensor
            with the batch dimensions in front.
    Raises:
        TransformError: sample is none of these; or torch.compile or torch.export is tracing it.
        IndexError, KeyError: as str.format, for a field without a value.
    Example:
        >>> def loss(x):
        ...     debug.print("x = {x}", x=x)
        ...     return x.sin()
        >>> from torchlayers import debug
        >>> _ = torchlayers.vmap(torchlayers.grad(loss))(torch.tensor([0.5, 1.0]))
        sample 0: x = 0.5000
        sample 1: x = 1.
        >>> compiled = torchlayers.compile(lambda x: debug.print("sum {}", x.sum()) or 2 * x)
        >>> for _ in range(2):
        ...     _ = compiled(torch.ones(3))
        sum 3.
        sum 3.

    Compiled code prints too. A compiled function that prints in a branch or a loop is replayed
    operator by operator, as with ``backend="replay"``; where autograd records a function that
    prints, it runs uncompiled. A checkpointed function prints once more when it
    is recomputed.

    Source: jax.debug.print.
    """
    _refuse_tracing("debug.print")
    tensors: list[Tensor] = []
    text = _Template(tensors).vformat(fmt, args, kwargs)
    _call(debug_print, tensors, text, _checked("debug.print", sample))


def breakpoint(sample: Samples | None = None) -> None:
    """Stops in Python's debugger, inside transforms and at each call of a compiled function.

    In a function that runs as Python, the debugger is in its frame, where tensors are those of the
    transforms around it: ``torchlayers.inspect(x)`` shows what is in them. With ``sample``, and in
    a compiled function, which has no frame, it stops on the same line with the frame's tensors as
    plain tensors of numbers, and with its numbers, strings and containers of these.

    Args:
        sample: which sample's values to show: an int, a tuple of ints for nested vmaps, or "batch"
            for all samples at once, with the batch dimensions in front; as for :func:`print`. None
            is "batch" in a compiled function.
    Raises:
        TransformError: sample is none of these; or torch.compile or torch.export is tracing it.

    With PYTHONBREAKPOINT=0 in the environment it does nothing.

    Example:
        >>> import os
        >>> from torchlayers import debug
        >>> os.environ["PYTHONBREAKPOINT"] = "0"
        >>> torchlayers.vmap(lambda x: debug.breakpoint(sample=0) or x)(torch.ones(2))
        tensor([1., 1.])
        >>> del os.environ["PYTHONBREAKPOINT"]

    Source: jax.debug.breakpoint.
    """
    _refuse_tracing("debug.breakpoint")
    frame = _user_frame()
    tensors = {name: value for name, value in frame.f_locals.items() if isinstance(value, Tensor)}
    if sample is None and not _is_fake(nest(value)[0] for value in tensors.values()):
        if os.environ.get("PYTHONBREAKPOINT") != "0":
            pdb.Pdb().set_trace(frame)
        return
    chosen = _checked("debug.breakpoint", "batch" if sample is None else sample)
    constants = {name: repr(value) for name, value in frame.f_locals.items() if _is_literal(value)}
    place = frame.f_code.co_filename, frame.f_lineno, [*tensors], constants
    _call(debug_breakpoint, [*tensors.values()], json.dumps(place), chosen)


def check(predicate: bool | Tensor, message: str, **values: Any) -> None:
    """Raises an error if a predicate is false, inside vmap, grad, loops and compiled functions.

    The numbers are looked at where this line is, at each run: under :func:`vmap`, those of all
    samples at once, and the error says which failed, with their values. Samples for which control
    flow does not run this line are not checked. On an accelerator it waits for the numbers.

    Args:
        predicate: a bool, or a bool tensor, all of whose elements have to be true.
        message: a format string, as of :func:`print`, with fields for values: ``"x = {x:.2f}"``.
        values: tensors, pytrees of tensors and any other values for its fields. Those that it does
            not name are appended.
    Raises:
        CheckError: the predicate is false.
        TransformError: predicate is no bool; or torch.compile or torch.export is tracing it.
        KeyError: a field of the message is not among the values.
    Example:
        >>> from torchlayers import debug
        >>> def root(x):
        ...     debug.check(x >= 0, "negative", x=x)
        ...     return x.sqrt()
        >>> compiled = torchlayers.compile(torchlayers.vmap(torchlayers.grad(root)))
        >>> compiled(torch.tensor([0.25, 1.0]))
        tensor([1.0000, 0.5000])
        >>> compiled(torch.tensor([0.25, -1.0]))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        torchlayers.errors.CheckError: torchlayers: debug.check: 1 of 2 samples failed: sample 1:
        negative, x = -1. In ...

    Source: jax.experimental.checkify.check.
    """
    _refuse_tracing("debug.check")
    if not isinstance(predicate, Tensor):
        predicate = torch.tensor(predicate)
    if predicate.dtype != torch.bool:
        raise TransformError(
            "torchlayers: debug.check: predicate must be a bool or a tensor of bools, got a tensor "
            f"of {predicate.dtype}. Compare (x > 0)."
        )
    tensors: list[Tensor] = []
    named = {name for _, name, *_ in string.Formatter().parse(message) if name}
    others = [name for name in values if not any(_names(field, name) for field in named)]
    text = ", ".join([message, *(f"{name} = {{{name}}}" for name in others)])
    text = _Template(tensors).vformat(text, (), values)
    is_captured = _is_fake(nest(value)[0] for value in (predicate, *tensors))
    line = location() if is_captured else ""
    _call(debug_check, [predicate, *tensors], json.dumps([text, line]), "each")


def _names(field: str, name: str) -> bool:
    """Whether a format string's field is this name, or a part of what it names."""
    return re.split(r"[.\[]", field)[0] == name


def _refuse_tracing(api: str) -> None:
    if tracing_state.is_tracing() or tracing_state.is_exporting():
        raise TransformError(
            f"torchlayers: {api} does not work in torch.compile and torch.export. Leave it out "
            "there, or compile the function by torchlayers.compile."
        )


def _checked(api: str, sample: Samples) -> str | list[int]:
    if sample == "batch" or (sample == "each" and api == "debug.print"):
        return str(sample)
    chosen = (sample,) if isinstance(sample, int) else sample
    if not isinstance(chosen, (list, tuple)) or not all(type(i) is int and i >= 0 for i in chosen):
        choice = "'each', " if api == "debug.print" else ""
        raise TransformError(
            f"torchlayers: {api}: sample must be {choice}'batch', the index of a sample, or a "
            f"tuple of an index for each vmap, the outermost first; got {sample!r}."
        )
    return [*chosen]


def _is_fake(tensors: Iterable[Tensor]) -> bool:
    """Whether a function is being captured with these tensors."""
    return any(isinstance(tensor, FakeTensor) for tensor in tensors)


def _user_frame() -> FrameType:
    frame = sys._getframe(1)
    while frame.f_back is not None and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _is_literal(value: Any) -> bool:
    """Whether Python reads the value's repr as the value."""
    if isinstance(value, (Tensor, torch.nn.Module)) or callable(value):
        return False
    try:
        return bool(ast.literal_eval(repr(value)) == value)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return False


def _call(op: Any, tensors: Sequence[Tensor], text: str, sample: str | list[int]) -> None:
    """Calls the operator below all layers, with the samples of all vmaps in front."""
    subsets = list[tuple[int, list[int], bool, bool]]()
    describing = list[Tensor]()
    for mode in subset_modes():
        index, taken = mode.index, mode.taken
        sizes = [*map(int, mode.batch.sizes)]
        subsets.append((mode.level, sizes, index is not None, taken is not None))
        describing += [tensor for tensor in (index, taken) if tensor is not None]
    for level, size, taken in debug_ops.subsets():
        subsets.append((level, [int(size)], False, True))
        describing.append(taken)
    note_use()
    if is_muted():
        return
    nests = [nest(tensor) for tensor in (*apply_view_modes([*tensors]), *describing)]
    levels = [[level for level, _ in dims] for _, dims in nests[: len(tensors)]]
    call_below(op, nests, text, Placement(levels, sample, subsets))


def subset_modes() -> Iterator[SubsetVmapMode]:
    """The vmaps of control flow around, each over some samples of a batch."""
    mode = innermost_view_mode()
    while mode is not None:
        if isinstance(mode, SubsetVmapMode):
            yield mode
        mode = mode.beyond


class _Slot:
    """Stands for a tensor in the repr of a container."""

    def __init__(self, place: int) -> None:
        self.place = place

    def __repr__(self) -> str:
        return f"\0{self.place}\0"


class _Template(string.Formatter):
    """Formats everything but tensors, which it collects, and for which it leaves ``{0:.3f}``."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self._tensors = tensors

    def vformat(self, fmt: Any, args: Sequence[Any], kwargs: Any) -> str:
        parts, automatic = [], 0
        for literal, name, spec, conversion in self.parse(fmt):
            parts.append(escaped(literal))
            if name is None:
                continue
            if not name or name[0] in ".[":
                name, automatic = f"{automatic}{name}", automatic + 1
            value = self.get_field(name, args, kwargs)[0]
            spec = (spec or "").format(*args, **kwargs)
            parts.append(self._field(value, conversion, spec))
        return "".join(parts)

    def _field(self, value: Any, conversion: str | None, spec: str) -> str:
        if isinstance(value, Tensor):
            shown = (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "")
            return f"{{{self._place(value)}{shown}}}"
        leaves, tree = pytree.flatten(value)
        if not any(isinstance(leaf, Tensor) for leaf in leaves):
            converted = self.convert_field(value, conversion)
            return escaped(format(converted, spec))
        slots = [_Slot(self._place(leaf)) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        text = repr(pytree.unflatten(slots, tree)).split("\0")
        return "".join(f"{{{part}!r}}" if i % 2 else escaped(part) for i, part in enumerate(text))

    def _place(self, tensor: Tensor) -> int:
        self._tensors.append(tensor)
        return len(self._tensors) - 1
