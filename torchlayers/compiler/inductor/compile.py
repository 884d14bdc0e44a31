"""Compiles a graph with Inductor, PyTorch's compiler."""

import difflib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from torchlayers.compiler.capture.recording import discard_graph_source
from torchlayers.compiler.inductor import cache_directory, patches, scan_op
from torchlayers.compiler.inductor.patches import patched_inductor
from torchlayers.compiler.inductor.program_description import ProgramDescription
from torchlayers.compiler.inductor.wrapper_program import build, describe
from torchlayers.compiler.inductor.wrapper_reader import Layout
from torchlayers.compiler.passes import simplify
from torchlayers.compiler.passes.graph_queries import inputs_of, outputs_of
from torchlayers.compiler.passes.unfold_convolutions import keeps_channels_outermost
from torchlayers.core.errors import TransformError, warn
from torchlayers.core.garbage_collection import gc_of_young_objects
from torchlayers.core.operators import aten
from torchlayers.core.private_names import lookup, private
from torchlayers.core.torch_private import FakeTensor, FakeTensorMode, guards
from torchlayers.core.torch_versions import is_no_compiler
from torchlayers.core.tracing_state import import_uninterrupted, patched
from torchlayers.fx.callbacks import IO_IN_ORDER
from torchlayers.fx.custom_ops import bernoulli
from torchlayers.fx.debug_ops import IN_ORDER
from torchlayers.fx.nodes import calls
from torchlayers.fx.operator_tracer import trace_operators
from torchlayers.fx.subgraph_tracer import compile_lock

compile_fx = private("torch._inductor.compile_fx")

Run = Callable[[list[Tensor]], Sequence[Tensor]]


class NoCompilerError(Exception):
    """This machine has no C++ compiler."""


def check_options(options: Mapping[str, Any]) -> None:
    """Raises TransformError if Inductor lacks one of the options."""
    if not options:
        return
    import_uninterrupted("torch._inductor.config")
    known = lookup("torch._inductor.config").get_config_copy()
    for name in options:
        if name not in known:
            close = difflib.get_close_matches(str(name), known, 1)
            raise TransformError(
                f"torchlayers: compile: torch._inductor.config has no option {name!r}."
                + (f" Did you mean {close[0]!r}?" if close else "")
            )


def compile_graph(graph: GraphModule, threads: int, options: dict[str, Any] | None = None) -> Run:
    """Returns the graph's compiled code, which takes a list of tensors and clears it.

    The arguments and errors are those of lower_graph.
    """
    return lower_graph(graph, threads, options).program()


@gc_of_young_objects()
def lower_graph(
    graph: GraphModule, threads: int, options: dict[str, Any] | None = None
) -> "InductorGraph":
    """Compiles the graph with Inductor.

    Args:
        graph: ATen operators that write to nothing, except that the graph may end with copy_ to its
            inputs; the nodes have fake tensors in ``meta["val"]``.
        threads: how many threads the code uses.
        options: options for Inductor, by their names in torch._inductor.config.
    Raises:
        NoCompilerError: this machine has no C++ compiler.
        NoCacheError: no file can be written to Inductor's cache directory.
        Exception: any error that Inductor raises.
    """
    cache_directory.check_writable()
    import_uninterrupted("torch._inductor.compile_fx", "torch._inductor.lowering")
    config = lookup("torch._inductor.config")
    graph = simplify(graph, fuse_small=True)
    bodies = scan_op.extract_scans(graph)
    graphs = (*(body.graph for body in bodies), graph)
    settings = {
        # Draw the same random numbers as torch, from torch's generators.
        "fallback_random": True,
        "cpp.threads": threads,
        **({"layout_optimization": False} if any(map(keeps_channels_outermost, graphs)) else {}),
        **(options or {}),
    }
    try:
        with (
            compile_lock(),
            patched(config, settings),
            discard_graph_source(),
            torch.no_grad(),
            patched_inductor(),
        ):
            codes = [_lower_to_code(one_graph) for one_graph in graphs]
    except Exception as error:
        if is_no_compiler(error):
            raise NoCompilerError from error
        raise
    apart: dict[int, Any] = {
        i: node.target
        for i, node in enumerate(outputs_of(graph))
        if calls(node, aten.alias.default, aten.detach.default)
    }
    return InductorGraph(graph, bodies, codes, apart)


def locks() -> tuple[Any, ...]:
    """The locks that lower_graph takes."""
    return compile_lock(), patches.patching


