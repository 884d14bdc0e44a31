"""torchlayers.compile and make_graph: capture a function, with any transforms in it, as a graph."""

import inspect
from collections.abc import Callable, Sequence
from inspect import Parameter
from typing import Any, NoReturn, Protocol, overload

from torch.fx import GraphModule
from torch.nn import Module

from torchlayers.compiler.capture.errors import name_of
from torchlayers.compiler.capture.record import record
from torchlayers.compiler.compiled_function import Compiled
from torchlayers.compiler.compiled_module import CompiledModule
from torchlayers.compiler.inductor.compile import check_options
from torchlayers.compiler.passes import simplify
from torchlayers.compiler.runtime.backends import BACKENDS, Backend
from torchlayers.compiler.runtime.request import CompileSettings
from torchlayers.core.annotations import P, R
from torchlayers.core.errors import TransformError
from torchlayers.core.function_checks import check_function, require_function
from torchlayers.core.jax_names import refuse_keywords, without_others


class CompileDecorator(Protocol):
    """What :func:`compile` returns without a function."""

    def __call__(self, f: Callable[P, R], /) -> Compiled[P, R]: ...


@overload
def compile(
    f: Module,
    *,
    static_argnums: int | Sequence[int] = (),
    dynamic: bool = False,
    backend: Backend = "inductor",
    options: dict[str, Any] | None = None,
    check: bool = True,
    guards: bool = True,
    wait: bool | None = None,
    fullgraph: bool = False,
) -> CompiledModule: ...
@overload
def compile(
    f: Callable[P, R],
    *,
    static_argnums: int | Sequence[int] = (),
    dynamic: bool = False,
    backend: Backend = "inductor",
    options: dict[str, Any] | None = None,
    check: bool = True,
    guards: bool = True,
    wait: bool | None = None,
    fullgraph: bool = False,
) -> Compiled[P, R]: ...
@overload
def compile(
    f: None = None,
    *,
    static_argnums: int | Sequence[int] = (),
    dynamic: bool = False,
    backend: Backend = "inductor",
    options: dict[str, Any] | None = None,
    check: bool = True,
    guards: bool = True,
    wait: bool | None = None,
    fullgraph: bool = False,
) -> CompileDecorator: ...
@without_others
def compile(
    f: Callable[..., Any] | None = None,
    *,
    static_argnums: int | Sequence[int] = (),
    dynamic: bool = False,
    backend: Backend = "inductor",
    options: dict[str, Any] | None = None,
    check: bool = True,
    guards: bool = True,
    wait: bool | None = None,
    fullgraph: bool = False,
    **others: NoReturn,
) -> Any:
    """Compiles a function, whatever transforms are in it.

    The first call with a new signature (structure of the arguments; shapes, dtypes, devices and
    strides of tensors; other values; modes such as autocast) runs f once on fake tensors and
    captures the plain operators that its layers dispatch. Later calls run the compiled graph.
    Tensors in f's closure are read anew at each call. If another Python value that f read, a global
    or an attribute, has changed, f is captured again. Inside a transform or another capture, f runs
    uncompiled. docs/compile.md has the rules.

    Args:
        f: any function, method or module. If omitted, compile returns a decorator.
        static_argnums: positional arguments that are treated as constants, with all they contain.
        dynamic: make sizes that differ between calls symbolic, so that calls that differ only in
            these share one captured graph. Where that is impossible, a warning says why, and each
            shape is captured separately.
        backend: ``"inductor"``: PyTorch's compiler, which works in the background from the first
            call with a signature on; calls replay the operators one by one until the code is
            ready. ``"replay"``: no compiler.
        options: options for Inductor, by their names in torch._inductor.config.
        check: compare the first results and the first gradients with those of the unsimplified
            graph. If they differ by more than rounding, warn and replay that graph from then on.
        guards: check before each call that the Python values f read are unchanged. If False, they
            are constants, as with jax.jit; modules that f calls are still checked.
        wait: True: the first call waits for Inductor. False: no call does. None: the first call
            waits with deterministic algorithms, with several ranks, or if the environment variable
            TORCHLAYERS_COMPILE_WAIT is 1.
        fullgraph: refuse functions that read values of tensors, so that each call is one graph. If
            False, the graph is split where a value is read, and each answer has its own
            continuation.
    Returns:
        A :class:`Compiled`, called like f. For a module it is also a module, which has the
        original's parameters and can be a submodule of others.
    Raises:
        TransformError: the backend or an option is unknown, or static_argnums are not integers or
            do not match f's arguments.
        DataDependentError: at a call, if f needs a Python value that depends on tensor data, with
            fullgraph or inside a branch or a loop of torchlayers.control_flow.
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
    if others:
        refuse_keywords(compile, others)
    if backend not in BACKENDS:
        raise TransformError(
            f"torchlayers: compile: unknown backend {backend!r}. Available backends: "
            f"{', '.join(map(repr, BACKENDS))}."
        )
    argnums: Any = static_argnums
    static = (argnums,) if isinstance(argnums, int) else argnums
    if not isinstance(static, Sequence) or not all(isinstance(place, int) for place in static):
        raise TransformError(
            "torchlayers: compile: static_argnums must be an int or a sequence of ints, got "
            f"{static_argnums!r}."
        )
    check_options(options or {})
    settings = CompileSettings(backend, options, check, guards, wait, fullgraph)

    def compiled(f: Callable[..., Any]) -> Compiled[..., Any]:
        check_function("compile", "f", f)
        if static:
            _check_static(f, static)
        if isinstance(f, Module):
            return CompiledModule(f, tuple(static), settings, dynamic=dynamic)
        return Compiled(f, tuple(static), settings, dynamic=dynamic)

    return compiled if f is None else compiled(f)


def _check_static(f: Callable[..., Any], static: Sequence[int]) -> None:
    """Raises an error if f's signature can be read and lacks one of the static arguments."""
    try:
        parameters = inspect.signature(f).parameters.values()
    except (TypeError, ValueError):
        return
    kinds = [parameter.kind for parameter in parameters]
    count = sum(
        kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD) for kind in kinds
    )
    wrong = [place for place in static if not -count <= place < count]
    if wrong and Parameter.VAR_POSITIONAL not in kinds:
        raise TransformError(
            f"torchlayers: compile: static_argnums contains {wrong[0]}, but {name_of(f)} takes "
            f"only {count} positional arguments."
        )


def make_graph(f: Callable[P, Any]) -> Callable[P, GraphModule]:
    """Captures a function as a graph of the plain operators below its layers, for inspection.

    Args:
        f: any function, method or module.
    Returns:
        A function of f's arguments that returns a torch.fx.GraphModule. The graph's inputs are the
        tensors in the arguments, named after them, followed by those that f captures; it returns
        a list of the tensors that f computes.
    Raises:
        DataDependentError: f needs a Python value that depends on tensor data.
    Example:
        >>> graph = make_graph(torchlayers.vmap(torch.dot))(torch.ones(3, 2), torch.ones(3, 2))
        >>> [node.name for node in graph.graph.nodes]
        ['arg_0', 'arg_1', 'mul', 'sum_1', 'output']

    Source: jax.make_jaxpr.
    """

    require_function(f)

    def graph_of(*args: P.args, **kwargs: P.kwargs) -> GraphModule:
        return simplify(record(f, args, kwargs).graph)

    return graph_of
