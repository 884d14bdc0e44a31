"""requires_grad_() and torch.autograd.grad inside a transformed function.

NOTE [Gradients inside]
A function that itself differentiates (``torch.autograd.grad`` with respect to ``x.detach()`` with
``requires_grad_()``, as implicit solvers do) may run inside a transform. torch rejects
``requires_grad_()`` there; csrc/python/patches/requires_grad.cpp sends it here inside our layers.
A tensor is marked at the level whose autograd records it: a wrapper of grad or jvp at its own
level, a batched or functional tensor at the level of the value inside it. ``torch.autograd.grad``
then runs at that level too, on the values inside the wrappers of the layers above it.

What the transform differentiates, it differentiates through such a gradient too, whether or not
``create_graph`` is set: who calls ``jacrev(f)`` or ``jacfwd(f)`` may not know which gradients f
computes, and a tangent passes through them in any case. So a grad records them, and those that
depend on nothing that it differentiates leave the graph again.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from torchlayers import _C
from torchlayers.core import tracing_state
from torchlayers.core.errors import TransformError, location
from torchlayers.core.torch_private import (
    functorch,
    is_batched_wrapper,
    is_grad_wrapper,
    is_wrapped,
    torch_private,
    without_ended_wrapper,
)
from torchlayers.transforms.functionalize import functional, unwrapped
from torchlayers.transforms.local_leaves import LEAF, has_tangent, note_inputs


def set_requires_grad(tensor: Tensor, requires_grad: bool = True) -> Tensor:
    """Implements ``tensor.requires_grad_(requires_grad)`` inside our transforms."""
    if requires_grad and not tensor.requires_grad:
        _make_leaf(tensor)
    elif not requires_grad and tensor.requires_grad:
        _make_constant(tensor)
    return tensor


def _make_leaf(tensor: Tensor) -> None:
    if not (tensor.is_floating_point() or tensor.is_complex()):
        raise TransformError(
            f"torchlayers: requires_grad_() on a tensor of dtype {tensor.dtype}: only "
            f"floating-point and complex tensors have gradients.{location()}"
        )
    value = _value_inside(tensor)
    # Marks the tensor as one that became a leaf here.
    setattr(tensor, LEAF, True)
    if value is None:
        _C.set_requires_grad(tensor, True)
    elif is_batched_wrapper(tensor):
        # The value may be the caller's tensor, which must not change.
        _C.replace_batch(tensor, _leaf_like(value))
    else:
        leaf = _leaf_like(value)
        if torch_private._is_functional_tensor(leaf):
            raise TransformError(
                "torchlayers: requires_grad_() inside layers in Python that are nested: torch "
                "can't mark a tensor there. Use torchlayers.grad or vjp inside the "
                f"function.{location()}"
            )
        torch_private._functionalize_replace(tensor, leaf)


def _make_constant(tensor: Tensor) -> None:
    leaf = _innermost(tensor)
    if not leaf.requires_grad:  # a Parameter of a batched or functional tensor: only it is marked
        _C.set_requires_grad(tensor, False)
        return
    is_outside = leaf is tensor and not is_wrapped(tensor)
    is_local = is_outside or isinstance(tensor, nn.Parameter) or hasattr(tensor, LEAF)
    if not (is_local and leaf.is_leaf):
        raise TransformError(
            "torchlayers: requires_grad_(False) on a tensor that a transform, or an enclosing one, "
            "differentiates with respect to: its derivative would be lost. Use x.detach(), which "
            f"leaves x unchanged.{location()}"
        )
    _C.set_requires_grad(leaf, False)


def _value_inside(tensor: Tensor) -> Tensor | None:
    """Returns the value in a batched or functional tensor; None for others, marked directly."""
    value: Tensor | None = None
    if is_batched_wrapper(tensor):
        value = functorch.get_unwrapped(tensor)
    elif torch_private._is_functional_tensor(tensor):
        torch_private._functionalize_sync(tensor)
        value = functorch.get_unwrapped(tensor)
    return value


def _innermost(tensor: Tensor) -> Tensor:
    """Returns the innermost value, whose requires_grad says whether autograd records it."""
    value = _value_inside(tensor)
    return tensor if value is None else _innermost(value)


def _leaf_like(value: Tensor) -> Tensor:
    """Returns a leaf that shares the value's memory, wrapped at the same levels as the value."""
    level = max(functorch.maybe_get_level(value), 0)
    inside = _value_inside(value)
    if inside is None:
        leaf: Tensor = _C.at_level(level, lambda: value.view_as(value))
        _C.set_requires_grad(leaf, True)
        setattr(leaf, LEAF, True)
        return leaf
    leaf = _leaf_like(inside)
    if is_batched_wrapper(value):
        dim = functorch.maybe_get_bdim(value)
        around: Tensor = _C.at_level(level, lambda: _C.add_batch_dim(leaf, dim))
        return around
    return functional(leaf, level)