class InductorGraph:
    """Inductor's code for a graph and for the bodies of its scans.

    It is called like that code.
    """

    def __init__(
        self,
        graph: GraphModule,
        bodies: Sequence[scan_op.ScanBody],
        codes: Sequence[Any],
        apart: Mapping[int, Any],
    ) -> None:
        self._graph, self._bodies, self._codes, self._apart = graph, bodies, codes, apart
        for body, code in zip(bodies, codes, strict=False):
            body.run = scan_op.WithScanBodies(code, bodies)
        self._run = _without_aliases(scan_op.WithScanBodies(codes[-1], bodies), apart)

    def __call__(self, tensors: list[Tensor]) -> Sequence[Tensor]:
        return self._run(tensors)

    def program(self) -> Run:
        """Returns a program that runs the code; the code itself if there is none."""
        programs = self._describe_bodies()
        for body in self._bodies:
            body.run = build(programs[body.name]) or body.run
        return build(self._describe(programs)) or self

    def describe(self) -> ProgramDescription | None:
        """Describes the program that runs the code, or returns None if there is none."""
        return self._describe(self._describe_bodies())

    def _describe_bodies(self) -> dict[str, ProgramDescription | None]:
        programs: dict[str, ProgramDescription | None] = {}
        for body, code in zip(self._bodies, self._codes, strict=False):
            programs[body.name] = describe(code, programs, {}, _layouts(body.graph))
        return programs

    def _describe(self, bodies: dict[str, ProgramDescription | None]) -> ProgramDescription | None:
        return describe(self._codes[-1], bodies, self._apart, _layouts(self._graph))


def _layouts(graph: GraphModule) -> list[Layout]:
    def as_number(number: int | torch.SymInt) -> int | None:
        return number if isinstance(number, int) else None

    return [
        Layout(tuple(map(as_number, x.shape)), tuple(map(as_number, x.stride())))
        for x in (node.meta["val"] for node in inputs_of(graph))
    ]


def _lower_to_code(graph: GraphModule) -> Any:
    """Returns Inductor's code for the graph; its kernels are not compiled yet."""
    inputs = [node.meta["val"] for node in inputs_of(graph)]
    fake = next((val.fake_mode for val in inputs if isinstance(val, FakeTensor)), None)
    if fake is None:
        fake = FakeTensorMode()
    with guards.tracing(guards.TracingContext(fake)):
        lowered = _decomposed(graph, inputs, fake)
        output = lowered.graph.output_node()
        output.meta["user_visible_output_idxs"] = [*range(len(outputs_of(lowered)))]
        # As aot_autograd notes it: Inductor gives the results these strides.
        values = [node and node.meta.get("val") for node in outputs_of(lowered)]
        output.meta["original_output_strides"] = [
            value.stride() if isinstance(value, Tensor) else None for value in values
        ]
        config = lookup("torch._inductor.config")
        return compile_fx.compile_fx_inner(lowered, inputs, cpp_wrapper=config.cpp_wrapper)


def _without_aliases(run: Run, operators: Mapping[int, Any]) -> Run:
    """Wraps run to make these results separate tensors: Inductor may return one for several."""
    if not operators:
        return run

    def call(tensors: list[Tensor]) -> Sequence[Tensor]:
        results = [*run(tensors)]
        for place, operator in operators.items():
            results[place] = operator(results[place])
        return results

    return call


def _decomposed(graph: GraphModule, inputs: list[Any], fake: Any) -> GraphModule:
    """Decomposes the graph to operators that Inductor supports."""
    decompositions = {
        **lookup("torch._inductor.decomposition.select_decomp_table")(),
        aten.bernoulli.p: _bernoulli,
    }
    run = _EffectsInOrder(graph).run  # an Interpreter: generated code can't contain symbolic sizes
    with fake:
        return trace_operators(run, *inputs, decompositions=decompositions, has_subgraphs=True)


_IN_ORDER = IN_ORDER | IO_IN_ORDER


class _EffectsInOrder(torch.fx.Interpreter):
    """Runs operators with effects with a tensor that keeps them in order."""

    def __init__(self, graph: GraphModule) -> None:
        super().__init__(graph)
        self._order: Tensor | None = None

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target not in _IN_ORDER:
            return super().call_function(target, args, kwargs)
        if self._order is None:
            self._order = torch.zeros(1)
        return _IN_ORDER[target](self._order, *args, **kwargs)


def _bernoulli(like: Tensor, p: float, generator: None = None) -> Tensor:
    return bernoulli(like, p)  # type: ignore[no-any-return]


@functools.cache
def warn_no_compiler() -> None:
    warn(
        "torchlayers: compile: this machine has no C++ compiler, which inductor needs. Compiled "
        "functions replay their graphs instead (backend='replay').",
    )
