"""Captures a function as a graph of the plain operators that reach the bottom of the stack.

The function runs once on fake tensors, through its layers if it has any. Below the layers, and
below autograd, each operator is traced; a tensor there that is not a fake tensor is one that
the function captured, and becomes an input of the graph.
"""

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch

from torchlayers import _C
from torchlayers.compiler.capture.capture_run import Capture
from torchlayers.compiler.capture.errors import (
    IndexedWriteError,
    explain_capture_error,
)
from torchlayers.compiler.capture.finish import finish
from torchlayers.compiler.capture.guarded_state import (
    disable_saved_tensor_hooks,
    restore_dispatch_on_error,
    silence_fake_tensor_logs,
    while_nothing_compiles,
)
from torchlayers.compiler.capture.interrupts import defer_interrupts
from torchlayers.compiler.capture.module_calls import (
    calls_hooked,
    find_modules,
    record_module_calls,
)
from torchlayers.compiler.capture.optimizers import (
    FirstStepError,
    steps_watched,
)
from torchlayers.compiler.capture.recording import CapturedGraph
from torchlayers.compiler.capture.reverse_pass import NoBackwardError
from torchlayers.compiler.capture.state import outside_world
from torchlayers.compiler.capture.state.growing_containers import GROWING
from torchlayers.compiler.capture.state.outside_world import OutsideWorldError
from torchlayers.compiler.capture.state.python_writes import (
    OpaqueWrite,
    PythonWrite,
)
from torchlayers.compiler.capture.state.released_guards import Place
from torchlayers.compiler.capture.state.state_holders import StatePlace
from torchlayers.compiler.capture.state.written_state import WrittenState
from torchlayers.compiler.capture.values.number_operands import (
    math_traced,
)
from torchlayers.compiler.capture.values.reads import (
    RaisedAfterReadError,
    TensorReads,
    UntraceableError,
)
from torchlayers.compiler.capture.values.symbolic_text import text_guarded
from torchlayers.core import tracing_state
from torchlayers.core.errors import DataDependentError, TransformError, location_of
from torchlayers.core.garbage_collection import gc_disabled
from torchlayers.core.private_names import lookup
from torchlayers.fx import debug_ops
from torchlayers.fx.operator_tracer import trace_operators
from torchlayers.fx.unrolled_loops import loops_unrolled, predicates_read


def record(
    func: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any] | None = None,
    *,
    gradients: bool = False,
    symbolic: Sequence[set[int]] | None = None,
    symbolic_state: Mapping[int, set[int]] | None = None,
    guarded: bool = False,
    writes: bool = True,
    replaced: Collection[Place] = (),
    lines: bool = False,
    reads: Sequence[Any] | None = None,
    traced: Sequence[StatePlace] = (),
    sizes: Sequence[StatePlace] = (),
) -> CapturedGraph:
    """Captures func(*args, **kwargs) by running it once on fake tensors, through the layers.

    Args:
        func: any function.
        args: tensors, or pytrees of tensors and other values.
        kwargs: likewise.
        gradients: capture the reverse pass too, if an output requires grad.
        symbolic: for each tensor among the arguments, the dimensions whose sizes are symbolic.
        symbolic_state: likewise, of tensors that func captures, by their ids.
        guarded: find the Python state that func reads, and all that it writes; without it, only
            the tensors that it stores are found.
        writes: keep what func writes to Python. It is undone in any case.
        replaced: places that func is known to write to: tensors there are read at each call.
        lines: note the lines that called each operator, in ``meta["stack_trace"]``; it takes long.
        reads: let func read values of tensors, which are computed on ``args``; the first reads
            return these, where they are not None.
        traced: places of numbers to trace, besides those that func is seen to replace.
        sizes: places of integers that are not traced; with ``symbolic``, they are symbolic too.
    Raises:
        DataDependentError: func needs a value that depends on the data of a call, and may not read
            it.
        NoBackwardError: the reverse pass can't be captured.
        NotWritableError: func stores a tensor where calls can't store one.
        OutsideWorldError: func prints or opens a file, which calls can't do again.
    """
    _C.record_capture()  # for traces
    settings = func, args, kwargs or {}, gradients, symbolic, guarded, writes, replaced, lines

    state = symbolic_state or {}

    def capture() -> Capture:
        return Capture(*settings, None if reads is None else TensorReads(reads), state, sizes)

    def without_floats() -> Capture:
        floats = None if reads is None else TensorReads(traces_floats=False)
        return Capture(*settings, floats, state, sizes)

    first, once_more = capture(), without_floats
    again: Callable[[], contextlib.AbstractContextManager[None]]
    try:
        return _with_traced_numbers(_record(first), capture, traced, sizes)
    except IndexedWriteError as error:
        if not error.in_subgraph:
            raise
        again = loops_unrolled
    except RuntimeError as error:
        modes = [mode for message, mode in _CAPTURED_AGAIN.items() if message in str(error)]
        if not modes:
            raise
        again = modes[0]
    except RaisedAfterReadError as error:
        if isinstance(error.__cause__, DataDependentError):  # perhaps in a branch or a loop's body
            again, once_more = predicates_read, capture
        elif first.reads is not None and first.reads.any_float:
            again = contextlib.nullcontext  # it may come from a float that was traced
        else:
            raise
    with again():
        return _with_traced_numbers(_record(once_more()), once_more, traced, sizes)