class _GradCall(NamedTuple):
    """The arguments of a torch.autograd.grad call, and torch's call of its engine."""

    run_engine: Callable[..., Any]
    outputs: Sequence[Tensor]
    cotangents: Sequence[Tensor | None]
    keep_graph: bool
    create_graph: bool
    inputs: Sequence[Tensor]
    allow_unused: bool

    def map_tensors(self, change: Callable[[Tensor], Tensor]) -> "_GradCall":
        return self._replace(
            outputs=tuple(change(output) for output in self.outputs),
            cotangents=tuple(None if g is None else change(g) for g in self.cotangents),
            inputs=tuple(change(x) for x in self.inputs),
        )

    def run(self) -> tuple[Tensor | None, ...]:
        """Computes the gradients, at the level of the inputs."""
        top = _C.top()
        if top is None:
            return self._run_here()
        kind, level = top
        if kind == "vmap":
            return self._run_on_batches(level)
        if kind == "functionalize":
            task = self.map_tensors(lambda tensor: unwrapped(tensor, level))
            with _C.Below():
                gradients = task.run()
            return tuple(None if g is None else functional(g, level) for g in gradients)
        if kind in ("grad", "jvp"):
            if any(_is_recorded_at(level, x) for x in self.inputs):
                is_recorded = not self.create_graph and _is_any_recording()
                return self._run_recorded(level) if is_recorded else self._run_here()
            self._check_nothing_is_lost(kind, level)
            task = self.map_tensors(lambda tensor: _C.unwrap(tensor, level))
            with _C.Below():
                return task.run()
        self._check_no_part_is_lost(kind, level)
        with _C.Below():
            return self.run()

    def _run_here(self) -> tuple[Tensor | None, ...]:
        cotangents = tuple(
            torch.ones_like(output) if g is None and output.requires_grad else g
            for output, g in zip(self.outputs, self.cotangents, strict=True)
        )
        gradients: tuple[Tensor | None, ...] = self.run_engine(
            tuple(self.outputs),
            cotangents,
            self.keep_graph,
            self.create_graph,
            tuple(self.inputs),
            self.allow_unused,
            accumulate_grad=False,
        )
        return gradients

    def _run_recorded(self, level: int) -> tuple[Tensor | None, ...]:
        """Computes gradients that this layer, or one below it, differentiates."""
        gradients = self._replace(keep_graph=True, create_graph=True)._run_here()
        return tuple(
            g if g is None or _depends_on_others(g) else _not_recorded_at(level, g)
            for g in gradients
        )

    def _run_on_batches(self, level: int) -> tuple[Tensor | None, ...]:
        outputs = [_C.unbatched(output, level) for output in self.outputs]
        cotangents = [None if g is None else _C.unbatched(g, level) for g in self.cotangents]
        inputs = [_C.unbatched(x, level) for x in self.inputs]
        if all(dim is None for _, dim in (*outputs, *inputs)) and any(
            g is not None and g[1] is not None for g in cotangents
        ):
            # A pass through the graph of a lower level, such as jacrev's.
            recorded = self._replace(keep_graph=True, create_graph=True)
            return (recorded if _is_any_recording() else self)._run_here()
        if any(dim is not None for _, dim in outputs):
            for i, (_, dim) in enumerate(inputs):
                if dim is None:
                    raise TransformError(
                        f"torchlayers: vmap (level {level}) can't run torch.autograd.grad with "
                        f"respect to input {i}: it is not batched and the outputs are, so the "
                        "gradients of all samples would be summed. Use torchlayers.grad or vjp "
                        f"inside the function, or batch the input.{location()}"
                    )
        task = self._replace(
            outputs=tuple(value for value, _ in outputs),
            cotangents=tuple(
                None if cotangent is None else _move_batch_like_output(*cotangent, *output)
                for cotangent, output in zip(cotangents, outputs, strict=True)
            ),
            inputs=tuple(value for value, _ in inputs),
        )
        with _C.Below():
            gradients = task.run()
        return tuple(
            g if g is None or dim is None else _C.add_batch_dim(g, dim)
            for g, (_, dim) in zip(gradients, inputs, strict=True)
        )

    def _check_no_part_is_lost(self, kind: str, level: int) -> None:
        """A layer in Python has no rule for a pass through a graph of the layers below."""
        tensors = (*self.outputs, *self.cotangents, *self.inputs)
        if any(x is not None and functorch.maybe_get_level(x) == level for x in tensors):
            raise TransformError(
                f"torchlayers: torch.autograd.grad inside {kind} (level {level}), of one of its "
                "tensors: what the layer computes beside values would be lost. Use "
                f"torchlayers.grad or vjp inside the function.{location()}"
            )

    def _check_nothing_is_lost(self, kind: str, level: int) -> None:
        for tensor in (*self.outputs, *self.cotangents):
            if tensor is None or functorch.maybe_get_level(tensor) != level:
                continue
            is_recorded = tensor.requires_grad and (
                self.create_graph or (kind == "grad" and torch.is_grad_enabled())
            )
            if is_recorded or (kind == "jvp" and has_tangent(tensor)):
                raise TransformError(
                    f"torchlayers: torch.autograd.grad inside {kind} (level {level}), of a value "
                    "that it differentiates, with respect to a tensor from outside: the gradient's "
                    "own derivative would be lost. Use torchlayers.grad or vjp inside the "
                    f"function, or pass the tensor to it as an argument.{location()}"
                )


