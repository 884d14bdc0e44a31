"""torchlayers.compile: a function of any layers, recorded once a signature and run compiled."""

import functools
import inspect
import threading
import types
import warnings
from collections.abc import Callable, Sequence
from inspect import Parameter
from typing import Any, overload

from torch.fx import GraphModule

from torchlayers import _C, torch_compile, tree
from torchlayers.compiled import call
from torchlayers.compiled.asked import Asked
from torchlayers.compiled.backends import BACKENDS, Settings
from torchlayers.compiled.families import Families
from torchlayers.compiled.inductor import check_options
from torchlayers.compiled.lowered import Lowered
from torchlayers.compiled.making import Made, make
from torchlayers.compiled.optimizers import difference
from torchlayers.compiled.record import record
from torchlayers.compiled.refused import name_of
from torchlayers.compiled.report import Report
from torchlayers.compiled.signature import Signature, differing, distance, like, why_new
from torchlayers.compiled.simplify import simplify
from torchlayers.errors import TransformError

# From so many signatures on, a function is said to be recorded over and over.
_MANY = 8


@overload
def compile(
    f: Callable[..., Any],
    *,
    static_argnums: int | Sequence[int] = (),
    dynamic: bool = False,
    backend: str = "inductor",
    options: dict[str, Any] | None = None,
    check: bool = True,
) -> "Compiled": ...
@overload
def compile(
    f: None = None,
    *,
    static_argnums: int | Sequence[int] = (),
    dynamic: bool = False,
    backend: str = "inductor",
    options: dict[str, Any] | None = None,
    check: bool = True,
) -> Callable[[Callable[..., Any]], "Compiled"]: ...
def compile(
    f: Callable[..., Any] | None = None,
    *,
    static_argnums: int | Sequence[int] = (),
    dynamic: bool = False,
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
        dynamic: sizes that differ from one call to the next become symbols, and calls that differ
            in these alone share one recording. Where that can't be, a warning says why, and each
            shape is recorded.
        backend: ``"inductor"``: PyTorch's compiler, at the first call with a signature.
            ``"replay"``: no compiler; the operators one by one. ``"auto"``: replays at first, and
            takes inductor's code when that is ready.
        options: for inductor, by the names in torch._inductor.config.
        check: hold the first results, and the first gradients, against those of the recording as
            it was made. Where they differ by more than rounding, that is replayed, with a warning.
    Returns:
        A :class:`Compiled`, which is called as f is.
    Raises:
        TransformError: there is no such backend or option, or static_argnums are no integers, or f
            has no such arguments.
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
    given: Any = static_argnums
    static = (given,) if isinstance(given, int) else given
    if not isinstance(static, Sequence) or not all(isinstance(place, int) for place in static):
        raise TransformError(
            f"torchlayers: compile: static_argnums must be an int or ints, got {static_argnums!r}."
        )
    check_options(options or {})
    settings = Settings(backend, options, check)

    def compiled(f: Callable[..., Any]) -> Compiled:
        if not callable(f):
            raise TransformError(f"torchlayers: compile: {f!r} can't be called.")
        if static:
            _check_static(f, static)
        return Compiled(f, tuple(static), settings, dynamic=dynamic)

    return compiled if f is None else compiled(f)


def _check_static(f: Callable[..., Any], static: Sequence[int]) -> None:
    """Raises where f, as far as its signature can be read, has no such arguments."""
    try:
        given = inspect.signature(f).parameters.values()
    except (TypeError, ValueError):
        return
    kinds = [parameter.kind for parameter in given]
    count = sum(
        kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD) for kind in kinds
    )
    wrong = [place for place in static if not -count <= place < count]
    if wrong and Parameter.VAR_POSITIONAL not in kinds:
        raise TransformError(
            f"torchlayers: compile: static_argnums names argument {wrong[0]} of {name_of(f)}, "
            f"which takes {count} by position."
        )


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


