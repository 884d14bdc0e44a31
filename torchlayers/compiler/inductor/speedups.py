"""Patches that speed up slow parts of Inductor without changing its results.

Each is active while one graph is compiled: on the thread that compiles it, or, if the results are
equal for any caller, on all threads. If a torch version lacks the patched function, nothing is
done.
"""

import contextlib
import functools
import operator
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # importing sympy takes twice as long as importing this package
    import sympy  # type: ignore[import-untyped]

_IMMUTABLE = (bool, int, float, str, type(None))

# Held while functions of Inductor are patched.
replacing = threading.RLock()


@contextlib.contextmanager
def faster_inductor() -> Iterator[None]:
    with replacing, contextlib.ExitStack() as stack:
        for speedup in _SPEEDUPS:
            stack.enter_context(speedup())
        yield


@contextlib.contextmanager
def _replaced(module: Any, path: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Replaces a function of the module or, with ``"Class.name"``, of its class, if there is one.

    Args:
        make: takes the function, and returns its replacement.
    """
    *classes, name = path.split(".")
    owner = getattr(module, classes[0], None) if classes else module
    original = getattr(owner, "__dict__", {}).get(name)
    if original is None:
        yield
        return
    setattr(owner, name, make(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


def _read_settings_directly() -> contextlib.AbstractContextManager[None]:
    """Reads settings of torch's config modules without the checks that few of them need.

    Inductor reads a setting some ten times for each operator.
    """
    from torch.utils import _config_module

    unset = getattr(_config_module, "_UNSET_SENTINEL", None)
    fields = getattr(getattr(_config_module, "_ConfigEntry", None), "__annotations__", {})

    def make(read: Any) -> Any:
        if not {"hide", "env_value_force", "env_value_default", "justknob"} <= {*fields}:
            return read

        def read_directly(self: Any, name: str) -> Any:
            entry = self._config.get(name)
            if (
                entry is not None
                and entry.env_value_force is unset
                and not (entry.hide or entry.alias or getattr(entry, "deprecated", False))
            ):
                value = entry.user_override.get()
                if value is not unset:
                    return value
                is_plain = entry.env_value_default is unset and entry.justknob is None
                if is_plain and type(entry.default) in _IMMUTABLE:
                    return entry.default
            return read(self, name)

        return read_directly

    return _replaced(_config_module, "ConfigModule.__getattr__", make)


def _run_bodies_directly() -> contextlib.AbstractContextManager[None]:
    """Runs the body of a loop without the bookkeeping of torch.fx.Interpreter.

    A body is run to find out its reads and writes, its ranges, its dtypes, and for each C++ kernel.
    """
    from torch._inductor import loop_body
    from torch._inductor.virtualized import V
    from torch.fx import traceback
    from torch.fx.node import map_arg

    shim: Any = getattr(loop_body, "InterpreterShim", None)

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

    return _replaced(loop_body, "LoopBodyBlock.__call__", make)


def _skip_empty_tails() -> contextlib.AbstractContextManager[None]:
    """Writes no code for what remains of a loop after its vectors if nothing remains.

    Inductor writes it, and then leaves it out of the kernel, since its range is empty.
    """
    from torch._inductor import scheduler
    from torch._inductor.virtualized import V

    names = ("tail_size", "inner_tail_size", "outer_tail_size")

    def make(generate: Any) -> Any:
        def generate_unless_empty(self: Any, index_vars: Any) -> None:
            kernel: Any = V.kernel
            if not any(getattr(kernel, name, None) == 0 for name in names):
                generate(self, index_vars)

        return generate_unless_empty

    return _replaced(scheduler, "SchedulerNode.codegen", make)


@contextlib.contextmanager
def _cache_dtype_rules() -> Iterator[None]:
    """Stops Inductor from refilling its table of operator dtypes, a singleton, at each operator."""
    from torch._inductor import dtype_propagation
    from torch._inductor import lowering as lowering  # registers all operators

    table: Any = getattr(dtype_propagation, "DtypePropagationOpsHandler", None)
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
    import sympy
    from torch._inductor import sizevars

    thread = threading.get_ident()

    def is_short(index: "sympy.Expr", *functions: type) -> bool:
        return threading.get_ident() == thread and _is_sum(index, functions)

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

    def make_simplify(simplify: Any) -> Any:
        @functools.wraps(simplify)
        def expanded(index: Any, *options: Any, **named: Any) -> Any:
            if options or named or not is_short(index, *_divisions()):
                return simplify(index, *options, **named)
            return index.expand()

        return expanded

    with (
        _replaced(sizevars, "simplify_index_in_vec_range", make_in_range),
        _replaced(sizevars, "stride_at", make_stride),
        _replaced(sympy, "simplify", make_simplify),
    ):
        yield


def _skip_ranges_of_sums() -> contextlib.AbstractContextManager[None]:
    """Leaves an index without divisions as it is where Inductor simplifies divisions by ranges."""
    from torch._inductor import sizevars

    def make(simplify: Any) -> Any:
        def simplify_divisions(self: Any, index: Any, ranges: Any) -> Any:
            expanded = self.simplify(index)
            return expanded if _is_sum(expanded) else simplify(self, expanded, ranges)

        return simplify_divisions

    return _replaced(sizevars, "SizeVarAllocator._simplify_with_ranges", make)


def _expand_once() -> contextlib.AbstractContextManager[None]:
    """Expands each index and each size once: Inductor expands them whenever it uses them."""
    import sympy
    from torch._inductor import sizevars

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

    return _replaced(sizevars, "SizeVarAllocator.simplify", make)


def _print_once() -> contextlib.AbstractContextManager[None]:
    """Prints each index to C++ once, unless symbolic sizes are replaced by others meanwhile."""
    from torch._inductor.codegen import cpp_utils
    from torch._inductor.virtualized import V

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

    return _replaced(cpp_utils, "CppPrinter.doprint", make)


def _name_sizes_once() -> contextlib.AbstractContextManager[None]:
    """Prints each size once to look for a buffer of the same size."""
    from torch._inductor.codegen import wrapper

    return _replaced(wrapper, "sympy_str", functools.cache)


@contextlib.contextmanager
def _compare_integers_directly() -> Iterator[None]:
    """Compares integers without sympy's assumptions, where Inductor compares sizes and strides."""
    import sympy

    relational = sympy.core.relational

    def number(size: Any) -> int | None:
        if type(size) is int:
            return size
        return size.p if isinstance(size, sympy.Integer) else None

    def make(plain: Any) -> Any:
        create = plain.__func__ if isinstance(plain, staticmethod) else plain

        def compare(cls: Any, lhs: Any, rhs: Any, **options: Any) -> Any:
            one, other = number(lhs), number(rhs)
            operation = _COMPARISONS.get(cls.__name__)
            if one is None or other is None or operation is None or options:
                return create(cls, lhs, rhs, **options)
            return sympy.true if operation(one, other) else sympy.false

        return staticmethod(compare)

    with contextlib.ExitStack() as stack:
        for name in ("Equality", "Unequality", "_Inequality"):
            stack.enter_context(_replaced(relational, f"{name}.__new__", make))
        yield


_COMPARISONS = {
    "Equality": operator.eq,
    "Unequality": operator.ne,
    "GreaterThan": operator.ge,
    "LessThan": operator.le,
    "StrictGreaterThan": operator.gt,
    "StrictLessThan": operator.lt,
}


def _keep_known_ranges() -> contextlib.AbstractContextManager[None]:
    """Keeps the range of a value as it is where nothing more is known of it."""
    from torch.utils._sympy import value_ranges

    def make(tighten: Any) -> Any:
        def tighten_if_known(self: Any, other: Any) -> Any:
            return self if other is value_ranges.ValueRanges.unknown() else tighten(self, other)

        return tighten_if_known

    return _replaced(value_ranges, "ValueRanges.tighten", make)


def _propagate_once() -> contextlib.AbstractContextManager[None]:
    """Does not compute the fake tensors of a graph again that was just traced with them."""
    from torch._guards import detect_fake_mode
    from torch._inductor import compile_fx

    thread = threading.get_ident()

    def make(propagate: Any) -> Any:
        def propagate_if_unknown(graph: Any, inputs: Any, *options: Any, **named: Any) -> Any:
            mode = detect_fake_mode(inputs)
            is_known = (
                threading.get_ident() == thread
                and mode is not None
                and all("val" in node.meta for node in graph.graph.nodes if node.op != "output")
                and not any(node.op == "get_attr" for node in graph.graph.nodes)
            )
            return mode if is_known else propagate(graph, inputs, *options, **named)

        return propagate_if_unknown

    return _replaced(compile_fx, "fake_tensor_prop", make)


def _compare_lists_by_value() -> contextlib.AbstractContextManager[None]:
    """Recognizes that a node's arguments are the same if a list among them is.

    Inductor computes the fake tensors of nodes again whose arguments have changed, and compares
    lists, such as the sizes of a view, by their addresses.
    """
    from torch._inductor import fx_utils

    kind: Any = getattr(fx_utils, "_FxNodeHash", None)

    def hashed(value: Any) -> int:
        try:
            return hash(value)
        except TypeError:
            if isinstance(value, list | tuple):
                return hash(tuple(map(hashed, value)))
            return id(value)

    def make(plain: Any) -> Any:
        def hash_node(self: Any, node: Any) -> Any:
            if kind is None:
                return plain(self, node)
            named = [hashed(part) for pair in node.kwargs.items() for part in pair]
            return kind(node, node.target, tuple(map(hashed, node.args)), tuple(named))

        return hash_node

    return _replaced(fx_utils, "FakeTensorUpdater.hash_node", make)


def _skip_hopeless_joins() -> contextlib.AbstractContextManager[None]:
    """Looks for divisions to join only in an index that has two terms with divisions."""
    from torch._inductor import sizevars

    def make(join: Any) -> Any:
        def join_if_several(index: Any) -> Any:
            divided = [part for part in index.args if part.has(*_divisions())]
            return join(index) if len(divided) > 1 else index

        return join_if_several

    return _replaced(sizevars, "_join_dimensions_cached", make)


def _divisions() -> tuple[type, ...]:
    from torch.utils._sympy.functions import FloorDiv, ModularIndexing

    return FloorDiv, ModularIndexing


def _is_sum(index: "sympy.Expr", functions: tuple[type, ...] = ()) -> bool:
    """Whether the index is a sum of products of integers, symbols and these functions."""
    import sympy

    def is_factor(part: "sympy.Expr") -> bool:
        return bool(part.is_Symbol or isinstance(part, (sympy.Integer, *functions)))

    def is_product(part: "sympy.Expr") -> bool:
        return all(map(is_factor, part.args)) if part.is_Mul else is_factor(part)

    return all(map(is_product, index.args)) if index.is_Add else is_product(index)


_SPEEDUPS = (
    _read_settings_directly,
    _run_bodies_directly,
    _skip_empty_tails,
    _propagate_once,
    _compare_lists_by_value,
    _cache_dtype_rules,
    _skip_sum_simplification,
    _skip_ranges_of_sums,
    _skip_hopeless_joins,
    _expand_once,
    _print_once,
    _name_sizes_once,
    _compare_integers_directly,
    _keep_known_ranges,
)