def _with_traced_numbers(
    captured_graph: CapturedGraph,
    again: Callable[[], Capture],
    known: Sequence[StatePlace],
    sizes: Sequence[StatePlace],
) -> CapturedGraph:
    """Captures again a function that replaces numbers that it reads, if they can be traced."""
    writes = [w for w in captured_graph.effects.writes.writes if isinstance(w, PythonWrite)]
    changed = {id(write.holder.holder) for write in writes}
    traced_places = [
        place
        for write in captured_graph.lost
        if isinstance(write, PythonWrite)
        for place in write.numbers_before(changed)
    ]
    wanted = {place.identity: place for place in (*known, *traced_places)}
    for place in sizes:
        wanted.pop(place.identity, None)
    replaced = [*wanted.values()]
    opaque = [w for w in captured_graph.effects.writes.writes if isinstance(w, OpaqueWrite)]
    draws = bool(opaque) and all(
        write.state.thing is not None or write.state.array is not None for write in opaque
    )
    is_once = captured_graph.effects.writes.once
    growing = {
        id(write.holder.holder)
        for write in (*captured_graph.lost, *(w for w in writes if w.only_added and replaced))
        if isinstance(write, PythonWrite) and type(write.holder.holder) in GROWING
        if write.holder.is_container and write.resizes
    }
    attempts: list[set[int]] = []  # with stand-ins of containers, and without
    if growing and (draws or not is_once):
        attempts.append(growing)
    if draws or (replaced and not is_once):
        attempts.append(set())
    for containers in attempts:
        capture = again()
        capture.traced, capture.traces_draws = replaced, draws and capture.is_of_call
        capture.containers = containers
        with contextlib.suppress(Exception):  # it does something that only numbers can
            traced = _record(capture)
            written = traced.effects.writes
            takes = bool(written.numbers and written.numbers.iterators)
            is_twice = takes and (traced.reads or traced.gradients)
            is_right = not (written.once or is_twice)
            if traced.computed >= captured_graph.computed and is_right:
                captured_graph = traced
                break
    return captured_graph._replace(lost=[write.forgetting() for write in captured_graph.lost])


@contextlib.contextmanager
def _without_inference_mode() -> Iterator[None]:
    with torch.inference_mode(False), torch.no_grad():
        yield


@contextlib.contextmanager
def _with_view_replay() -> Iterator[None]:
    with lookup("torch.autograd._force_original_view_tracking")(True):
        yield


# By a part of torch's message: a mode in which the function can be captured.
_CAPTURED_AGAIN: dict[str, Callable[[], contextlib.AbstractContextManager[None]]] = {
    # In inference mode, a captured tensor can't have views without data.
    "Cannot set version_counter for inference tensor": _without_inference_mode,
    # Autograd describes a view of a captured tensor by its strides, which a compressed sparse one
    # does not have, unless it is to replay views. A.t().t() in second derivatives shows it.
    "tensors do not have strides": _with_view_replay,
}


def _record(recorder: Capture) -> CapturedGraph:
    around = (
        gc_disabled(),
        tracing_state.run_eagerly(),
        disable_saved_tensor_hooks(),
        silence_fake_tensor_logs(),
        debug_ops.captured(),
        outside_world.refused(recorder.func, recorder.is_of_call),
        calls_hooked.made(),
        steps_watched.made(),
        math_traced.made() if recorder.reads is not None else contextlib.nullcontext(),
        text_guarded.made() if recorder.symbolic is not None else contextlib.nullcontext(),
    )
    tracing_state.import_uninterrupted("torch._dynamo", "torch._inductor.compiler_bisector")
    lookup("torch._subclasses.FakeTensor")  # without the class no input is told from a constant
    with defer_interrupts() as raise_interrupt, while_nothing_compiles(around):
        # What is changed around a capture is none of the function's writes.
        recorder.python = WrittenState(recorder.func, recorder.leaves, recorder.ran.codes)
        try:
            known = find_modules(recorder.func, recorder.leaves)
            with restore_dispatch_on_error(), record_module_calls(known) as modules:
                graph = trace_operators(recorder.run, is_lazy=True, line=recorder.line)
            recorder.python.undo()
            captured_graph = finish(recorder, graph, modules)
            raise_interrupt()
            return captured_graph
        except BaseException as error:
            recorder.python.undo()
            if recorder.refusal is not None and "TorchScript" in str(error):
                raise recorder.refusal from error
            if isinstance(error, Exception):
                try:
                    explain_capture_error(error, recorder.func)
                except DataDependentError as explained:
                    _explain_by_reads(recorder.reads, explained)
                    raise
                _explain_by_reads(recorder.reads, error)
            raise


def _explain_by_reads(reads: TensorReads | None, error: Exception) -> None:
    """Raises RaisedAfterReadError if a value that was read may have led to the exception."""
    if reads is None:
        return
    if isinstance(error, DataDependentError):
        why = "a capture has no values there"
        line = location_of(error) or location_of(error.__cause__ or error)
        raise RaisedAfterReadError(reads.performed, why, line.strip()) from error
    is_read = reads.performed or reads.any_float
    if not (is_read or isinstance(error, UntraceableError)):
        return
    if isinstance(error, (TransformError, NoBackwardError, FirstStepError)):
        return
    if any(message in str(error) for message in _CAPTURED_AGAIN):
        return
    why = ""
    if isinstance(error, OutsideWorldError):
        why = f"it {error.what}"
    elif isinstance(error, UntraceableError) and not reads.any_float:
        why = str(error)
    raise RaisedAfterReadError(reads.performed, why) from error
