"""torchlayers.coverage: what the transforms and compile would do with a program, before they do."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.multiprocessing import reductions
from torch.nn import Module

from torchlayers.compiler.capture.errors import name_of
from torchlayers.compiler.capture.record import record
from torchlayers.compiler.capture.reverse_pass import NoBackwardError
from torchlayers.compiler.capture.signature import signature, what_differs_later
from torchlayers.compiler.coverage_report import (
    CompileCoverage,
    Coverage,
    LayerCoverage,
    OperatorCoverage,
)
from torchlayers.compiler.operator_coverage import (
    APART,
    DRAWS,
    DTYPES,
    MODES,
    NOTHING,
    OperatorCall,
    TensorDescription,
    described,
    what_happens,
)
from torchlayers.compiler.passes import simplify
from torchlayers.compiler.passes.graph_queries import operators as operators_of
from torchlayers.compiler.passes.split_at_reads import SplitGraph
from torchlayers.compiler.runtime.build import inductor_obstacle, why_not_differentiable
from torchlayers.core import operator_schema, pytree
from torchlayers.core.device import CPU
from torchlayers.core.errors import TransformError
from torchlayers.core.function_checks import check_function
from torchlayers.core.layer_stack import current_stack
from torchlayers.core.tensors.storage import storage_of
from torchlayers.core.torch_private import OpOverload
from torchlayers.core.trace import TracedCall, trace
from torchlayers.transforms.layers.layer import Layer

_reductions: Any = reductions  # it has no types


def coverage(f: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Coverage:
    """Says which operators of a program have batching rules and derivatives, before it waits.

    Runs f once, in a trace, and reports for each operator what vmap, jvp and grad around f would do
    with it: apply a rule, loop over the samples, fail. f itself need not be transformed; if it is,
    the report says too what its own transforms did. Then f is captured as by compile, on fake
    tensors, which says what compile would do. Nothing is compiled.

    The transform around f is taken to follow all tensors among the arguments (and the state of a
    module), and what is computed from them. An operator without a rule of ours is recorded on fake
    tensors to see whether torch has a derivative. A rule may leave rare arguments to torch.

    Args:
        f: any function, method or module.
        args, kwargs: what to call it with. Under vmap, those of a single sample.
    Returns:
        A :class:`Coverage`, which prints as tables.
    Raises:
        CallError: f is not callable.
        TransformError: a transform is active.
        Exception: what f raises, with a note that f raised it.
    Example:
        >>> found = torchlayers.coverage(lambda x: x.renorm(2, 0, 1.0).sin(), torch.ones(2, 2))
        >>> [(row.operator, row.vmap, row.grad) for row in found.operators]
        [('aten::renorm', 'loops', 'rule'), ('aten::sin', 'typed kernel', 'rule')]
        >>> found.compiled.how, found.compiled.operators
        ('inductor', 2)

    Source: torch._dynamo.explain, and the tables of supported operators in torch.func's docs.
    """
    check_function("coverage", "f", f)
    if stack := current_stack():
        raise TransformError(
            f"torchlayers: coverage: {stack[-1].kind} (level {stack[-1].level}) is active. Call "
            "coverage outside of all transforms, on the arguments of one sample."
        )
    state = [*f.parameters(), *f.buffers()] if isinstance(f, Module) else []
    inputs = [leaf for leaf in pytree.leaves((args, kwargs, state)) if isinstance(leaf, Tensor)]
    layer = _Watching(inputs)
    with trace() as traced:
        try:
            with layer:
                f(*args, **kwargs)
        except Exception as error:
            error.add_note(
                f"torchlayers: coverage: {name_of(f)} itself raised this, called with the given "
                "arguments. Nothing is reported about a program that does not run."
            )
            raise
    calls = [*traced]
    return Coverage(
        name_of(f),
        tuple(_operators(calls, layer)),
        tuple(_layers(calls)),
        _compiled(f, args, kwargs),
        traced.dropped,
    )


class _Watching(Layer):
    """A layer where a transform around f would be. It passes everything on, and follows the tensors
    that f is given into what is computed from them, by their memory."""

    name = "watching"

    def __init__(self, inputs: list[Tensor]) -> None:
        self.first_calls: dict[str, OperatorCall] = {}
        self.counts = Counter[str]()
        self.followed: set[str] = set()  # operators
        self._memories: dict[int, Any] = {}
        for tensor in inputs:
            self._follow(tensor)

    def process(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = _name(op)
        operands = [leaf for leaf in pytree.leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        is_followed = any(map(self._follows, operands))
        self.counts[name] += 1
        if name not in self.first_calls or (is_followed and name not in self.followed):
            of_tensors = {key: described(arg) for key, arg in kwargs.items()}
            self.first_calls[name] = OperatorCall(op, tuple(map(described, args)), of_tensors)
        results = self.send_down(op, args, kwargs)
        if is_followed:
            self.followed.add(name)
            written = (
                operator_schema.arguments_written(op, args, kwargs)
                if operator_schema.writes(op)
                else []
            )
            for leaf in [*written, *pytree.leaves(results)]:
                if isinstance(leaf, Tensor):
                    self._follow(leaf)
        return results

    def _follow(self, tensor: Tensor) -> None:
        if (memory := storage_of(tensor)) is not None:
            self._memories[memory] = _reductions.StorageWeakRef(tensor.untyped_storage())

    def _follows(self, tensor: Tensor) -> bool:
        if (memory := storage_of(tensor)) is None:  # a sparse tensor
            return True
        known = self._memories.get(memory)
        return known is not None and not known.expired()


def _name(op: Any) -> str:
    name: str = op.name() if isinstance(op, OpOverload) else op.__name__  # type: ignore[no-untyped-call]
    return name


def _compiled(
    f: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> CompileCoverage:
    try:
        differs = what_differs_later(signature(*pytree.flatten((args, kwargs))))
        captured = record(f, args, kwargs, guarded=True, lines=True, reads=())
    except Exception as error:
        return CompileCoverage("not compiled", _reason(error), 0, ())
    lost = ", ".join(dict.fromkeys(write.name for write in captured.lost))
    last = SplitGraph(captured).last_part()[0] if captured.reads else captured
    graph = simplify(last.graph)
    count = sum(1 for _ in operators_of(graph))
    recorded = _recorded(f, args, kwargs, graph)
    guards = captured.guards.names() if captured.guards is not None else ()
    if lost:
        why = f"it changes {lost}, which a captured graph can't repeat"
        return CompileCoverage("captured at each call", why, count, guards, differs, recorded)
    if captured.reads:
        lines = dict.fromkeys(read.line.removeprefix("In ") for read in captured.reads)
        why = f"values are read here: {'; '.join(lines)}"
        return CompileCoverage("in parts", why, count, guards, differs, recorded)
    obstacle = inductor_obstacle(captured)
    how = "replay" if obstacle is not None else "inductor"
    why = "" if obstacle is None else f"{obstacle.why} ({_place(obstacle.node)})"
    return CompileCoverage(how, why, count, guards, differs, recorded)


def _recorded(
    f: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], graph: GraphModule
) -> str:
    """How a compiled function runs where autograd records the call."""
    try:
        captured = record(f, args, kwargs, gradients=True, guarded=True, reads=())
    except NoBackwardError as error:
        return f"uncompiled, because its reverse pass can't be captured: {error}"
    if captured.gradients is None:
        return ""
    why = why_not_differentiable(graph)
    return f"uncompiled, because {why}" if why else "compiled"


def _place(node: Node) -> str:
    """ "aten._to_sparse.default in train.py:7, `x.to_sparse()`", or "the argument x"."""
    if node.op == "placeholder":
        return f"the argument {node.name}"
    line = str(node.meta.get("stack_trace") or "").removeprefix("In ").removesuffix(".")
    return f"{node.target} in {line}" if line else str(node.target)


def _reason(error: Exception) -> str:
    text = str(error).partition("\n")[0]
    return text.removeprefix("torchlayers: ").removeprefix("compile: ") or type(error).__name__


def _operators(calls: list[TracedCall], watching: _Watching) -> Iterator[OperatorCoverage]:
    """A row for each operator that arrives at the outermost layer, and below it its parts."""
    arriving = [call for call in calls if _arrives_at(call) == 1]
    rows = {call: _path(call) for call in arriving}
    counts = Counter(rows.values())
    known: dict[tuple[str, ...], dict[str, str]] = {}
    rows_by_path: list[tuple[tuple[str, ...], OperatorCoverage]] = []
    for call, path in rows.items():
        if path in known:
            continue
        first = watching.first_calls.get(call.name) or _composite(call)
        outputs = tuple(tensor.dtype for tensor in call.outputs)
        does = what_happens(first, outputs)
        if not any(part.name in watching.followed for part in call.walk()):
            does = {mode: does[mode] if does[mode] == DRAWS else NOTHING for mode in MODES}
        if len(path) > 1:
            above = known[path[:-1]]
            does = {mode: does[mode] if above[mode] == APART else "" for mode in MODES}
        known[path] = does
        row = OperatorCoverage(
            call.name,
            counts[path],
            does["vmap"],
            does["jvp"],
            does["grad"],
            call.called_by_user.line,
            len(path) - 1,
        )
        rows_by_path.append((path, row))
    for path, row in rows_by_path:
        if any(does not in ("", NOTHING) for does in known[path].values()):
            yield row
    for name, first in watching.first_calls.items():
        if not isinstance(first.op, OpOverload):  # an autograd.Function is not in the trace
            does = what_happens(first, ())
            yield OperatorCoverage(
                name, watching.counts[name], does["vmap"], does["jvp"], does["grad"], "", 0
            )


def _arrives_at(call: TracedCall) -> int:
    """The level of the layer at which an operator arrives; 0 for a kernel, or what is none."""
    if call.kind != "operator" or call.how == "kernel":
        return 0
    return call.level if call.layer is not None else _level_above(call)


def _level_above(call: TracedCall) -> int:
    """The layer that takes an operator apart: the one below the layer that called it."""
    around = call.parent
    while around is not None and around.kind != "layer":
        if around.kind == "operator" and around.layer is not None:
            return around.level if around.how == APART else around.level - 1
        around = around.parent
    return around.level if around is not None else 0


def _path(call: TracedCall) -> tuple[str, ...]:
    """Its name, after those of the operators that are decomposed into it at the same layer."""
    path = [call.name]
    around = call.parent
    while around is not None and around.kind == "operator" and around.layer is None:
        path.append(around.name)
        around = around.parent
    return tuple(reversed(path))


def _composite(call: TracedCall) -> OperatorCall:
    """A call of which only the trace knows: no layer processes an operator that is decomposed."""
    name, _, overload = call.name.partition(".")
    tensors = tuple(
        TensorDescription((), (), DTYPES.get(tensor.dtype, torch.float32), CPU, False)
        for tensor in call.inputs
    )
    return OperatorCall(operator_schema.overload(name, overload), tensors, {})


def _layers(calls: list[TracedCall]) -> Iterator[LayerCoverage]:
    """What the layers inside f did: those above the outermost."""
    grouped: dict[tuple[str, str, str], list[TracedCall]] = {}
    for call in calls:
        if call.kind == "operator" and call.layer is not None and call.level > 1:
            layer = f"{call.layer} (level {call.level - 1})"
            grouped.setdefault((call.name, layer, call.how), []).append(call)
    for (operator, layer, how), group in grouped.items():
        if how not in ("passed down", "pull_back"):
            loops = sum(call.iterations for call in group)
            line = group[0].called_by_user.line
            yield LayerCoverage(operator, layer, how, len(group), loops, line)
