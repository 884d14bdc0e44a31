"""A function's linear map at a point: linearize.

jvp of the function is traced as a graph whose inputs are the tangents. Nodes that do not
depend on the tangents are folded to constants; the graph that remains is the linear map, and is
replayed in C++.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
from torch.fx.node import map_arg
from torch.nn import Parameter
from typing_extensions import Unpack

from torchlayers import _C
from torchlayers.core import operator_schema, pytree, tracing_state
from torchlayers.core.annotations import Ins, R
from torchlayers.core.errors import NotTensorError, StructureError
from torchlayers.core.function_checks import require_function
from torchlayers.core.layer_stack import current_stack
from torchlayers.core.operators import aten
from torchlayers.core.torch_private import OpOverload, TorchDispatchMode, dispatch_modes
from torchlayers.fx.nodes import is_collective
from torchlayers.fx.operator_tracer import trace_operators
from torchlayers.fx.program import replay
from torchlayers.fx.recomputation import is_capturing
from torchlayers.remat.ambient_state import AmbientState
from torchlayers.transforms import jvp_by_double_vjp
from torchlayers.transforms.jvp import JvpSpec

# The tracer's error where a value that depends on the tangents is read.
_READS_VALUE = "get value out of a tracing tensor"
# Its error for a compressed sparse tensor (CSR and its relatives), whose strides it reads.
_NO_STRIDES = "tensors do not have strides"


def linearize(
    func: Callable[[Unpack[Ins]], R], *primals: Unpack[Ins]
) -> tuple[R, Callable[[Unpack[Ins]], R]]:
    """func's value at the primals, and its derivative there as a function of tangents.

    Calling the derivative many times costs less than as many jvps: what depends on the primals
    alone is computed once, and saved. func runs twice: once for its value, and once to capture
    its jvp as a graph. Inside another transform, or if func reads values or computes with a tensor
    subclass that has a ``__torch_dispatch__``, no graph is captured, and each call is a jvp. Each
    call uses the random numbers that func drew for its value, and the generators are left as after
    a single run of func.

    Args:
        func: takes the primals; returns a tensor or a pytree of tensors.
        primals: tensors or pytrees of tensors.
    Returns:
        ``(output, jvp_fn)``. ``jvp_fn(*tangents)`` takes tangents with the primals' structure,
        shapes, dtypes and devices, and returns the output's tangents, in its structure.
    Raises:
        StructureError: the tangents do not match the primals.
        The errors of :func:`torchlayers.jvp`.
    Example:
        >>> output, jvp_fn = linearize(torch.sin, torch.zeros(2))
        >>> jvp_fn(torch.tensor([1.0, 2.0]))
        tensor([1., 2.])

    Source: torch.func.linearize.
    """
    require_function(func)
    # Residuals of the linear map must not change if the primals are written to, by func or later.
    point, ambient = primals, None
    if not _is_left_to_a_compiler():
        point, ambient = pytree.map_tensors(torch.clone, primals), AmbientState()
    output = func(*primals)
    if ambient is not None:
        ambient.forget_unused()
    _, output_spec = pytree.flatten(output)
    leaves, spec = pytree.flatten(primals)
    for i, leaf in enumerate(leaves):
        if not isinstance(leaf, Tensor):
            raise NotTensorError(
                f"torchlayers: linearize: primal {i} must be a tensor, got {type(leaf).__name__}. "
                "Bind other arguments beforehand, with functools.partial or a lambda."
            )
    tangents_of = _linear_map(func, point, leaves, spec, ambient)
    if tracing_state.is_tracing():
        return output, lambda *tangents: pytree.unflatten(
            tangents_of(*pytree.leaves(tangents)), output_spec
        )
    expected = [(leaf.shape, leaf.dtype, leaf.device) for leaf in leaves]

    def jvp_fn(*tangents: Unpack[Ins]) -> R:
        flat, tangent_spec = pytree.flatten(tangents)
        if tangent_spec != spec:
            raise StructureError(
                "torchlayers: linearize: tangents must have the structure of the primals: got "
                f"{pytree.describe(tangent_spec)} for {pytree.describe(spec)} (* is a leaf)."
            )
        for i, (leaf, (shape, dtype, device)) in enumerate(zip(flat, expected, strict=True)):
            if not isinstance(leaf, Tensor):
                raise NotTensorError(
                    f"torchlayers: linearize: tangent {i} must be a tensor, got "
                    f"{type(leaf).__name__}."
                )
            if (leaf.shape, leaf.dtype, leaf.device) != (shape, dtype, device):
                raise StructureError(
                    f"torchlayers: linearize: tangent {i} must have its primal's shape "
                    f"{tuple(shape)}, dtype {dtype} and device {device}; got "
                    f"{tuple(leaf.shape)}, {leaf.dtype}, {leaf.device}."
                )
        return pytree.unflatten(tangents_of(*flat), output_spec)  # type: ignore[no-any-return]

    return output, jvp_fn


def _linear_map(
    func: Callable[..., Any],
    primals: tuple[Any, ...],
    leaves: list[Tensor],
    spec: pytree.TreeSpec,
    ambient: AmbientState | None,
) -> Callable[..., list[Any]]:
    """Returns the function from the leaves of the tangents to the leaves of the output tangents."""

    def jvp_at(point: tuple[Any, ...]) -> Callable[..., list[Any]]:
        def by_jvp(*flat: Tensor) -> list[Any]:
            tangents = pytree.unflatten(flat, spec)
            if tracing_state.is_tracing():
                pushed = jvp_by_double_vjp.jvp(func, point, tangents, strict=False, has_aux=False)
                return pytree.leaves(pushed[1])
            here = pytree.map_tensors(torch.clone, point)  # func may write to it
            with nullcontext() if ambient is None else ambient.restored():
                return pytree.leaves(JvpSpec("linearize", func, None).push(here, tangents)[1])

        return by_jvp

    # A captured graph holds plain tensors, so it would lose what the enclosing layers track; and a
    # compiler captures its own graph.
    if _is_left_to_a_compiler() or is_capturing() or current_stack():
        return jvp_at(primals)
    try:
        recorded = _record(jvp_at(primals), leaves)
    except _SubclassFound:
        return jvp_at(primals)
    except RuntimeError as error:  # a loop whose number of trips depends on the tangents
        if _READS_VALUE not in str(error):
            raise
        return jvp_at(primals)
    if _can_fold(recorded):
        _fold(recorded)
    program = replay(recorded)

    def by_program(*flat: Tensor) -> list[Any]:
        if tracing_state.is_tracing():
            return recorded(*flat)  # type: ignore[no-any-return]
        return program(flat)

    return by_program


def _is_left_to_a_compiler() -> bool:
    return tracing_state.is_tracing() or tracing_state.is_exporting()


def _record(linear: Callable[..., list[Any]], leaves: list[Tensor]) -> GraphModule:
    """Captures the function of tangents as a graph.

    Raises:
        _SubclassFound: it computes with tensors of a user-defined subclass, or compressed sparse
            tensors.
    """
    if not all(
        type(leaf) in (Tensor, Parameter) and leaf.layout is torch.strided for leaf in leaves
    ):
        raise _SubclassFound

    # A mode of the user's has recorded what was drawn for the value, and sees these draws too.
    no_mode_around = not dispatch_modes._get_current_dispatch_mode_stack()

    def watched(*flat: Tensor) -> list[Any]:
        watch = _RefuseUncapturable()  # type: ignore[no-untyped-call]
        before = _C.set_draws_are_constants(no_mode_around)
        try:
            with watch:
                return linear(*flat)
        except RuntimeError:  # TorchScript's interpreter turns any Python exception into this
            if watch.has_seen_subclass:
                raise _SubclassFound from None
            raise
        finally:
            _C.set_draws_are_constants(before)

    tracing_state.import_uninterrupted("torch._dynamo")
    with tracing_state.run_eagerly():
        return trace_operators(watched, *map(torch.empty_like, leaves))


class _SubclassFound(BaseException):
    """Raised during capture when a tensor subclass appears.

    Operators that run inside the subclass are not seen, so its results would be captured as
    constants. It is not an Exception, so that the captured function does not catch it.
    """


class _RefuseUncapturable(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises _SubclassFound at the first operator called with a tensor that can't be captured.

    Random draws do not depend on the tangents, and become constants of the graph.
    """

    has_seen_subclass = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if types:
            self.has_seen_subclass = True
            raise _SubclassFound
        if operator_schema.is_random(func):
            return _draw_constant(func, args, kwargs or {})
        try:
            return func(*args, **(kwargs or {}))
        except RuntimeError as error:
            if _NO_STRIDES in str(error):
                self.has_seen_subclass = True
                raise _SubclassFound from None
            raise