def _move_batch_like_output(
    cotangent: Tensor, dim: int | None, output: Tensor, output_dim: int | None
) -> Tensor:
    """Returns the cotangent with its batch dimension at that of the output."""
    if output_dim is None or dim == output_dim:
        return cotangent
    if dim is None:
        return cotangent.unsqueeze(output_dim).expand_as(output)
    return cotangent.movedim(dim, output_dim)


def _is_recorded_at(level: int, tensor: Tensor) -> bool:
    return (
        is_grad_wrapper(tensor)
        and functorch.maybe_get_level(tensor) == level
        and tensor.requires_grad
    )


def _is_any_recording() -> bool:
    """Whether the layer on top, or one below it, records for a reverse pass."""
    layers = _C.current_stack()
    return torch.is_grad_enabled() and any(layer and layer[0] == "grad" for layer in layers)


def _not_recorded_at(level: int, tensor: Tensor) -> Tensor:
    """Returns a tensor that autograd does not know at the level on top, but at those below."""
    tangent = forward_ad.unpack_dual(tensor).tangent  # type: ignore[no-untyped-call]
    value = _C.lift(_C.unwrap(tensor, level))
    if tangent is None:
        return value
    return forward_ad.make_dual(value, tangent)  # type: ignore[no-untyped-call, no-any-return]


