"""Dynamic shapes: one captured graph with symbolic sizes for all sizes that change between calls.

A function is first captured for the sizes of its first call. At a call whose arguments differ only
in sizes it is captured once more, with symbols for those sizes: torch's fake tensors have SymInts
for them, and guards for whatever the function, the layers and the passes asked about them. From
then on, a call with new sizes substitutes numbers for the symbols, without running the function or
the passes again.

NOTE [A size that is a number]
Where something used a size as a number (range, len, C++ without symbolic sizes), the guards show
it, and each shape is captured separately. But no guard reveals a number that was copied. Therefore
the first call whose sizes differ from those at the symbolic capture is also captured on its own,
and what runs is compared with that (verify.py). If they differ, the symbolic graph is discarded.
"""

import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import SymBool, SymFloat, SymInt, Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_aggregate

from torchlayers.compiler.capture.record import record
from torchlayers.compiler.capture.recording import CapturedGraph
from torchlayers.compiler.capture.signature import (
    Signature,
    TensorMetadata,
    explain_new_signature,
    tensor_metadata,
)
from torchlayers.compiler.inductor import compile as inductor
from torchlayers.compiler.passes import simplify
from torchlayers.compiler.passes.graph_queries import communicates, inputs_of
from torchlayers.compiler.runtime.compare import Run
from torchlayers.compiler.runtime.request import CompileRequest
from torchlayers.fx.nodes import mode_of, value
from torchlayers.fx.strides import STRIDES, strides_of

if TYPE_CHECKING:  # importing sympy takes twice as long as importing this package
    import sympy  # type: ignore[import-untyped]

Numbers = dict["sympy.Expr", "sympy.Integer"]


class NotSymbolicError(Exception):
    """The reason why a function can't be captured with symbolic sizes."""


def changed_sizes(now: Signature, before: Signature) -> list[set[int]] | None:
    """Returns the dimensions whose sizes differ, for each tensor among the arguments.

    Returns None if anything else differs, if nothing differs, or if such a size is 0 or 1, which
    torch's fake tensors specialize on.
    """
    if (now.spec, now.static, now.modes) != (before.spec, before.static, before.modes):
        return None
    changed = []
    for one, other in zip(now.leaves, before.leaves, strict=True):
        if not (isinstance(one, TensorMetadata) and isinstance(other, TensorMetadata)):
            if one != other:
                return None
            continue
        same = one._replace(shape=other.shape, stride=other.stride) == other
        if not same or len(one.shape) != len(other.shape):
            return None
        pairs = [*zip(one.shape, other.shape, strict=True)]
        changed.append({dim for dim, (a, b) in enumerate(pairs) if a != b})
        if any(min(pairs[dim]) < 2 for dim in changed[-1]):
            return None
    return changed if any(changed) else None


