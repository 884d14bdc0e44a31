"""One call of a custom_vjp, as an autograd.Function that runs its rules."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from torchlayers import _C
from torchlayers.autograd_function.custom_derivatives.declaration import (
    DifferentiatedArguments,
    OutputStructure,
    is_float,
    not_input,
    or_zeros,
)
from torchlayers.core import pytree
from torchlayers.core.errors import FunctionError, MissingDerivativeError
from torchlayers.core.layer_stack import kinds_of_layers
from torchlayers.core.torch_private import dual_level, functorch, stack_depth
from torchlayers.remat.deferred import deferred
from torchlayers.transforms.jvp import jvp
from torchlayers.transforms.vjp import vjp


# NOTE [A fwd that calls its function]
# In JAX's documentation fwd calls the function whose rule it is. Where a Function's forward runs
# fwd, that call is a constant of all derivatives; where a jvp differentiates fwd, its rules could
# not serve it, and would run fwd again without end. So there the function runs as it is written.
class _Thread(threading.local):
    def __init__(self) -> None:
        self.fwds: list[tuple[Any, int]] = []  # and the number of layers where each was called


_thread = _Thread()


@contextmanager
def _as_written(fwd: Callable[..., Any]) -> Iterator[None]:
    _thread.fwds.append((fwd, stack_depth()))
    try:
        yield
    finally:
        _thread.fwds.pop()


def runs_as_written(fwd: Callable[..., Any]) -> bool:
    """Whether the function with this fwd is called by fwd, outside transforms that fwd calls."""
    return bool(_thread.fwds) and (fwd, stack_depth()) in _thread.fwds


def may_be_differentiated(tensors: Sequence[Tensor]) -> bool:
    """Whether a derivative may be taken, at any level, of results computed from these tensors."""
    layers = _C.current_stack()
    if any(layer is None or layer[0] not in ("vmap", "grad") for layer in layers):
        return True
    if dual_level() >= 0:
        return True
    return torch.is_grad_enabled() and any(map(_requires_grad, tensors))


def _requires_grad(x: Tensor) -> bool:
    """Whether x is tracked at some level."""
    while not x.requires_grad:
        if functorch.maybe_get_level(x) <= 0:
            return False
        x = functorch.get_unwrapped(x)
    return True


class VjpCall:
    """A call of a custom_vjp.

    Attributes:
        output: the structure of the output.
        residuals: that of the residuals; each of their tensors is an operand, an output, or one
            more result of the Function. `sources` says which.
        are_float: which of the Function's results can have derivatives.
        is_below_grad: whether jvps around the call differentiate a grad of it.
    """

    output: OutputStructure
    residuals: OutputStructure
    sources: list[tuple[str, int]]
    are_float: list[bool]

    def __init__(
        self,
        name: str,
        fwd: Callable[..., Any],
        bwd: Callable[..., Any],
        arguments: DifferentiatedArguments,
    ) -> None:
        self.name = name
        differentiating = [kind for kind in kinds_of_layers() if kind in ("grad", "jvp")]
        self.is_below_grad = differentiating[-1:] == ["grad"]
        self.fwd, self._arguments = fwd, arguments
        self._fwd_again, self._bwd = (deferred(rule, *arguments.nondiff) for rule in (fwd, bwd))

    def run(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Runs fwd; returns the tensors of the output, and those of the residuals that are none."""
        with _as_written(self.fwd):
            output, residuals = self._forward(self.fwd, tensors)
        self.output, self.residuals = OutputStructure(output), OutputStructure(residuals)
        results = [not_input(x, tensors) for x in self.output.forget()]
        known = {id(x): ("operand", i) for i, x in enumerate(tensors)}
        known |= {id(x): ("result", i) for i, x in enumerate(results)}
        self.sources = []
        for x in self.residuals.forget():
            if id(x) not in known:
                known[id(x)] = "result", len(results)
                results.append(x)
            self.sources.append(known[id(x)])
        self.are_float = [is_float(x) for x in results]
        return tuple(results)

    def results_again(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Runs fwd once more; returns the results that have derivatives."""
        output, residuals = map(pytree.leaves, self._forward(self._fwd_again, tensors))
        results = [x for x in output if isinstance(x, Tensor)]
        saved = [x for x in residuals if isinstance(x, Tensor)]
        for x, (kind, i) in zip(saved, self.sources, strict=True):
            if kind == "result" and i == len(results):
                results.append(x)
        return [x for x in results if is_float(x)]

    def _forward(self, fwd: Callable[..., Any], tensors: Sequence[Tensor]) -> tuple[Any, Any]:
        pair = fwd(*self._arguments.all(tensors))
        if not (isinstance(pair, (tuple, list)) and len(pair) == 2):
            raise FunctionError(
                f"torchlayers: custom_vjp: fwd of {self.name} must return (output, "
                f"residuals), got {type(pair).__name__}."
            )
        return pair[0], pair[1]

    def pull(
        self, tensors: Sequence[Tensor], results: Sequence[Tensor], cotangents: Sequence[Tensor]
    ) -> list[Tensor | None]:
        """Returns the cotangents of the tensors."""
        if may_be_differentiated(tensors):
            results = _apply_residuals(self, len(results), *results, *tensors)
        places = {"operand": tensors, "result": results}
        residuals = self.residuals.put_in([places[kind][i] for kind, i in self.sources])
        args = self._arguments.differentiated(tensors)
        returned = self._bwd(*self._arguments.nondiff, residuals, self.output.put_in(cotangents))
        name = f"torchlayers: custom_vjp: bwd of {self.name}"
        if not isinstance(returned, (tuple, list)) or len(returned) != len(args):
            got = len(returned) if isinstance(returned, (tuple, list)) else type(returned).__name__
            raise FunctionError(
                f"{name} must return a tuple of {len(args)}, one cotangent for each argument, got "
                f"{got}."
            )
        gradients: list[Tensor | None] = []
        for i, (arg, cotangent) in enumerate(zip(args, returned, strict=True)):
            leaves = pytree.leaves(arg)
            cotangent_leaves = (
                [None] * len(leaves) if cotangent is None else pytree.leaves(cotangent)
            )
            if len(cotangent_leaves) != len(leaves):
                raise FunctionError(
                    f"{name} returned {len(cotangent_leaves)} cotangents for argument {i}, which "
                    f"has {len(leaves)} leaves. Return them in the same structure."
                )
            for leaf, g in zip(leaves, cotangent_leaves, strict=True):
                if isinstance(leaf, Tensor):
                    if isinstance(g, Tensor) and g.shape != leaf.shape:
                        raise FunctionError(
                            f"{name} returned a cotangent of shape {tuple(g.shape)} for argument "
                            f"{i}, of shape {tuple(leaf.shape)}."
                        )
                    gradients.append(g if isinstance(g, Tensor) and is_float(leaf) else None)
        return gradients


class _VjpFunction(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(call: VjpCall, *tensors: Tensor) -> tuple[Tensor, ...]:
        return call.run(tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.call, *tensors = inputs
        ctx.count, ctx.outputs = len(tensors), len(ctx.call.output.is_float)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(
            *(x for i, x in enumerate(output) if i >= ctx.outputs or not is_float(x))
        )
        ctx.save_for_backward(*tensors, *output)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Any) -> Any:
        """Only below a grad, which has applied bwd: differentiates fwd."""
        if not ctx.call.is_below_grad:
            raise MissingDerivativeError(
                f"torchlayers: custom_vjp: {ctx.call.name} has no jvp rule, so it works in reverse "
                "mode only. Use custom_jvp, which works in both, or reverse mode (vjp, jacrev, or "
                "jacrev(jacrev(f)) for hessian(f))."
            )
        pushed = _push_tangents(ctx.call, ctx.saved_tensors, tangents)
        # The tangents of residuals are taken by _ResidualFunction.
        return tuple(t if i < ctx.outputs else None for i, t in enumerate(pushed))

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        tensors, results = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
        filled = or_zeros(cotangents[: ctx.outputs], results[: ctx.outputs])
        return None, *ctx.call.pull(tensors, results, filled)


class _ResidualFunction(torch.autograd.Function):
    """Takes a VjpCall, the number of its results, the results, and the tensors of which they were
    computed; returns the results.

    They are constants of the first derivative, and have been computed. A further derivative is that
    of fwd, which runs once more if one is taken.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(call: VjpCall, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(x.view_as(x) for x in tensors[:count])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.call, ctx.results, *tensors = inputs
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(x for x in output if not is_float(x)))
        ctx.save_for_backward(*tensors[ctx.results :])
        ctx.save_for_forward(*tensors[ctx.results :])

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        tensors = ctx.saved_tensors
        places = [i for i, x in enumerate(tensors) if is_float(x)]
        wanted = [i for i, g in enumerate(cotangents) if g is not None]
        order = [i for i, differentiable in enumerate(ctx.call.are_float) if differentiable]

        def run_again(*some: Tensor) -> list[Tensor]:
            by_place = dict(zip(order, _run_again(ctx.call, tensors, places, some), strict=True))
            return [by_place[i] for i in wanted]

        _, pull = vjp(run_again, *(tensors[i] for i in places))
        gradients = dict(zip(places, pull([cotangents[i] for i in wanted]), strict=True))
        return *[None] * (2 + ctx.results), *(gradients.get(i) for i in range(len(tensors)))

    @staticmethod
    def jvp(ctx: Any, _: None, __: None, *tangents: Any) -> Any:
        return tuple(_push_tangents(ctx.call, ctx.saved_tensors, tangents[ctx.results :]))


def _push_tangents(
    call: VjpCall, tensors: Sequence[Tensor], tangents: Sequence[Any]
) -> list[Tensor | None]:
    """Returns the tangents of all results of fwd, None for those that can't have one."""
    places = [i for i, x in enumerate(tensors) if is_float(x) and tangents[i] is not None]

    def run_again(*some: Tensor) -> list[Tensor]:
        with _as_written(call.fwd):
            return _run_again(call, tensors, places, some)

    _, pushed = jvp(
        run_again, tuple(tensors[i] for i in places), tuple(tangents[i] for i in places)
    )
    rest = iter(pushed)
    return [next(rest) if differentiable else None for differentiable in call.are_float]


def _run_again(
    call: VjpCall, tensors: Sequence[Tensor], places: Sequence[int], some: Sequence[Tensor]
) -> list[Tensor]:
    changed = [*tensors]
    for i, x in zip(places, some, strict=True):
        changed[i] = x
    return call.results_again(changed)


apply: Any = _VjpFunction.apply
_apply_residuals: Any = _ResidualFunction.apply