class Compiled(_C.CompiledCall):
    """A function that :func:`compile` compiles. It is called as the function is."""

    def __init__(
        self,
        func: Callable[..., Any],
        static: tuple[int, ...],
        settings: Settings,
        *,
        keeps_writes: bool = True,
        dynamic: bool = False,
    ) -> None:
        functools.update_wrapper(self, func, updated=())
        self._func = func
        self._static = static
        self._settings = settings
        self._keeps_writes = keeps_writes
        self._name = name_of(func)
        self._entries = call.Entries()
        self._made: list[Made] = []
        self._families = Families(self._name) if dynamic else None
        self._lock = threading.RLock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What Dynamo reads; calls are C++'s. NOTE [Called at once]."""
        return self._func(*args, **kwargs)

    @torch_compile.untraced
    def _otherwise(self, *args: Any, **kwargs: Any) -> Any:
        """A call that C++ has no entry for."""
        places = call.static_places(self._static, args)
        return call.call(self._entries, self._make, self._func, places, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        """What the function has: of a module its parameters(), its weight."""
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._func, name)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __reduce__(self) -> Any:
        """Copied and pickled as what it is compiled from; a copy records for itself."""
        dynamic = self._families is not None
        return _made_again, (self._func, self._static, self._settings, self._keeps_writes, dynamic)

    def __repr__(self) -> str:
        return f"torchlayers.compile({self._name})"

    def report(self) -> Report:
        """What has been recorded so far, how it runs, and why it was recorded.

        Returns:
            A :class:`Report`, which prints as a table.
        """
        families = self._families.reports() if self._families is not None else []
        return Report(self._name, (*(made.report() for made in self._made), *families))

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
        asked, dynamic = self._asked(args)
        recorded = record(asked.func, dynamic, kwargs)
        return Lowered(self._name, recorded, (dynamic, kwargs), self._settings.options)

    def _make(self, given: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> call.Entry:
        """The entry for a signature: recorded by one thread, for all that wait for it."""
        with self._lock:
            asked, dynamic = self._asked(args)
            leaves = tree.leaves((tuple(dynamic), kwargs))
            if (entry := self._entries.find(given, leaves)) is not None:
                return entry
            if self._families is not None:
                alone = [made.entry.signature for made in self._made]
                found = self._families.find(asked, given, alone, dynamic, kwargs)
                if found is not None:
                    entry, stays = found
                    if stays:
                        self._known(entry, args, kwargs)
                    return entry
            made = make(asked, given, dynamic, kwargs)
            made.why = self._why(made.entry)
            self._made.append(made)
            self._known(made.entry, args, kwargs)
            if len(self._made) == _MANY:
                warnings.warn(
                    f"torchlayers: compile: {self._name} was recorded {_MANY} times, the last time "
                    f"because {made.why}. Calls that differ in this don't share compiled code: "
                    "pass tensors in place of numbers that change, pad shapes, or leave compile "
                    "out. report() lists the signatures.",
                    stacklevel=4,
                )
            return made.entry

    def _known(self, entry: call.Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Calls like this one are the entry's from now on."""
        self._entries.add(entry)
        if entry.grads_like or entry.stepped:  # which C++ does not look at
            return
        places = call.static_places(self._static, args)
        self._add(entry, args, kwargs, [i in places for i in range(len(args))])

    def _asked(self, args: Sequence[Any]) -> tuple[Asked, list[Any]]:
        """What is recorded, a function of the arguments that are not static, and these."""
        func, places = self._func, call.static_places(self._static, args)
        if places:

            def func(*dynamic: Any, **kwargs: Any) -> Any:
                rest = iter(dynamic)
                given = (arg if i in places else next(rest) for i, arg in enumerate(args))
                return self._func(*given, **kwargs)

            functools.update_wrapper(func, self._func, updated=())
        dynamic = [arg for i, arg in enumerate(args) if i not in places]
        asked = Asked(func, self._name, self._settings, self._keeps_writes, self._compile_again)
        return asked, dynamic

    def _compile_again(self, func: Callable[..., Any], name: str) -> "Compiled":
        again = Compiled(func, (), self._settings, keeps_writes=False)
        again._name = name
        return again

    def _why(self, entry: call.Entry) -> str:
        """Why the entry is not one of those before."""
        before = self._entries.all
        if not before:
            return ""
        given = entry.signature
        closest = min(reversed(before), key=lambda other: distance(given, other.signature))
        if closest.signature == given:
            if closest.grads_like != entry.grads_like:
                return "a gradient that it reads was another, or none"
            pairs = zip(entry.captured, closest.captured_like, strict=False)
            for i, (tensor, was) in enumerate(pairs):
                if like(tensor) != was:
                    return f"captured tensor {i} {differing(like(tensor), was)}"
            if differs := difference(closest.stepped):
                return differs
            for module, was_training in closest.modules:
                if module.training is not was_training:
                    now, then = ("was not", "is") if module.training else ("was", "is not")
                    return f"{type(module).__name__} {then} in training, and {now}"
        return why_new(given, closest.signature)


_C.call_at_once(Compiled)


def _made_again(
    func: Callable[..., Any],
    static: tuple[int, ...],
    settings: Settings,
    keeps_writes: bool,
    dynamic: bool,
) -> Compiled:
    return Compiled(func, static, settings, keeps_writes=keeps_writes, dynamic=dynamic)