def _draw_constant(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs a random operator untraced, so that its result is a constant in the captured graph."""
    targets = operator_schema.arguments_written(op, args, kwargs)
    with disable_proxy_modes_tracing():
        copies = [target.clone() for target in targets]
        args, kwargs = _replace_tensors((args, kwargs), targets, copies)
        result = op(*args, **kwargs)
    for target, copy in zip(targets, copies, strict=True):
        target.copy_(copy)
    written = {*map(id, targets)}
    return pytree.map_tensors(
        lambda tensor: tensor if id(tensor) in written else tensor.clone(),  # func may write to it
        _replace_tensors(result, copies, targets),
    )


def _replace_tensors(values: Any, tensors: list[Tensor], others: list[Tensor]) -> Any:
    by_tensor = dict(zip(map(id, tensors), others, strict=True))
    return pytree.map_tensors(lambda tensor: by_tensor.get(id(tensor), tensor), values)


def _can_fold(recorded: GraphModule) -> bool:
    """Whether constants may be folded.

    Not if the graph has in-place operators, whose targets would be taken for constants, or reads a
    tensor that requires grad, whose autograd history folding would cut.
    """
    for node in recorded.graph.nodes:
        if operator_schema.writes(node.target):
            return False
        if node.op == "get_attr" and getattr(recorded, str(node.target)).requires_grad:
            return False
    return True


def _fold(recorded: GraphModule) -> None:
    """Folds nodes that do not depend on the inputs to constants, except for collectives."""
    known: dict[Node, Any] = {}
    graph = recorded.graph
    with torch.no_grad():
        for node in graph.nodes:
            if node.op == "get_attr":
                known[node] = getattr(recorded, str(node.target))
            elif (
                node.op == "call_function"
                and not is_collective(node)
                and all(map(known.__contains__, node.all_input_nodes))
            ):
                args, kwargs = map_arg((node.args, node.kwargs), known.__getitem__)
                known[node] = node.target(*args, **kwargs)
    for node in [node for node in known if node.op == "call_function"]:
        if isinstance(known[node], Tensor) and any(user not in known for user in node.users):
            name = f"_folded_{node.name}"
            recorded.register_buffer(name, known[node])
            with graph.inserting_before(node):
                constant = graph.get_attr(name)
            node.replace_all_uses_with(constant)
            known[constant] = known[node]
    # The caller may write to an output, so constants are cloned.
    output = graph.output_node()
    with graph.inserting_before(output):
        output.args = map_arg(
            output.args,
            lambda node: (
                graph.call_function(aten.clone.default, (node,)) if node in known else node
            ),
        )
    graph.eliminate_dead_code()
    recorded.recompile()
