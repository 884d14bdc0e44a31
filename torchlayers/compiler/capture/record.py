"""Captures a function as a graph of the plain operators that reach the bottom of the stack.

The function runs once on fake tensors, through its layers if it has any. Below the layers, and
below autograd, each operator is traced; a tensor there that is not a fake tensor is one that
the function captured, and becomes an input of the graph.
"""

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node, Proxy
from torch.fx.experimental import proxy_tensor

from torchlayers import _C
from torchlayers.compiler.capture import outside_world
from torchlayers.compiler.capture.bytecode import keep_user_code
from torchlayers.compiler.capture.carried_tensors import size_carrier
from torchlayers.compiler.capture.data_independent import SkippedChecks, data_independent_rules
from torchlayers.compiler.capture.dispatch_mode import CaptureDispatchMode
from torchlayers.compiler.capture.errors import (
    BackwardInsideError,
    ConjugatedError,
    ContainerError,
    HiddenTensorError,
    IndexedWriteError,
    RetainedGradientError,
    UnsupportedTensorError,
    describe_unsupported,
    explain_capture_error,
    refuse_hidden_tensors,
)
from torchlayers.compiler.capture.function_mode import FunctionRuleMode
from torchlayers.compiler.capture.guarded_state import (
    disable_saved_tensor_hooks,
    refuse_seeding,
    restore_dispatch_on_error,
    silence_fake_tensor_logs,
    while_nothing_compiles,
)
from torchlayers.compiler.capture.guards import Guards, find_guarded_places
from torchlayers.compiler.capture.indexing import TensorIndexing
from torchlayers.compiler.capture.input_names import input_names
from torchlayers.compiler.capture.interrupts import defer_interrupts
from torchlayers.compiler.capture.iterators import original_of
from torchlayers.compiler.capture.memory_reads import memory_read_rules
from torchlayers.compiler.capture.module_guards import (
    ModuleGuard,
    calls_hooked,
    find_modules,
    record_module_calls,
)
from torchlayers.compiler.capture.optimizers import FirstStepError, OptimizerSteps, steps_watched
from torchlayers.compiler.capture.outside_world import OutsideWorldError
from torchlayers.compiler.capture.python_writes import (
    OpaqueWrite,
    PythonWrite,
    PythonWrites,
    WrittenState,
)
from torchlayers.compiler.capture.reachable_state import GuardedPlace
from torchlayers.compiler.capture.reads import (
    RaisedAfterReadError,
    Read,
    TensorReads,
    UntraceableError,
)
from torchlayers.compiler.capture.recording import BackwardSignature, CapturedGraph, OutputSource
from torchlayers.compiler.capture.released_guards import Place, release_guards
from torchlayers.compiler.capture.side_effects import SideEffects
from torchlayers.compiler.capture.state_holders import StatePlace, unwrapped
from torchlayers.compiler.capture.tensor_hooks import HookedTensor, calls_hooks, grad_without_hooks
from torchlayers.compiler.capture.tensor_mutations import TensorMutations
from torchlayers.compiler.capture.traced_floats import MAKING_RULES, TracedFloat, math_traced
from torchlayers.compiler.capture.traced_numbers import TracedNumber
from torchlayers.core import pytree, tracing_state
from torchlayers.core.deepcopy import deepcopy_by_clone
from torchlayers.core.errors import DataDependentError, TransformError, location
from torchlayers.core.garbage_collection import gc_disabled
from torchlayers.core.private_names import lookup
from torchlayers.core.storage import storage_of
from torchlayers.core.torch_private import FakeTensor, FakeTensorMode, dispatch_modes, torch_c
from torchlayers.fx import debug_ops
from torchlayers.fx.fake_tensors import fake_like, symbolic_like, symbolic_shapes
from torchlayers.fx.operator_tracer import trace_operators
from torchlayers.fx.recomputation import Recomputations, track_recomputations
from torchlayers.fx.size_steps import SYMBOLIC
from torchlayers.fx.trial_nodes import drop_trial_nodes
from torchlayers.fx.unrolled_loops import loops_unrolled


def _line() -> str:
    """The user's line that calls an operator: "In train.py:7, `x.sin()`." """
    return location().strip()


