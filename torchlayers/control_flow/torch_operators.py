"""torch's own control flow operators (torch.cond, while_loop, scan, map, ...) under our layers.

NOTE [torch's control flow]
Each is a higher-order operator that dispatches in Python. While layers are active, our front
dispatch key comes first, and its implementation calls the torchlayers function of the same name,
however transforms are nested. torch's functions first compile themselves, so that Dynamo captures
their branches as graphs. Dynamo can't trace our layers, and no graphs are needed here. So the one
helper through which they compile is replaced by one that calls them uncompiled while a layer is
active: it is the only code before Dynamo that all of them share.
"""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import CheckpointFunction

from torchlayers import _C
from torchlayers.autograd_function.front_key import checkpointed
from torchlayers.control_flow.associative_scan import scan_pairs
from torchlayers.control_flow.cond import cond
from torchlayers.control_flow.flex_attention import attention
from torchlayers.control_flow.map import map as map_
from torchlayers.control_flow.scan import scan
from torchlayers.control_flow.traced import dispatch
from torchlayers.control_flow.while_loop import while_loop
from torchlayers.core import pytree, tracing_state
from torchlayers.core.operator_rules.function_rules import RULES
from torchlayers.core.operators import MissingOperator, higher_order
from torchlayers.core.torch_private import dispatch_key

_FRONT: Any = dispatch_key(_C.FRONT_KEY)

_COND, _WHILE_LOOP = "torch._higher_order_ops.cond", "torch._higher_order_ops.while_loop"
RULES[CheckpointFunction] = checkpointed
_MODULES = (_COND, _WHILE_LOOP, "torch._higher_order_ops.scan", "torch._higher_order_ops.map")


def _rule(operator: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers the function as the operator's implementation while layers are active, if there
    is such an operator."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        if isinstance(operator, MissingOperator):
            return function
        RULES[operator] = operator.py_impl(_FRONT)(function)
        return function

    return register


@_rule(higher_order.cond)
def _cond(
    pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Sequence[Any]
) -> Any:
    if dispatch.are_graphs(true_fn, false_fn) and dispatch.any_recorded(pred):
        return dispatch.cond_of_graphs(_bool(pred), true_fn, false_fn, operands)
    return cond(_bool(pred), true_fn, false_fn, *operands)


@_rule(higher_order.while_loop)
def _while_loop(
    cond_fn: Callable[..., Any],
    body_fn: Callable[..., Any],
    carried_inputs: Sequence[Any],
    additional_inputs: Sequence[Any],
) -> Any:
    if dispatch.are_graphs(cond_fn, body_fn) and dispatch.any_recorded(
        *carried_inputs, *additional_inputs
    ):
        return dispatch.loop_of_graphs(cond_fn, body_fn, carried_inputs, additional_inputs)

    def body(carry: Any) -> tuple[Any, ...]:
        return tuple(pytree.leaves(body_fn(*carry, *additional_inputs)))

    carry = while_loop(
        lambda carry: _bool(cond_fn(*carry, *additional_inputs)), body, tuple(carried_inputs)
    )
    if getattr(body_fn, "__module__", "") != _WHILE_LOOP:
        return carry
    # torch's function has flattened the carry and relies on Dynamo to unflatten it.
    return pytree.unflatten([*carry], inspect.getclosurevars(body_fn).nonlocals["in_spec"])[0]


@_rule(higher_order.scan)
def _scan(
    combine_fn: Callable[..., Any],
    init: Sequence[Tensor],
    xs: Sequence[Tensor],
    additional_inputs: Sequence[Any],
) -> Any:
    spec: pytree.TreeSpec | None = None

    def step(carry: list[Tensor], x: list[Tensor]) -> tuple[list[Tensor], Any]:
        nonlocal spec
        results = combine_fn(*carry, *x, *additional_inputs)
        if all(result is None or isinstance(result, Tensor) for result in results):
            return [*results[: len(init)]], [*results[len(init) :]]
        carry, spec = pytree.flatten(results[0])  # a pair of pytrees: called by torch's function
        return carry, results[1]

    last, ys = scan(step, [*init], [*xs])
    return (*last, *ys) if spec is None else (pytree.unflatten(last, spec), ys)


@_rule(higher_order.map_impl)
def _map(
    f: Callable[..., Any], xs: Sequence[Tensor], pos_args: Sequence[Any], **written: str
) -> Any:
    # torch 2.15 also passes which xs f mutates; only tracing needs that.
    return map_(lambda x: f(*x, *pos_args), [*xs])


@_rule(higher_order.associative_scan)
def _associative_scan(
    combine_fn: Callable[..., Any], xs: Sequence[Tensor], additional_inputs: Sequence[Any]
) -> Any:
    def pairs(first: list[Tensor], second: list[Tensor]) -> Any:
        return combine_fn(*first, *second, *additional_inputs)

    return tuple(scan_pairs(pairs, [*xs]))


_rule(higher_order.flex_attention)(attention)


def _bool(pred: Any) -> Any:
    """Converts a predicate to a bool, or to a bool tensor if it is a tensor."""
    if isinstance(pred, Tensor):
        return pred if pred.dtype == torch.bool else pred != 0
    return bool(pred)


def compile_and_call_of(torchs: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces the helper by which torch's functions compile themselves."""

    def call(fn: Any, args: Any, kwargs: Any = None) -> Any:
        if fn.__module__ not in _MODULES or not _C.any_layer():
            return torchs(fn, args, kwargs)
        if fn.__module__ == _COND:
            return _cond(*args)  # Dynamo would have flattened the operands
        return fn(*args, **(kwargs or {}))

    return call


def compilation_env_of(torchs: Callable[[], Any]) -> Callable[[], Any]:
    """Replaces the context manager in which torch's functions compile themselves, also those that
    do it without the helper above: flex_attention, and all with torch 2.11."""

    @contextlib.contextmanager
    def environment() -> Iterator[Any]:
        eager = tracing_state.run_eagerly() if _C.any_layer() else contextlib.nullcontext()
        with torchs() as backend, eager:
            yield backend

    return environment
