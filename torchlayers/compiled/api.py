"""torchlayers.compile: a function of any layers, recorded once a signature and run compiled."""

import functools
import threading
import time
import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any, overload

from torch import Tensor
from torch.fx import GraphModule

from torchlayers import _C, torch_compile, tree
from torchlayers.compiled import call
from torchlayers.compiled.backends import BACKENDS, Runner, Settings
from torchlayers.compiled.derivative import Derivative
from torchlayers.compiled.graphs import operators, writes
from torchlayers.compiled.lowered import Lowered
from torchlayers.compiled.record import Recording, record
from torchlayers.compiled.refused import name_of
from torchlayers.compiled.report import Report, SignatureReport
from torchlayers.compiled.shared_memory import UnlessShared
from torchlayers.compiled.signature import (
    Signature,
    described,
    differing,
    distance,
    like,
    why_new,
)
from torchlayers.compiled.simplify import simplify
from torchlayers.errors import TransformError

# From so many signatures on, a function is said to be recorded over and over.
_MANY = 8


@overload
def compile(
    f: Callable[..., Any],
    *,
    static_argnums: int | Sequence[int] = (),
    backend: str = "inductor",
    options: dict[str, Any] | None = None,
    check: bool = True,
) -> "Compiled": ...
@overload
def compile(
    f: None = None,
    *,
    static_argnums: int | Sequence[int] = (),
    backend: str = "inductor",
    options: dict[str, Any] | None = None,
    check: bool = True,
) -> Callable[[Callable[..., Any]], "Compiled"]: ...
def compile(
    f: Callable[..., Any] | None = None,
    *,
    static_argnums: int | Sequence[int] = (),
    backend: str = "inductor",
    options: dict[str, Any] | None = None,
    check: bool = True,
) -> Any:
    """Compiles a function, whatever transforms are in it.

    The first call with a signature (structure of the arguments; shapes, dtypes, devices and strides
    of tensors; other values; modes such as autocast) runs f once, on tensors without data, and
    records the plain operators that its layers come to. Later calls run those, compiled. Tensors
    that f captures are read anew at each call; other values that it reads are constants. Inside a
    transform or another recording f runs as it is. docs/compile.md has the rules.

    Args:
        f: any function, method or module. Left out, compile returns a decorator.
        static_argnums: positional arguments that are constants as a whole, whatever is in them.
        backend: ``"inductor"``: PyTorch's compiler, at the first call with a signature.
            ``"replay"``: no compiler; the operators one by one. ``"auto"``: replays at first, and
            takes inductor's code when that is ready.
        options: for inductor, by the names in torch._inductor.config.
        check: hold inductor's first result against the replayed one. Where they differ by more
            than rounding, calls are replayed, with a warning.
    Returns:
        A :class:`Compiled`, which is called as f is.
    Raises:
        TransformError: there is no such backend, or static_argnums are no integers.
        DataDependentError: at a call: f needs a value that only a call's data has.
    Example:
        >>> @compile(backend="replay")
        ... def slope(x):
        ...     return torchlayers.grad(lambda x: x.sin().sum())(x)
        >>> slope(torch.zeros(2))
        tensor([1., 1.])
        >>> slope(torch.ones(2, 1)).shape
        torch.Size([2, 1])
        >>> [(entry.arguments, entry.why) for entry in slope.report().signatures]
        [('f32[2]', ''), ('f32[2, 1]', 'argument 0 has shape (2, 1), was (2,)')]

    Source: jax.jit.
    """
    if backend not in BACKENDS:
        raise TransformError(
            f"torchlayers: compile: there is no backend {backend!r}. There are: "
            f"{', '.join(map(repr, BACKENDS))}."
        )
    static = (static_argnums,) if isinstance(static_argnums, int) else tuple(static_argnums)
    if not all(isinstance(place, int) for place in static):
        raise TransformError(
            f"torchlayers: compile: static_argnums must be an int or ints, got {static_argnums!r}."
        )
    settings = Settings(backend, options, check)
    if f is None:
        return lambda f: Compiled(f, static, settings)
    if not callable(f):
        raise TransformError(f"torchlayers: compile: {f!r} can't be called.")
    return Compiled(f, static, settings)