class NoBackwardError(Exception):
    """A function's reverse pass can't be captured. The caller may never need it."""


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
    given = func, args, kwargs or {}, gradients, symbolic, guarded, writes, replaced, lines
    state = symbolic_state or {}

    def capture() -> _Capture:
        return _Capture(*given, None if reads is None else TensorReads(reads), state, sizes)

    def without_floats() -> _Capture:
        floats = None if reads is None else TensorReads(traces_floats=False)
        return _Capture(*given, floats, state, sizes)

    first = capture()
    again: list[Callable[[], contextlib.AbstractContextManager[None]]]
    try:
        return _with_traced_numbers(_record(first), capture, traced, sizes)
    except IndexedWriteError as error:
        if not error.in_subgraph:
            raise
        again = [loops_unrolled]
    except RuntimeError as error:
        again = [mode for said, mode in _CAPTURED_AGAIN.items() if said in str(error)]
        if not again:
            raise
    except RaisedAfterReadError:
        if first.reads is None or not first.reads.any_float:
            raise
        again = [contextlib.nullcontext]  # it may come from a float that was traced
    with again[0]():
        return _with_traced_numbers(_record(without_floats()), without_floats, traced, sizes)


def _with_traced_numbers(
    captured_graph: CapturedGraph,
    again: Callable[[], "_Capture"],
    known: Sequence[StatePlace],
    sizes: Sequence[StatePlace],
) -> CapturedGraph:
    """Captures again a function that replaces numbers that it reads, if they can be traced."""
    writes = [w for w in captured_graph.effects.writes.writes if isinstance(w, PythonWrite)]
    changed = {id(write.holder.holder) for write in writes}
    found = [
        place
        for write in captured_graph.lost
        if isinstance(write, PythonWrite)
        for place in write.numbers_before(changed)
    ]
    wanted = {place.identity: place for place in (*known, *found)}
    for place in sizes:
        wanted.pop(place.identity, None)
    replaced = [*wanted.values()]
    opaque = [w for w in captured_graph.effects.writes.writes if isinstance(w, OpaqueWrite)]
    draws = bool(opaque) and all(write.state.thing is not None for write in opaque)
    if draws or (replaced and not captured_graph.effects.writes.once):
        capture = again()
        capture.traced, capture.traces_draws = replaced, draws and capture.is_of_call
        with contextlib.suppress(Exception):  # it does something that only numbers can
            traced = _record(capture)
            written = traced.effects.writes
            is_early = written.drawn_from and traced.reads
            is_twice = written.numbers and written.numbers.iterators and traced.gradients
            is_right = not (written.once or is_early or is_twice)
            if traced.computed >= captured_graph.computed and is_right:
                captured_graph = traced
    return captured_graph._replace(lost=[write.forgetting() for write in captured_graph.lost])


@contextlib.contextmanager
def _without_inference_mode() -> Iterator[None]:
    with torch.inference_mode(False), torch.no_grad():
        yield


@contextlib.contextmanager
def _with_view_replay() -> Iterator[None]:
    with lookup("torch.autograd._force_original_view_tracking")(True):
        yield


# Reading the memory of a fake tensor, which is not initialized, is an error.
_NO_MEMORY = {"fake_tensor_allow_unsafe_data_ptr_access": False}

# By a part of torch's message: a mode in which the function can be captured.
_CAPTURED_AGAIN: dict[str, Callable[[], contextlib.AbstractContextManager[None]]] = {
    # In inference mode, a captured tensor can't have views without data.
    "Cannot set version_counter for inference tensor": _without_inference_mode,
    # Autograd describes a view of a captured tensor by its strides, which a compressed sparse one
    # does not have, unless it is to replay views. A.t().t() in second derivatives shows it.
    "tensors do not have strides": _with_view_replay,
}


