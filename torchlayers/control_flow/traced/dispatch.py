"""Control flow during capture, when predicates have no values yet.

Functions are closure-converted to functions of tensors (closure_conversion.py), which one operator
calls under every layer (cond_op.py, while_loop_op.py). When torch.export captures a function with
layers, both branches are captured, and torch.where selects between their results.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from torchlayers import _C
from torchlayers.control_flow.batched.samples import base_tensor, without_function_modes
from torchlayers.control_flow.checks import Carry, check_alike, check_predicate
from torchlayers.control_flow.traced.closure_conversion import (
    ClosureConverted,
    ClosureMode,
    Traced,
    is_inside_torch_func,
    may_be_differentiated,
)
from torchlayers.control_flow.traced.cond_op import choose
from torchlayers.control_flow.traced.in_python_layer import LayoutError
from torchlayers.control_flow.traced.layer_state import is_every_operator_processed
from torchlayers.control_flow.traced.loop import TracedLoop
from torchlayers.control_flow.traced.while_loop_op import repeat
from torchlayers.core import pytree, tracing_state
from torchlayers.core.errors import DataDependentError, TransformError, location
from torchlayers.core.torch_private import FakeTensor
from torchlayers.fx.operator_tracer import records_operators
from torchlayers.fx.unrolled_loops import are_predicates_read
from torchlayers.random.seeded import BranchDraws


def is_recorded(x: Tensor) -> bool:
    """Whether x has no values because it is a fake tensor of a capture, which does not read it."""
    if are_predicates_read():
        return False
    with without_function_modes():
        return isinstance(base_tensor(x), FakeTensor)


def any_recorded(*values: Any) -> bool:
    return any(isinstance(x, Tensor) and is_recorded(x) for x in values)


def are_graphs(*functions: Any) -> bool:
    """Whether all functions are graphs, which have no captured tensors."""
    return all(isinstance(func, GraphModule) for func in functions)


def cond_of_graphs(
    pred: Tensor, true: Callable[..., Any], false: Callable[..., Any], operands: Sequence[Any]
) -> tuple[Tensor, ...]:
    return tuple(choose(pred, (_of_list(true), _of_list(false)), operands))


def loop_of_graphs(
    cond: Callable[..., Any],
    body: Callable[..., Any],
    carry: Sequence[Any],
    captured: Sequence[Any],
) -> tuple[Tensor, ...]:
    loop = TracedLoop(lambda inputs: cond(*inputs), _of_list(body), len(carry))
    return tuple(repeat(loop, [*carry, *captured]))


def _of_list(graph: Callable[..., Any]) -> Traced:
    return Traced(lambda inputs: [*graph(*inputs)])


def _is_torchs() -> bool:
    """Whether torch.compile or torch.export traces, which handle captured tensors themselves."""
    return tracing_state.is_tracing() or (tracing_state.is_exporting() and not _C.any_layer())


def cond(
    pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Sequence[Any]
) -> Any:
    if _is_torchs():
        return torch.cond(pred, true_fn, false_fn, tuple(operands))
    with BranchDraws() as draws:
        true_fn, false_fn = _draw_from_branches(draws, (true_fn, false_fn))
        return _cond(pred, true_fn, false_fn, operands)


def _draw_from_branches(
    draws: BranchDraws, functions: Sequence[Callable[..., Any]]
) -> list[Callable[..., Any]]:
    """Wraps functions to start from the same draw: at run time only one of them would draw."""
    draws.start()

    def starting(func: Callable[..., Any]) -> Callable[..., Any]:
        def started(*operands: Any) -> Any:
            draws.start()
            return func(*operands)

        return started

    return [*map(starting, functions)]


def _cond(
    pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Sequence[Any]
) -> Any:
    runs_both = is_inside_torch_func() or is_every_operator_processed()
    if tracing_state.is_exporting() or runs_both:
        return _of_both(pred, _masked(true_fn, pred), _masked(false_fn, ~pred), operands)
    if not records_operators():
        return _of_both(pred, true_fn, false_fn, operands)
    leaves = pytree.TensorLeaves(tuple(operands))

    def of_tensors(branch: Callable[..., Any]) -> Callable[[Sequence[Tensor]], Any]:
        return lambda tensors: branch(*leaves.put_in(tensors))

    lifted = ClosureConverted([of_tensors(true_fn), of_tensors(false_fn)], leaves.tensors)
    # Derivatives run branches again but must not draw again, so capture both branches instead.
    draws = lifted.draws_by_key or (lifted.draws and may_be_differentiated(lifted.tensors))
    if draws or lifted.changes_layers:
        return _of_both(pred, _masked(true_fn, pred), _masked(false_fn, ~pred), operands)
    true, false = lifted.results
    check_alike("cond", true, "true_fn", false, "false_fn")
    results = _CommonLeaves(true, false)
    branches = [
        lambda tensors, func=func: results.leaves_of(func(tensors)) for func in lifted.functions
    ]
    try:
        return results.put_in(choose(pred, (branches[0], branches[1]), lifted.tensors))
    except LayoutError:  # no layout of a Python layer's tensors serves both branches
        return _of_both(pred, _masked(true_fn, pred), _masked(false_fn, ~pred), operands)


def switch(index: Tensor, branches: Sequence[Callable[..., Any]], operands: Sequence[Any]) -> Any:
    if _is_torchs():
        return _switch(cond, index, branches, operands)
    with BranchDraws() as draws:
        return _switch(_cond, index, _draw_from_branches(draws, branches), operands)


def _switch(
    choose: Callable[..., Any],
    index: Tensor,
    branches: Sequence[Callable[..., Any]],
    operands: Sequence[Any],
) -> Any:
    if len(branches) == 1:
        return branches[0](*operands)
    middle = len(branches) // 2
    low, high = branches[:middle], branches[middle:]
    return choose(
        index < middle,
        lambda *operands_of_branch: _switch(choose, index, low, operands_of_branch),
        lambda *operands_of_branch: _switch(choose, index - middle, high, operands_of_branch),
        operands,
    )


def while_loop(cond_fn: Callable[[Any], Any], body_fn: Callable[[Any], Any], init: Any) -> Any:
    """Captures a while_loop.

    Raises:
        DataDependentError: torch.export captures under a layer, or a grad or functionalize of
            torch.func is active.
    """
    if _is_torchs():
        # A carry that the functions capture too would be an alias, which torch refuses.
        init = pytree.map_tensors(torch.clone, init)
        return torch.while_loop(cond_fn, lambda carry: (body_fn(carry),), (init,))[0]  # type: ignore[no-untyped-call]
    if tracing_state.is_exporting():
        raise DataDependentError(
            "torchlayers: while_loop: its trip count depends on the value of a tensor, which "
            f"torch.export does not have while it traces under a layer.{location()} Use scan, or "
            "fori_loop with bounds that are ints; or export the function inside the transform."
        )
    if is_inside_torch_func():
        raise DataDependentError(
            "torchlayers: while_loop: its trip count depends on the value of a tensor, and "
            "torch.func's own grad and functionalize don't support such loops during capture."
            f"{location()} Use torchlayers' transforms of the same names, or install them "
            "(torchlayers.install)."
        )
    checked = Carry("while_loop", init, "body_fn")
    common = _CommonLeaves(init, init)
    carried = len(common.tensors)

    def goes_on(tensors: Sequence[Tensor]) -> Tensor:
        pred = cond_fn(common.put_in(tensors))
        check_predicate("while_loop", "the result of cond_fn", pred)
        return _as_tensor(pred, torch.bool, tensors[0].device).reshape(())

    def body(tensors: Sequence[Tensor]) -> list[Tensor]:
        new = body_fn(common.put_in(tensors))
        checked.leaves(new)
        return common.leaves_of(new)

    if not records_operators():
        return common.put_in(repeat(TracedLoop(goes_on, body, carried), common.tensors))
    lifted = ClosureConverted([goes_on, body], common.tensors)
    if lifted.draws_by_key:
        raise TransformError(
            "torchlayers: compile: a while_loop draws random numbers under seeded or a keyed vmap, "
            "which would have to count the trips; their number is unknown during capture."
            f"{location()} Draw with keys (torchlayers.random) that the loop carries."
        )
    if lifted.draws and may_be_differentiated(lifted.tensors):
        raise TransformError(
            "torchlayers: compile: a while_loop that draws random numbers is differentiated, which "
            f"runs its trips again, and they would draw other numbers.{location()} Draw with keys "
            "(torchlayers.random) that the loop carries."
        )
    loop = TracedLoop(lifted.functions[0], lifted.functions[1], carried)
    return common.put_in(repeat(loop, lifted.tensors))


class _CommonLeaves(pytree.TensorLeaves):
    """The tensors of two pytrees with one structure; numbers become tensors, as they may differ."""

    def __init__(self, one: Any, other: Any) -> None:
        leaves, spec = pytree.flatten(one)
        pairs = [*zip(leaves, pytree.leaves(other), strict=True)]
        device = next((x.device for pair in pairs for x in pair if isinstance(x, Tensor)), None)
        self._kinds: dict[int, tuple[torch.dtype, torch.device | None]] = {}
        for i, pair in enumerate(pairs):
            tensors = [x for x in pair if isinstance(x, Tensor)]
            if tensors:
                self._kinds[i] = tensors[0].dtype, device
            elif isinstance(pair[0], (bool, int, float, complex)):
                self._kinds[i] = torch.result_type(*map(torch.tensor, pair)), device
        for i, x in zip(self._kinds, self.leaves_of(one), strict=True):
            leaves[i] = x
        super().__init__(pytree.unflatten(leaves, spec))

    def leaves_of(self, values: Any) -> list[Tensor]:
        leaves = pytree.leaves(values)
        return [_as_tensor(leaves[i], *kind) for i, kind in self._kinds.items()]


def _as_tensor(x: Any, dtype: torch.dtype, device: torch.device | None) -> Tensor:
    return x if isinstance(x, Tensor) else torch.full((), x, dtype=dtype, device=device)


def _of_both(
    pred: Tensor,
    true_fn: Callable[..., Any],
    false_fn: Callable[..., Any],
    operands: Sequence[Any],
) -> Any:
    """Runs both functions and selects between their results."""
    true, false = true_fn(*operands), false_fn(*operands)
    check_alike("cond", true, "true_fn", false, "false_fn")
    leaves, spec = pytree.flatten(true)
    pairs = zip(leaves, pytree.leaves(false), strict=True)
    return pytree.unflatten(
        [one if one is None else torch.where(pred, one, other) for one, other in pairs], spec
    )


def _masked(func: Callable[..., Any], taken: Tensor) -> Callable[..., Any]:
    """Wraps a function to block its backward pass, even for zero cotangents, if it is not taken."""

    def masked(*operands: Any) -> Any:
        with _MaskedGradientMode(taken) as seen:
            return func(*pytree.map_tensors(seen.sample, operands))

    return masked


class _MaskedGradientMode(ClosureMode):
    """Detaches tensors from outside where a predicate is false."""

    def __init__(self, taken: Tensor) -> None:
        super().__init__([])
        self.taken = taken
        self.masked: dict[int, tuple[Tensor, Tensor]] = {}

    def sample(self, x: Tensor) -> Tensor:
        if id(x) in self.created or not (x.is_floating_point() or x.is_complex()):
            return x
        if id(x) not in self.masked:
            with without_function_modes():
                self.masked[id(x)] = x, self.note_created(torch.where(self.taken, x, x.detach()))
        return self.masked[id(x)][1]