def _depends_on_others(tensor: Tensor) -> bool:
    """Whether it is recorded as a function of more than the tensors that became leaves here."""
    if tensor.grad_fn is None:
        return tensor.requires_grad and not hasattr(tensor, LEAF)
    seen, todo = {tensor.grad_fn}, [tensor.grad_fn]
    while todo:
        node = todo.pop()
        leaf = getattr(node, "variable", None)  # of a node that accumulates
        if leaf is not None and not hasattr(leaf, LEAF):
            return True
        inner = {function for function, _ in node.next_functions if function is not None} - seen
        seen |= inner
        todo += inner
    return False


def _alive(tensor: Tensor) -> Tensor:
    alive: Tensor = without_ended_wrapper(tensor)
    if (
        alive.requires_grad
        and _value_inside(alive) is not None
        and not _innermost(alive).requires_grad
    ):
        _make_leaf(alive)  # torch.zeros_like(x, requires_grad=True): not recorded yet
    return alive


def _is_recorded_by_ended(tensor: Any) -> bool:
    """Whether the tensor requires grad at a level that has ended, as torch.func.vjp's inputs do."""
    return bool(
        isinstance(tensor, Tensor)
        and is_grad_wrapper(tensor)
        and tensor.requires_grad
        and without_ended_wrapper(tensor) is not tensor
    )


def engine_run_of(torchs: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces torch's call of its autograd engine."""

    @tracing_state.uncompiled
    def run(
        outputs: Any,
        cotangents: Any,
        keep_graph: bool,
        create_graph: bool,
        inputs: Any,
        allow_unreachable: bool,
        accumulate_grad: bool,
    ) -> Any:
        is_ours = not tracing_state.is_tracing() and _C.any_layer() and not accumulate_grad
        is_ours = is_ours and all(isinstance(x, Tensor) for x in (*outputs, *inputs))
        if not is_ours or any(map(_is_recorded_by_ended, inputs)):
            return torchs(
                outputs,
                cotangents,
                keep_graph,
                create_graph,
                inputs,
                allow_unreachable,
                accumulate_grad=accumulate_grad,
            )
        note_inputs(inputs)
        task = _GradCall(
            torchs, outputs, cotangents, keep_graph, create_graph, inputs, allow_unreachable
        )
        return task.map_tensors(_alive).run()

    return run


def _check_functional(tensor: Tensor, create_graph: bool) -> None:
    """Refuses torch.autograd.functional where it would lose what a transform differentiates.

    It continues with a detached copy of the tensor, or, with ``create_graph``, with a view. A layer
    in Python records neither, and torch would take the missing gradients for zeros.
    """
    advice = ""
    inner = tensor
    while getattr(_C.as_layer_tensor(inner), "parts", None) is None:  # else of a layer in Python
        if not is_wrapped(inner):
            return
        if is_grad_wrapper(inner):
            if create_graph and tensor.requires_grad:
                return
            advice = (
                " Or pass it create_graph=True, after x.requires_grad_() on each input (and on v)."
            )
            break
        value = _value_inside(inner)
        inner = functorch.get_unwrapped(inner) if value is None else value
    raise TransformError(
        "torchlayers: torch.autograd.functional, inside a transform that differentiates, takes "
        "the derivative at a detached copy of its inputs: the result's own derivative would be "
        f"lost. Use torchlayers.vjp, jvp, jacrev, hessian or hvp.{advice}{location()}"
    )


def preprocess_of(torchs: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces the step of torch.autograd.functional that copies inputs and v, detached."""

    @tracing_state.uncompiled
    def preprocess(inputs: Sequence[Tensor], create_graph: bool, need_graph: bool) -> Any:
        if not tracing_state.is_tracing() and _C.any_layer():
            for tensor in inputs:
                _check_functional(tensor, create_graph)
        return torchs(inputs, create_graph=create_graph, need_graph=need_graph)

    return preprocess