def _record(recorder: "_Capture") -> CapturedGraph:
    around = (
        gc_disabled(),
        tracing_state.run_eagerly(),
        disable_saved_tensor_hooks(),
        silence_fake_tensor_logs(),
        debug_ops.captured(),
        refuse_seeding(recorder.func),
        calls_hooked.made(),
        steps_watched.made(),
        math_traced.made() if recorder.reads is not None else contextlib.nullcontext(),
        outside_world.refused() if recorder.is_of_call else contextlib.nullcontext(),
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
            captured_graph = recorder.finish(graph, modules)
            raise_interrupt()
            return captured_graph
        except BaseException as error:
            recorder.python.undo()
            if recorder.refusal is not None and "TorchScript" in str(error):
                raise recorder.refusal from error
            if isinstance(error, Exception):
                explain_capture_error(error, recorder.func)
                recorder.explain_by_reads(error)
            raise


class _Capture:
    """A capture in progress."""

    def __init__(
        self,
        func: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        gradients: bool,
        symbolic: Sequence[set[int]] | None,
        guarded: bool,
        writes: bool,
        replaced: Collection[Place],
        lines: bool,
        reads: TensorReads | None,
        symbolic_state: Mapping[int, set[int]],
        sizes: Sequence[StatePlace],
    ) -> None:
        self.func = func
        self.symbolic_state = {**symbolic_state}
        self.sizes = sizes if symbolic is not None else ()
        self.carriers: list[tuple[StatePlace, Tensor]] = []  # of sizes
        self.line = _line if lines else None
        self.guarded = guarded
        self.keeps_writes = writes
        self.replaced = replaced
        self.symbolic = symbolic
        self.leaves, self.spec = pytree.flatten((tuple(args), kwargs))
        self.names = input_names(func, args, kwargs)
        self.wants_gradients = gradients
        self.inputs: list[Node] = []
        self.captured: dict[int, tuple[Tensor, FakeTensor]] = {}
        self.cotangents: list[Node] = []
        self.unused: list[Node] = []  # inputs that nothing reads
        self.gradients: BackwardSignature | None = None
        self.watch = TensorMutations(self)
        self.reads = reads
        # Whether a call is captured, and not a graph made for the user, or of a fixed function.
        self.is_of_call = reads is not None or symbolic is not None
        self.subscripts = TensorIndexing(func)
        self.effects = SideEffects.none()
        self.steps = OptimizerSteps()
        self.calls_hooks = False  # those of captured tensors
        self.refusal: TransformError | None = None
        self.ran = _C.RanCode()
        self.python: WrittenState
        self.traced: list[StatePlace] | None = None  # places of numbers to trace
        self.traces_draws = False

    def run(self) -> list[Any]:
        with tracing_state.patched(lookup("torch._functorch.config"), _NO_MEMORY):
            self.mode = FakeTensorMode(
                allow_fallback_kernels=True,
                allow_non_fake_inputs=True,
                shape_env=None if self.symbolic is None else symbolic_shapes(),
            )
        if self.reads is not None:
            mode: Any = proxy_tensor.get_proxy_mode()
            self.reads.start(mode.tracer.root)
        with self.mode:
            given = [
                self.argument(leaf, name) if isinstance(leaf, Tensor) else leaf
                for leaf, name in zip(self.leaves, self.names, strict=True)
            ]
            self.arguments = len(self.inputs)
            args, kwargs = pytree.unflatten(given, self.spec)
            self.spec = pytree.flatten((args, kwargs))[1]  # a torch.Size has become a tuple
            recomputations = Recomputations()
            checks = SkippedChecks()
            ran = self.ran if self.guarded else None
            bottom = CaptureDispatchMode(
                self.func, self.capture, recomputations, checks, ran, self.refuse, self.reads
            )
            instead = FunctionRuleMode(
                {
                    **data_independent_rules(checks),
                    **memory_read_rules(self.func, self.reads),
                    **self.subscripts.rules,
                    Tensor.item: self.item,
                    Tensor.__deepcopy__: deepcopy_by_clone,
                    torch.autograd.grad: self.grad,
                    **self.watch.rules,
                    **(MAKING_RULES if self.reads is not None else {}),
                },
                self.reads,
                self.subscripts.note_call,
            )
            with self.steps.noted(), track_recomputations(recomputations), bottom, instead:
                try:
                    symbolic = [*map(self.symbol, self.sizes)]
                    if self.traced is not None:
                        self.python.trace(self.traced, self.traces_draws, symbolic)
                    else:
                        self.python.start(symbolic)
                    if self.guarded:
                        self.ran.start()
                    with self.python.draws_traced():
                        result = self.func(*args, **kwargs)
                    outside_world.raise_if_caught()
                    leaves, self.out_spec = pytree.flatten(result)
                    result = None
                    if self.reads is not None:
                        self.reads.check_arrays()
                    with torch.DisableTorchFunction():
                        self.watch.note_backward()
                        self.refuse_backward(given)
                        self.refuse_other_leaves((args, kwargs), given)
                        computed = self.sort_outputs(leaves, given)
                    self.hooked = self.hooks_called()
                    found = self.reverse(computed, given) if self.wants_gradients else []
                finally:
                    if self.guarded:
                        self.ran.stop()
                    with torch.DisableTorchFunction():
                        self.watch.put_back()
                    if self.reads is not None:
                        self.reads.stop()
        return [*computed, *found]

    def argument(self, leaf: Tensor, name: str) -> Tensor:
        dims = None if self.symbolic is None else self.symbolic[len(self.inputs)]
        fake = self.input(leaf, name, symbolic=dims).requires_grad_(leaf.requires_grad)
        self.note_input(leaf)
        self.watch.add_argument(fake, leaf)
        return fake

    def symbol(self, place: StatePlace) -> tuple[StatePlace, Any]:
        """Returns a symbolic integer for one that is in a place, with the place."""
        with dispatch_modes._disable_current_modes():
            carrier = size_carrier(place.read())
        self.carriers.append((place, carrier))
        self.symbolic_state[id(carrier)] = {0}
        with torch.DisableTorchFunction():
            return place, self.capture(carrier).shape[0]

    def explain_by_reads(self, error: Exception) -> None:
        """Raises RaisedAfterReadError if a value that was read may have led to the exception."""
        if self.reads is None:
            return
        is_read = self.reads.performed or self.reads.any_float
        if not (is_read or isinstance(error, UntraceableError)):
            return
        if isinstance(error, (TransformError, NoBackwardError, FirstStepError)):
            return
        if any(said in str(error) for said in _CAPTURED_AGAIN):
            return
        why = ""
        if isinstance(error, OutsideWorldError):
            why = f"it {error.what}"
        elif isinstance(error, UntraceableError) and not self.reads.any_float:
            why = str(error)
        raise RaisedAfterReadError(self.reads.performed, why) from error

    def note_input(self, value: Tensor) -> None:
        """Notes the value of the last input, for reads."""
        if self.reads is not None:
            self.reads.add_input(self.inputs[-1], value)

    def input(
        self, like: Tensor, name: str, *, dense: bool = False, symbolic: set[int] | None = None
    ) -> FakeTensor:
        """Adds an input to the graph, at its end, with the metadata of this tensor.

        ``dense``: each element has its own memory, even if the tensor is expanded.
        """
        mode: Any = proxy_tensor.get_proxy_mode()
        with proxy_tensor.disable_proxy_modes_tracing():
            if dense:
                with self.mode:
                    like = torch.empty_like(like)
            fake = (
                symbolic_like(self.mode, like, symbolic) if symbolic else fake_like(self.mode, like)
            )
            proxy: Proxy = mode.tracer.create_proxy("placeholder", name, (), {}, name=name)
            proxy.node.target = proxy.node.name  # a unique identifier
            proxy_tensor.track_tensor_tree(fake, proxy, constant=None, tracer=mode.tracer)
        self.inputs.append(proxy.node)
        return fake

    def capture(self, tensor: Tensor) -> FakeTensor:
        """Returns the fake tensor for a tensor that the function captured."""
        if id(tensor) not in self.captured:
            if (kind := describe_unsupported(tensor)) is not None:
                self.refuse(UnsupportedTensorError(self.func, kind))
            if tensor.is_conj() or tensor.is_neg():
                self.refuse(ConjugatedError(self.func))
            dims = self.symbolic_state.get(id(tensor))
            fake = self.input(tensor, f"captured_{len(self.captured)}", symbolic=dims)
            self.note_input(tensor)
            self.captured[id(tensor)] = (tensor, fake)
            self.watch.add_captured(tensor)
        return self.captured[id(tensor)][1]

    def item(self, x: Tensor) -> Any:
        """Replaces ``x.item()``."""
        return self.steps.item(x, Tensor.item if self.reads is None else self.reads.item)

    def refuse(self, error: TransformError) -> NoReturn:
        """Raises the error, of which TorchScript's interpreter keeps the text alone, or nothing."""
        self.refusal = error
        raise error

    def grad(self, outputs: Any, inputs: Any, *rest: Any, **named: Any) -> Any:
        """Replaces ``torch.autograd.grad``, and notes whether it calls hooks of tensors."""
        self.calls_hooks = self.calls_hooks or calls_hooks(inputs)
        return torch.autograd.grad(outputs, inputs, *rest, **named)

    def refuse_backward(self, given: list[Any]) -> None:
        """Raises if a call of backward() has left gradients without data in .grad."""
        captured = [tensor for tensor, _ in self.captured.values()]
        wrong = [
            tensor
            for tensor in [*given, *captured]
            if isinstance(tensor, Tensor)
            and tensor.is_leaf
            and isinstance(tensor.grad, FakeTensor)
            and not self.watch.has_grad_of(tensor)
        ]
        for tensor in wrong:
            tensor.grad = None
        if wrong:
            raise BackwardInsideError(self.func)
        for tensor in captured:
            if tensor.retains_grad and isinstance(tensor.grad, FakeTensor):
                tensor.grad = None
                raise RetainedGradientError(self.func)

    def hooks_called(self) -> list[HookedTensor]:
        if not self.calls_hooks:
            return []
        captured = [tensor for tensor, _ in self.captured.values()]
        return [HookedTensor.now(tensor) for tensor in captured if tensor.requires_grad]

    def refuse_other_leaves(self, arguments: Any, given: list[Any]) -> None:
        """Raises if a list or dict among the arguments was changed: the caller's would not be."""
        leaves, spec = pytree.flatten(arguments)
        if spec != self.spec or any(a is not b for a, b in zip(leaves, given, strict=True)):
            raise ContainerError(self.func)

    def sort_outputs(self, leaves: list[Any], given: list[Any]) -> list[Tensor]:
        """Finds the source of each leaf of the result; returns the leaves that are computed."""
        arguments = {id(leaf): i for i, leaf in enumerate(given) if isinstance(leaf, Tensor)}
        computed: dict[int, tuple[int, Any]] = {}
        self.outputs = []
        for leaf in leaves:
            leaf = original_of(leaf)
            if type(leaf) is TracedNumber and type(leaf.value) not in (int, float):
                leaf = leaf.plain()
            if type(leaf) in (TracedFloat, TracedNumber):
                if type(leaf) is TracedFloat:
                    number = unwrapped(leaf.tensor)
                else:
                    number = self.capture(leaf.as_result())
                index, _ = computed.setdefault(id(number), (len(computed), number))
                self.outputs.append(OutputSource("number", index))
            elif isinstance(leaf, SYMBOLIC):
                index, _ = computed.setdefault(id(leaf), (len(computed), leaf))
                self.outputs.append(OutputSource("computed", index))
            elif not isinstance(leaf, Tensor):
                refuse_hidden_tensors(leaf, self.func)
                self.outputs.append(OutputSource("constant", leaf))
            elif id(leaf) in arguments:
                self.outputs.append(OutputSource("argument", arguments[id(leaf)]))
            elif not isinstance(leaf, FakeTensor):
                self.capture(leaf)
                self.outputs.append(OutputSource("captured", [*self.captured].index(id(leaf))))
            else:
                index, _ = computed.setdefault(id(leaf), (len(computed), leaf))
                self.outputs.append(OutputSource("computed", index))

        def also_computed(tensor: Tensor) -> int:
            return computed.setdefault(id(tensor), (len(computed), tensor))[0]

        self.effects = self.watch.finish(also_computed)
        if self.keeps_writes:
            written = self.python.find(self.watch.input_of, also_computed)
            written = written._replace(sizes=self.carriers)
            self.effects = self.effects._replace(writes=written)
            if self.reads is not None:
                users = [code for code, _ in keep_user_code(self.ran.codes)]
                self.reads.check_floats({*map(id, leaves), *self.python.floats}, users)
        self.effects.leaves.extend(
            index
            for index, leaf in computed.values()
            if isinstance(leaf, Tensor) and leaf.requires_grad and leaf.grad_fn is None
        )
        return self.detached([leaf for _, leaf in computed.values()], given)

    def detached(self, outputs: list[Any], given: list[Any]) -> list[Any]:
        """Detaches outputs that don't require grad but share memory with an input that does."""
        inputs = [leaf for leaf in given if isinstance(leaf, Tensor) and leaf.requires_grad]
        inputs += [fake for tensor, fake in self.captured.values() if tensor.requires_grad]
        memories = {*map(storage_of, inputs)} - {None}
        return [
            output.detach()
            if isinstance(output, Tensor)
            and not output.requires_grad
            and storage_of(output) in memories
            else output
            for output in outputs
        ]

    def reverse(self, outputs: list[Any], given: list[Any]) -> list[Tensor | None]:
        """Captures the gradients of inputs that require grad, after the function's operators."""
        results = [output for output in outputs if isinstance(output, Tensor)]
        of_outputs = [
            i for i, output in enumerate(outputs) if getattr(output, "grad_fn", None) is not None
        ]
        if not of_outputs:
            return []
        tensors = [leaf for leaf in given if isinstance(leaf, Tensor)]
        tensors += [tensor for tensor, _ in self.captured.values()]
        by_inputs = [i for i, tensor in enumerate(tensors) if tensor.requires_grad]
        wanted = [tensors[i] for i in by_inputs]
        makes_leaves = any(each.requires_grad and each.grad_fn is None for each in results)
        if not wanted or makes_leaves:
            raise NoBackwardError("it makes a tensor that requires grad")
        try:
            found = self.pull_back([outputs[i] for i in of_outputs], wanted)
        except _GraphFreedError:
            of_outputs = [i for i in of_outputs if not _is_graph_freed(outputs[i], wanted)]
            self.unused += self.cotangents
            self.inputs = [node for node in self.inputs if node not in self.unused]
            self.cotangents = []
            if not of_outputs:
                return []
            found = self.pull_back([outputs[i] for i in of_outputs], wanted)
        self.gradients = BackwardSignature(of_outputs, by_inputs)
        return found

    def pull_back(self, outputs: list[Tensor], wanted: list[Any]) -> list[Tensor | None]:
        """Pulls cotangents of these outputs back to ``wanted``; they become inputs of the graph."""
        cotangents = [
            self.input(output.detach(), f"cotangent_{count}", dense=True)
            for count, output in enumerate(outputs)
        ]
        self.cotangents = self.inputs[-len(cotangents) :]
        # A backward pass runs with autocast off.
        with torch.autograd.set_multithreading_enabled(False), torch_c._DisableAutocast():
            try:
                # The autograd graph is retained for a second try, without outputs that are spent.
                return list(grad_without_hooks(outputs, wanted, cotangents, retain_graph=True))
            except RuntimeError as error:
                said = str(error).strip().partition("\n")[0]
                if _GRAPH_FREED in said:
                    raise _GraphFreedError from error
                if isinstance(error, DataDependentError) and self.reads is not None:
                    raise NoBackwardError("it reads a value that depends on a cotangent") from None
                explain_capture_error(error, self.func)
                if isinstance(error, TransformError):
                    raise
                raise NoBackwardError(said or type(error).__name__) from error

    def guarded_places(self, modules: list[ModuleGuard]) -> list[GuardedPlace]:
        """Returns the places of the Python state that the function has read."""
        if not self.guarded:
            return []
        given = [leaf for leaf in self.leaves if not isinstance(leaf, Tensor)]
        called = [each.module for each in modules]
        drawn = {id(each.thing) for each in self.effects.writes.drawn_from}
        found = find_guarded_places(self.func, given, called, self.ran.codes, drawn)
        return [*found, *self.effects.writes.guards()]

    def written_at_calls(self) -> PythonWrites:
        """Returns the writes as calls need them."""
        writes = self.effects.writes.forgetting()
        if writes.numbers is None:
            return writes
        drawn = [
            (place, expression, tensor.dtype)
            for tensor, expression in writes.numbers.tensors
            if id(tensor) in self.captured and writes.numbers.is_drawn(expression)
            if (place := self.watch.input_of(tensor)) is not None
        ]
        return writes._replace(drawn=drawn)

    def _is_part(self, module: torch.nn.Module) -> bool:
        """Whether a module is a branch or a loop body that was traced for this capture."""
        return isinstance(module, GraphModule) and any(
            getattr(node.meta.get("val"), "fake_mode", None) is self.mode
            for node in module.graph.nodes
        )

    def finish(self, graph: GraphModule, modules: list[ModuleGuard]) -> CapturedGraph:
        self.effects.stepped.extend(each for each in self.steps.stepped if each.rates)
        self.subscripts.refuse_what_differs(graph.graph)
        modules = [each for each in modules if not self._is_part(each.module)]
        if any(isinstance(x, FakeTensor) for held in graph.modules() for x in _held_by(held)):
            raise HiddenTensorError(self.func)
        constants = _constants_as_inputs(graph)
        captured = [tensor for tensor, _ in self.captured.values()]
        results = {id(out.value) for out in self.outputs if out.source == "constant"}
        places, carried, lost = release_guards(
            self.effects.writes, captured, self.guarded_places(modules), self.replaced, results
        )
        renewed = {id(captured[each.position]) for each in carried if each.position is not None}
        ahead = [node for node in self.inputs if node not in self.cotangents]
        first = next(iter(graph.graph.nodes))
        anchor = Node(graph.graph, "anchor", "placeholder", "anchor", (), {})
        first.prepend(anchor)
        for node in [*ahead, *constants, *self.cotangents]:
            anchor.prepend(node)
        anchor._remove_from_list()
        drop_trial_nodes(graph.graph)
        reads = [] if self.reads is None else self.reads.performed
        _drop_dead(graph.graph, reads)
        for node in self.unused:
            graph.graph.erase_node(node)
        graph.recompile()
        return CapturedGraph(
            graph,
            [*captured, *constants.values()],
            self.out_spec,
            self.outputs,
            self.gradients,
            len(constants),
            modules,
            self.effects._replace(writes=self.written_at_calls()),
            self.steps.stepped,
            [each for each in self.hooked if id(each.tensor) not in renewed],
            Guards(places) if self.guarded else None,
            carried,
            lost,
            reads,
        )


def _drop_dead(graph: Graph, reads: Sequence[Read]) -> None:
    """Drops nodes without users, but not before a read: after another answer they may have some."""
    before = set[Node]()
    if reads:
        before.update(itertools.takewhile(lambda node: node is not reads[-1].node, graph.nodes))
        before.add(reads[-1].node)
    graph.eliminate_dead_code(lambda node: node in before or node.is_impure())


# torch's message for an autograd graph that backward() has freed.
_GRAPH_FREED = "Trying to backward through the graph a second time"


class _GraphFreedError(Exception):
    """An output's autograd graph was freed by a backward() inside the function."""


def _is_graph_freed(output: Tensor, wanted: list[Any]) -> bool:
    """Whether an output can't be differentiated any more, as after loss.backward()."""
    with torch.autograd.set_multithreading_enabled(False), torch_c._DisableAutocast():
        try:
            torch.autograd.grad(
                output, wanted, torch.ones_like(output), retain_graph=True, allow_unused=True
            )
        except RuntimeError as error:
            return _GRAPH_FREED in str(error)
    return False


def _held_by(module: torch.nn.Module) -> list[Any]:
    return [*vars(module).values(), *module.buffers(recurse=False)]


def _constants_as_inputs(graph: GraphModule) -> dict[Node, Tensor]:
    """Turns the tensors that the graph holds into inputs; returns the tensors by node."""
    uses: dict[str, list[Node]] = {}
    for node in graph.graph.find_nodes(op="get_attr"):
        if isinstance(getattr(graph, str(node.target)), Tensor):
            uses.setdefault(str(node.target), []).append(node)
    held: dict[Node, Tensor] = {}
    for count, (name, nodes) in enumerate(uses.items()):
        with graph.graph.inserting_before(nodes[0]):
            made = graph.graph.placeholder(f"constant_{count}")
        made.meta = dict(nodes[0].meta)
        held[made] = getattr(graph, name)
        for node in nodes:
            node.replace_all_uses_with(made)
            graph.graph.erase_node(node)
        delattr(graph, name)
    return held
