"""torchlayers.compile: a function of any layers, recorded once a signature and run compiled."""

import inspect
from collections.abc import Callable, Sequence
from inspect import Parameter
from typing import Any, overload

from torch.fx import GraphModule
from torch.nn import Module

from torchlayers.compiler.capture.errors import name_of
from torchlayers.compiler.capture.record import record
from torchlayers.compiler.compiled_function import Compiled
from torchlayers.compiler.compiled_module import CompiledModule
from torchlayers.compiler.inductor.compile import check_options
from torchlayers.compiler.passes import simplify
from torchlayers.compiler.runtime.backends import BACKENDS, Settings
from torchlayers.core.errors import TransformError


@overload
def compile(
    f: Callable[..., Any],
    *,
    static_argnums: int | Sequence[int] = (),
    dynamic: bool = False,
    backend: str = "inductor",
    options: dict[str, Any] | None = None,
    check: bool = True,
    guards: bool = True,
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
    guards: bool = True,
) -> Callable[[Callable[..., Any]], "Compiled"]: ...
def compile(
    f: Callable[..., Any] | None = None,
    *,
    static_argnums: int | Sequence[int] = (),
    dynamic: bool = False,
    backend: str = "inductor",
    options: dict[str, Any] | None = None,
    check: bool = True,
    guards: bool = True,
) -> Any:
    """Compiles a function, whatever transforms are in it.

    The first call with a signature (structure of the arguments; shapes, dtypes, devices and strides
    of tensors; other values; modes such as autocast) runs f once, on tensors without data, and
    records the plain operators that its layers come to. Later calls run those, compiled. Tensors
    that f captures are read anew at each call. Where other values that it reads of Python, globals
    and attributes, have changed, it is recorded anew. Inside a transform or another recording f
    runs as it is. docs/compile.md has the rules.

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
        guards: look before each call whether what f read of Python is as it was. Without, it is a
            constant, as with jax.jit; modules that f calls are looked at still.
    Returns:
        A :class:`Compiled`, which is called as f is. Of a module it is a module, too, with that
        one's parameters, and may be a part of others.
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
    settings = Settings(backend, options, check, guards)

    def compiled(f: Callable[..., Any]) -> Compiled:
        if not callable(f):
            raise TransformError(f"torchlayers: compile: {f!r} can't be called.")
        if static:
            _check_static(f, static)
        if isinstance(f, Module):
            return CompiledModule(f, tuple(static), settings, dynamic=dynamic)
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
