"""Patches that speed up slow parts of Inductor without changing its results.

Each is active while one graph is compiled: on the thread that compiles it, or, if the results are
equal for any caller, on all threads. If a torch version lacks the patched function, nothing is
done.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from torchlayers.core.private_names import lookup
from torchlayers.core.torch_private import guards

if TYPE_CHECKING:  # importing sympy takes twice as long as importing this package
    import sympy  # type: ignore[import-untyped]

_VIRTUALIZED = "torch._inductor.virtualized.V"

# Held while functions of Inductor are patched.
replacing = threading.RLock()


@contextlib.contextmanager
def faster_inductor() -> Iterator[None]:
    with replacing, contextlib.ExitStack() as stack:
        for speedup in _SPEEDUPS:
            stack.enter_context(speedup())
        yield


@contextlib.contextmanager
def _replaced(path: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Replaces a function or a method of Inductor, if there is one.

    Args:
        make: takes the function, and returns its replacement.
    """
    place, _, name = path.rpartition(".")
    owner, original = lookup(place, None), lookup(path, None)
    if original is None or name not in vars(owner):
        yield
        return
    setattr(owner, name, make(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


def _run_bodies_directly() -> contextlib.AbstractContextManager[None]:
    """Runs the body of a loop without the bookkeeping of torch.fx.Interpreter.

    A body is run to find out its reads and writes, its ranges, its dtypes, and for each C++ kernel.
    """
    from torch.fx import traceback
    from torch.fx.node import map_arg

    shim = lookup("torch._inductor.loop_body.InterpreterShim", None)
    V = lookup(_VIRTUALIZED)  # Inductor's name

    def make(run: Any) -> Any:
        def run_directly(self: Any) -> Any:
            if shim is None or getattr(traceback, "should_preserve_node_meta", True):
                return run(self)
            handler, submodules = V.get_ops_handler(), self.body.submodules
            interpreter = shim(self.graph, submodules)
            values: dict[Any, Any] = {}
            get = values.__getitem__
            with V.set_interpreter_handler(interpreter):
                for node in self.graph.nodes:
                    interpreter.current_node = node
                    args = map_arg(node.args, get)
                    kwargs = map_arg(node.kwargs, get) if node.kwargs else {}
                    match node.op:
                        case "placeholder":
                            value = handler
                        case "call_method":
                            value = getattr(args[0], node.target)(*args[1:], **kwargs)
                        case "call_module":
                            value = submodules[node.target](*args, **kwargs)
                        case "get_attr":
                            value = submodules[node.target]
                        case "output":
                            return args[0]
                        case _:
                            value = node.target(*args, **kwargs)
                    values[node] = value

        return run_directly

    return _replaced("torch._inductor.loop_body.LoopBodyBlock.__call__", make)


def _skip_empty_tails() -> contextlib.AbstractContextManager[None]:
    """Writes no code for what remains of a loop after its vectors if nothing remains.

    Inductor writes it, and then leaves it out of the kernel, since its range is empty.
    """
    V = lookup(_VIRTUALIZED)  # Inductor's name
    names = ("tail_size", "inner_tail_size", "outer_tail_size")

    def make(generate: Any) -> Any:
        def generate_unless_empty(self: Any, index_vars: Any) -> None:
            kernel: Any = V.kernel
            if not any(getattr(kernel, name, None) == 0 for name in names):
                generate(self, index_vars)

        return generate_unless_empty

    return _replaced("torch._inductor.scheduler.SchedulerNode.codegen", make)


@contextlib.contextmanager
def _cache_dtype_rules() -> Iterator[None]:
    """Stops Inductor from refilling its table of operator dtypes, a singleton, at each operator."""
    lookup("torch._inductor.lowering")  # registers all operators
    table = lookup("torch._inductor.dtype_propagation.DtypePropagationOpsHandler", None)
    if not hasattr(table, "_instance"):
        yield
        return
    table()
    fill, thread = table.__init__, threading.get_ident()

    def fill_elsewhere(self: Any) -> None:
        if threading.get_ident() != thread:
            fill(self)

    table.__init__ = fill_elsewhere
    try:
        yield
    finally:
        table.__init__ = fill


@contextlib.contextmanager
def _skip_sum_simplification() -> Iterator[None]:
    """Computes an index's stride along a loop variable without simplifying the index.

    Inductor simplifies each index first, which takes milliseconds, and loads another library for
    the first. An index without divisions is a sum of products of numbers and loop variables.
    """
    thread = threading.get_ident()

    def is_short(index: "sympy.Expr") -> bool:
        return threading.get_ident() == thread and _is_sum(index)

    def make_in_range(simplified: Any) -> Any:
        @functools.wraps(simplified)
        def in_range(index: "sympy.Expr", var: "sympy.Symbol", *size: int) -> "sympy.Expr":
            return index if is_short(index) else simplified(index, var, *size)

        return in_range

    def make_stride(stride_at: Any) -> Any:
        @functools.wraps(stride_at)
        def stride(index: "sympy.Expr", var: "sympy.Symbol") -> "sympy.Expr":
            if not is_short(index):
                return stride_at(index, var)
            return (index.xreplace({var: var + 1}) - index).expand()

        return stride

    with (
        _replaced("torch._inductor.sizevars.simplify_index_in_vec_range", make_in_range),
        _replaced("torch._inductor.sizevars.stride_at", make_stride),
    ):
        yield


def _skip_ranges_of_sums() -> contextlib.AbstractContextManager[None]:
    """Leaves an index without divisions as it is where Inductor simplifies divisions by ranges."""

    def make(simplify: Any) -> Any:
        def simplify_divisions(self: Any, index: Any, ranges: Any) -> Any:
            expanded = self.simplify(index)
            return expanded if _is_sum(expanded) else simplify(self, expanded, ranges)

        return simplify_divisions

    return _replaced("torch._inductor.sizevars.SizeVarAllocator._simplify_with_ranges", make)


def _expand_once() -> contextlib.AbstractContextManager[None]:
    """Expands each index and each size once: Inductor expands them whenever it uses them."""
    import sympy

    expanded: dict[Any, Any] = {}

    def make(simplify: Any) -> Any:
        def simplify_once(self: Any, index: Any) -> Any:
            if not isinstance(index, sympy.Expr):
                return simplify(self, index)
            found = expanded.get(index)
            if found is None:
                expanded[index] = found = sympy.expand(index)
            return found.xreplace(self.replacements) if self.replacements else found

        return simplify_once

    return _replaced("torch._inductor.sizevars.SizeVarAllocator.simplify", make)


def _print_once() -> contextlib.AbstractContextManager[None]:
    """Prints each index to C++ once, unless symbolic sizes are replaced by others meanwhile."""
    V = lookup(_VIRTUALIZED)  # Inductor's name
    printed: dict[Any, str] = {}

    def make(doprint: Any) -> Any:
        def print_once(self: Any, index: Any, **options: Any) -> str:
            if options or getattr(getattr(V.graph, "sizevars", None), "replacements", True):
                return doprint(self, index, **options)  # type: ignore[no-any-return]
            key = type(index), index
            found = printed.get(key)
            if found is None:
                printed[key] = found = doprint(self, index)
            return found

        return print_once

    return _replaced("torch._inductor.codegen.cpp_utils.CppPrinter.doprint", make)


def _propagate_once() -> contextlib.AbstractContextManager[None]:
    """Does not compute the fake tensors of a graph again that was just traced with them."""
    thread = threading.get_ident()

    def make(propagate: Any) -> Any:
        def propagate_if_unknown(graph: Any, inputs: Any, *options: Any, **named: Any) -> Any:
            mode = guards.detect_fake_mode(inputs)
            is_known = (
                threading.get_ident() == thread
                and mode is not None
                and all("val" in node.meta for node in graph.graph.nodes if node.op != "output")
                and not any(node.op == "get_attr" for node in graph.graph.nodes)
            )
            return mode if is_known else propagate(graph, inputs, *options, **named)

        return propagate_if_unknown

    return _replaced("torch._inductor.compile_fx.fake_tensor_prop", make)


def _is_sum(index: "sympy.Expr") -> bool:
    """Whether the index is a sum of products of integers and distinct symbols."""
    import sympy

    def is_factor(part: "sympy.Expr") -> bool:
        return bool(part.is_Symbol or isinstance(part, sympy.Integer))

    def is_product(part: "sympy.Expr") -> bool:
        return all(map(is_factor, part.args)) if part.is_Mul else is_factor(part)

    return all(map(is_product, index.args)) if index.is_Add else is_product(index)


_SPEEDUPS = (
    _run_bodies_directly,
    _skip_empty_tails,
    _propagate_once,
    _cache_dtype_rules,
    _skip_sum_simplification,
    _skip_ranges_of_sums,
    _expand_once,
    _print_once,
)