class DynamicGraph:
    """A captured graph with symbolic sizes. NOTE [A size that is a number]."""

    def __init__(
        self,
        request: CompileRequest,
        given: Signature,
        before: Signature,
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> None:
        """
        Args:
            given, args, kwargs: the signature and arguments of a call.
            before: the signature of an earlier call that differs only in sizes.
        Raises:
            NotSymbolicError: the sizes can't be symbolic.
        """
        start = time.perf_counter()
        symbolic = changed_sizes(given, before)
        assert symbolic is not None
        try:
            captured_graph = record(
                request.func,
                args,
                kwargs,
                gradients=given.modes.grad,
                symbolic=symbolic,
                guarded=request.settings.guards,
            )
        except Exception as error:
            lines = str(error).strip().splitlines()
            raise NotSymbolicError(lines[0] if lines else type(error).__name__) from error
        if captured_graph.gradients is not None:
            raise NotSymbolicError("it is differentiated by plain autograd")
        if captured_graph.effects.grads_read:
            raise NotSymbolicError("it reads .grad of its inputs")
        if writes := captured_graph.effects.writes:
            raise NotSymbolicError(f"it changes {writes.names[0]}")
        if captured_graph.stepped:
            raise NotSymbolicError("it steps an optimizer")
        if communicates(captured_graph.graph):
            raise NotSymbolicError("other ranks' sizes are not known")
        self._lock = threading.Lock()
        self._code: Run | None = None
        self.captured_graph = captured_graph
        self.graph = simplify(captured_graph.graph)
        self.captured_like = [tensor_metadata(tensor) for tensor in captured_graph.captured]
        mode: Any = mode_of(captured_graph.graph.graph)
        self._environment = mode.shape_env
        tensors = [leaf for leaf in given.leaves if isinstance(leaf, TensorMetadata)]
        self._inputs = [value(node) for node in inputs_of(captured_graph.graph)][: len(tensors)]
        for fake, dims in zip(self._inputs, symbolic, strict=True):
            if any(_expression(fake.shape[dim]).is_number for dim in dims):
                raise NotSymbolicError("a size is used as a number, as by len or range")
        self._signature = given
        self.why = explain_new_signature(given, before)
        self.seconds = time.perf_counter() - start

    @property
    def signature(self) -> Signature:
        """The signature of the captured call, with ``*`` for symbolic sizes."""
        fakes = iter(self._inputs)

        def shown(leaf: Any) -> Any:
            if not isinstance(leaf, TensorMetadata):
                return leaf
            shape: Any = tuple("*" if isinstance(s, SymInt) else s for s in next(fakes).shape)
            return leaf._replace(shape=shape)

        return self._signature._replace(leaves=tuple(map(shown, self._signature.leaves)))

    def fits(self, given: Signature) -> Numbers | None:
        """Returns the symbols' values for a call, or None if the graph is not valid for it."""
        if [
            tensor_metadata(tensor) for tensor in self.captured_graph.captured
        ] != self.captured_like:
            return None
        if self.captured_graph.guards is not None and not self.captured_graph.guards.held.hold():
            return None
        if not all(hooked.still_holds() for hooked in self.captured_graph.hooked):
            return None
        if given != self._signature and changed_sizes(given, self._signature) is None:
            return None
        return self._numbers(given)

    def _numbers(self, given: Signature) -> Numbers | None:
        import sympy

        likes = [leaf for leaf in given.leaves if isinstance(leaf, TensorMetadata)]
        numbers: Numbers = {}
        for fake, told in zip(self._inputs, likes, strict=True):
            # With gaps in memory, strides are not products of sizes but separate symbols.
            given_as = (*told.shape, *(told.stride or ()))
            for size, number in zip((*fake.shape, *fake.stride()), given_as, strict=False):
                if isinstance(size, SymInt) and size.node._expr.is_Symbol:
                    numbers[size.node._expr] = sympy.Integer(number)
        for fake, told in zip(self._inputs, likes, strict=True):
            expected = (*told.shape, *(told.stride or ()))
            if (
                tuple(_substitute(each, numbers) for each in (*fake.shape, *fake.stride()))
                != expected
            ):
                return None
        environment = self._environment
        holds = (
            all(guard.expr.xreplace(numbers) == sympy.true for guard in environment.guards)
            and all(
                meant.xreplace(numbers) == numbers[symbol]
                for symbol, meant in environment.replacements.items()
                if symbol in numbers
            )
            and all(
                environment.var_to_range[symbol].lower <= number
                and number <= environment.var_to_range[symbol].upper
                for symbol, number in numbers.items()
            )
        )
        return numbers if holds else None

    def compiler_for(self, given: Signature) -> "SymbolicCompiler":
        return SymbolicCompiler(self, given)

    def is_compiled(self) -> bool:
        return self._code is not None

    def compile_for(self, given: Signature, threads: int, options: dict[str, Any] | None) -> Run:
        """Returns Inductor's code for all sizes, if that is valid for these."""
        with self._lock:
            if self._code is None:
                self._code = inductor.compile_graph(self.captured_graph.graph, threads, options)
            if (numbers := self.fits(given)) is None:
                raise NotSymbolicError(
                    "the code that Inductor compiled for other sizes is not valid for these"
                )
            if not isinstance(self._code, inductor.InductorGraph):
                return self._code
            return self._code.run_for(lambda size: int(_substitute(size, numbers)))

    def is_like(self, alone: CapturedGraph, numbers: Numbers) -> bool:
        """Whether a capture for these sizes only has the same captured tensors and structure."""
        own = self.captured_graph_for(numbers)
        first, others = len(alone.captured) - alone.constants, len(own.captured) - own.constants
        return (
            [*map(id, alone.captured[:first])] == [*map(id, own.captured[:others])]
            and alone.constants == own.constants
            and all(map(_same, alone.captured[first:], own.captured[others:]))
            and (alone.outputs, alone.out_spec) == (own.outputs, own.out_spec)
            and alone.gradients is None
        )

    def captured_graph_for(self, numbers: Numbers) -> CapturedGraph:
        outputs = [
            output._replace(value=_substitute(output.value, numbers))
            for output in self.captured_graph.outputs
        ]
        graph = specialize(self.captured_graph.graph, numbers)
        return self.captured_graph._replace(graph=graph, outputs=outputs)


def _same(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one, other)


class SymbolicCompiler:
    """Compiles a dynamic graph for the sizes of a signature; the first time, for all sizes."""

    def __init__(self, dynamic: DynamicGraph, given: Signature) -> None:
        self._dynamic, self._given = dynamic, given

    def is_ready(self) -> bool:
        return self._dynamic.is_compiled()

    def __call__(
        self, graph: GraphModule, threads: int, options: dict[str, Any] | None = None
    ) -> Run:
        return self._dynamic.compile_for(self._given, threads, options)


def specialize(graph: GraphModule, numbers: Numbers) -> GraphModule:
    """Returns the graph with numbers substituted for its symbols, and without fake values."""
    made, known = Graph(), dict[Node, Any]()

    def fill(argument: Any) -> Any:
        return known[argument] if isinstance(argument, Node) else _substitute(argument, numbers)

    for node in graph.graph.nodes:
        told = value(node)
        if isinstance(told, (SymInt, SymFloat, SymBool, int, float)):
            known[node] = _substitute(told, numbers)
            continue
        args, kwargs = map_aggregate((node.args, node.kwargs), fill)
        known[node] = made.create_node(node.op, node.target, args, kwargs, node.name)
        known[node].meta = {"stack_trace": node.meta.get("stack_trace")}
        if (strides := strides_of(node)) is not None:
            known[node].meta[STRIDES] = tuple(_substitute(stride, numbers) for stride in strides)
    filled = GraphModule(graph, made)
    for name, held in graph.named_children():  # branches and loop bodies
        if isinstance(held, GraphModule):
            setattr(filled, name, specialize(held, numbers))
    return filled


def _substitute(given: Any, numbers: Numbers) -> Any:
    """Evaluates a symbolic number; returns anything else unchanged."""
    if isinstance(given, SymInt):
        return int(_expression(given).xreplace(numbers))
    if isinstance(given, SymFloat):
        return float(_expression(given).xreplace(numbers))
    if isinstance(given, SymBool):
        return bool(_expression(given).xreplace(numbers))
    return given


def _expression(size: Any) -> "sympy.Expr":
    import sympy

    return size.node.expr if isinstance(size, SymInt | SymFloat | SymBool) else sympy.sympify(size)