def make_graph(f: Callable[..., Any]) -> Callable[..., GraphModule]:
    """What a function comes to: the plain operators below its layers, as a graph to read.

    Args:
        f: any function, method or module.
    Returns:
        A function of f's arguments that returns a torch.fx.GraphModule. Its inputs are the
        arguments' tensors, named after them, and then those that f captures; it returns the tensors
        that f computes, in a list.
    Raises:
        DataDependentError: f needs a value that only a call's data has.
    Example:
        >>> graph = make_graph(torchlayers.vmap(torch.dot))(torch.ones(3, 2), torch.ones(3, 2))
        >>> [node.name for node in graph.graph.nodes]
        ['arg_0', 'arg_1', 'mul', 'sum_1', 'output']

    Source: jax.make_jaxpr.
    """

    def graph_of(*args: Any, **kwargs: Any) -> GraphModule:
        return simplify(record(f, args, kwargs).graph)

    return graph_of


class Compiled:
    """A function that :func:`compile` compiles. It is called as the function is."""

    def __init__(
        self,
        func: Callable[..., Any],
        static: tuple[int, ...],
        settings: Settings,
        *,
        keeps_writes: bool = True,
    ) -> None:
        functools.update_wrapper(self, func, updated=())
        self._func = func
        self._static = static
        self._settings = settings
        self._keeps_writes = keeps_writes
        self._name = name_of(func)
        self._entries = call.Entries()
        self._parts: list[_Parts] = []
        self._lock = threading.RLock()
        self._call = _C.CompiledCall(self._otherwise)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch_compile.is_tracing():
            return self._func(*args, **kwargs)
        return self._call(*args, **kwargs)

    def _otherwise(self, *args: Any, **kwargs: Any) -> Any:
        """A call that C++ has no entry for."""
        return call.call(self._entries, self._make, self._func, self._static, args, kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"torchlayers.compile({self._name})"

    def report(self) -> Report:
        """What has been recorded so far, how it runs, and why it was recorded.

        Returns:
            A :class:`Report`, which prints as a table.
        """
        parts = zip(self._entries.all, self._parts, strict=True)
        return Report(self._name, tuple(part.report(entry) for entry, part in parts))

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """The function recorded for arguments like these, to look at and to save.

        Args:
            args, kwargs: as for a call. Nothing is computed, and no tensor is written.
        Returns:
            A :class:`torchlayers.compiled.Lowered`: its graph, what it costs, and ``save(path)``.
        Raises:
            DataDependentError: the function needs a value that only a call's data has.
        Example:
            >>> lowered = compile(lambda a, b: (a @ b).sin()).lower(torch.ones(2, 3), torch.ones(3))
            >>> lowered.operators, lowered.flops
            (2, 14)

        Source: jax.stages.Lowered.
        """
        func, dynamic = self._without_static(args)
        recorded = record(func, dynamic, kwargs)
        return Lowered(self._name, recorded, (dynamic, kwargs), self._settings.options)

    def _without_static(self, args: Sequence[Any]) -> tuple[Callable[..., Any], list[Any]]:
        """The function of the arguments that are no constants, and these."""
        places = self._places(args)
        if not places:
            return self._func, list(args)

        def func(*dynamic: Any, **kwargs: Any) -> Any:
            rest = iter(dynamic)
            return self._func(
                *(arg if i in places else next(rest) for i, arg in enumerate(args)), **kwargs
            )

        return func, [arg for i, arg in enumerate(args) if i not in places]

    def _make(self, given: Signature, args: Sequence[Any], kwargs: dict[str, Any]) -> call.Entry:
        """The entry for a signature: recorded by one thread, for all that wait for it."""
        with self._lock:
            if (entry := self._entries.find(given)) is not None:
                return entry
            entry, parts = self._recorded(given, args, kwargs)
            self._parts.append(parts)
            self._entries.add(entry)
            self._call.add(entry, args, kwargs, [i in self._places(args) for i in range(len(args))])
            if len(self._parts) == _MANY:
                warnings.warn(
                    f"torchlayers: compile: {self._name} was recorded {_MANY} times, the last time "
                    f"because {parts.why}. Calls that differ in this don't share compiled code: "
                    "pass tensors in place of numbers that change, pad shapes, or leave compile "
                    "out. report() lists the signatures.",
                    stacklevel=4,
                )
            return entry

    def _places(self, args: Sequence[Any]) -> set[int]:
        """Which of these arguments are static."""
        return {i % len(args) for i in self._static if -len(args) <= i < len(args)}

    def _recorded(
        self, given: Signature, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> tuple[call.Entry, "_Parts"]:
        start = time.perf_counter()
        chosen, dynamic = self._without_static(args)
        recorded = record(chosen, dynamic, kwargs, gradients=given.modes.grad)
        graph = simplify(recorded.graph)
        if not self._keeps_writes:
            _without_writes(graph)
        leaves, spec = tree.flatten((tuple(dynamic), kwargs))
        entry = call.Entry(
            given, recorded.captured, recorded.outputs, recorded.out_spec, lambda tensors: ()
        )
        watched = None
        if written := {*writes(graph).values()}:
            watched = UnlessShared(recorded.graph, sorted(written))
        if recorded.gradients is not None:
            derivative = Derivative(
                recorded,
                graph,
                self._settings,
                self._name,
                self._compile_again,
                _Computed(chosen, leaves, spec, recorded),
                sum(isinstance(leaf, Tensor) for leaf in leaves),
            )
            entry.run = derivative
            entry.is_recorded = True
            runners = [derivative.forward, derivative.backward]
        else:
            if watched is not None:
                entry.run = watched
            adopt = functools.partial(setattr, entry, "run") if watched is None else watched.adopt
            runners = [Runner(graph, self._settings, self._name, adopt)]
        count = sum(1 for _ in operators(graph))
        seconds = time.perf_counter() - start
        return entry, _Parts(runners, count, seconds, self._why(given, entry))

    def _compile_again(self, func: Callable[..., Any], name: str) -> "Compiled":
        again = Compiled(func, (), self._settings, keeps_writes=False)
        again._name = name
        return again

    def _why(self, given: Signature, entry: call.Entry) -> str:
        before = self._entries.all
        if not before:
            return ""
        closest = min(reversed(before), key=lambda other: distance(given, other.signature))
        if closest.signature == given:
            pairs = zip(entry.captured, closest.captured_like, strict=False)
            for i, (tensor, was) in enumerate(pairs):
                if like(tensor) != was:
                    return f"captured tensor {i} {differing(like(tensor), was)}"
        return why_new(given, closest.signature)


class _Parts:
    """What an entry was made of, for its report."""

    def __init__(self, runners: list[Runner], operators: int, seconds: float, why: str) -> None:
        self._runners = runners
        self._operators = operators
        self._seconds = seconds
        self.why = why

    def report(self, entry: call.Entry) -> SignatureReport:
        ways = list(dict.fromkeys(runner.how for runner in self._runners))
        seconds = self._seconds + sum(runner.seconds for runner in self._runners)
        return SignatureReport(
            described(entry.signature),
            "; ".join(ways),
            seconds,
            entry.calls,
            self._operators,
            self.why,
        )


class _Computed:
    """The function again, from the arguments' tensors to the tensors that it computes."""

    def __init__(
        self,
        func: Callable[..., Any],
        leaves: Sequence[Any],
        spec: tree.TreeSpec,
        recorded: Recording,
    ) -> None:
        self._func = func
        self._leaves = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self._tensors = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        self._spec = spec
        self._outputs = recorded.outputs
        self._count = recorded.computed

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        leaves = [*self._leaves]
        for i, tensor in zip(self._tensors, tensors, strict=True):
            leaves[i] = tensor
        args, kwargs = tree.unflatten(leaves, self._spec)
        results = tree.leaves(self._func(*args, **kwargs))
        computed: list[Any] = [None] * self._count
        for result, (source, value) in zip(results, self._outputs, strict=True):
            if source == "computed":
                computed[value] = result
        return computed


def _without_writes(graph: GraphModule) -> None:
    for node in writes(graph):
        node.replace_all_uses_with(node.args[1])  # type: ignore[arg-type]
        graph.graph.erase_node(node)
    graph.recompile()
