"""Reverse mode: vjp.

The function runs inside a grad layer, as for grad. The backward pass runs later, each time the
second result is called. The implementation is in csrc/python/calls/call_grad.cpp.
"""

from collections.abc import Callable
from typing import Any, Literal, overload

import torch
from torch import Tensor
from typing_extensions import Unpack

from torchlayers import _C
from torchlayers.core import pytree, torch_func, tracing_state
from torchlayers.core.annotations import Aux, Ins, Pullback, R
from torchlayers.core.errors import CallError, NotTensorError, StructureError, TransformError
from torchlayers.remat.budget import budgeted
from torchlayers.taps import Names, with_values
from torchlayers.transforms.grad import GradSpec


@overload
def vjp(
    func: Callable[[Unpack[Ins]], R],
    *primals: Unpack[Ins],
    has_aux: Literal[False] = False,
    memory_budget: int | float | None = None,
    taps: None = None,
) -> tuple[R, Pullback[R | None, tuple[Unpack[Ins]]]]: ...
@overload
def vjp(
    func: Callable[[Unpack[Ins]], tuple[R, Aux]],
    *primals: Unpack[Ins],
    has_aux: Literal[True],
    memory_budget: int | float | None = None,
    taps: None = None,
) -> tuple[R, Pullback[R | None, tuple[Unpack[Ins]]], Aux]: ...
@overload
def vjp(
    func: Callable[[Unpack[Ins]], R],
    *primals: Unpack[Ins],
    has_aux: Literal[False] = False,
    memory_budget: int | float | None = None,
    taps: Names,
) -> tuple[tuple[R, dict[str, Any]], Pullback[Any, tuple[Unpack[Ins]]]]: ...
@overload
def vjp(
    func: Callable[[Unpack[Ins]], Any],
    *primals: Unpack[Ins],
    has_aux: bool,
    memory_budget: int | float | None = None,
    taps: Names | None = None,
) -> Any: ...
def vjp(  # type: ignore[misc]
    func: Callable[..., Any],
    *primals: Any,
    has_aux: bool = False,
    memory_budget: int | float | None = None,
    taps: Names | None = None,
) -> Any:
    """Vector-Jacobian product: func's value, and the function that pulls cotangents back.

    Args:
        func: takes the primals; returns a tensor or a pytree of tensors, or
            ``(output, aux)`` with has_aux.
        primals: tensors or pytrees of tensors.
        has_aux: func returns a second value, which is passed through.
        memory_budget: as for :func:`grad`.
        taps: names of :func:`torchlayers.tap`, and paths of modules, whose values become outputs
            as well: the output is then ``(output, {name: value})``, and the cotangents have the
            same structure.
    Returns:
        ``(output, vjp_fn)``, or ``(output, vjp_fn, aux)`` with has_aux. ``vjp_fn(cotangents,
        retain_graph=True, create_graph=None)`` takes cotangents with the structure and shapes
        of the output, and returns a tuple with the cotangent of each primal, which has the
        primal's structure, shapes and dtypes. If the output is a single element, None means a
        cotangent of 1. It can be called many times. If ``create_graph`` is None, it is whether
        grad mode is enabled at the call.
    Raises:
        OutputError: func returned something other than floating-point or complex tensors.
        NotTensorError: a primal or the cotangents hold something other than tensors.
        DtypeError: a primal is neither floating-point nor complex.
        StructureError: the cotangents do not match the output.
        CallError: retain_graph or create_graph is neither a bool nor None.
        TapError: a name among taps has no value in func, or several.
    Example:
        >>> output, vjp_fn = vjp(torch.sin, torch.tensor([0.0, 1.0]))
        >>> vjp_fn(torch.ones(2))
        (tensor([1.0000, 0.5403]),)

    Source: torch.func.vjp.
    """
    if taps is not None:
        within = budgeted("vjp", func, memory_budget)
        func, memory_budget = with_values("vjp", within, has_aux, taps), None
    if tracing_state.is_tracing():
        tracing_state.refuse_strict_export("vjp")
        return tracing_state.run_unless_traced(
            torch_func.vjp, lambda: vjp, func, *primals, has_aux=has_aux
        )
    spec = GradSpec("vjp", budgeted("vjp", func, memory_budget), None, has_aux)
    recorded, output, aux = _C.call_vjp(spec, primals, False)

    def vjp_fn(
        cotangents: Any, retain_graph: bool | None = True, create_graph: bool | None = None
    ) -> Any:
        if create_graph is None:
            create_graph = torch.is_grad_enabled()
        else:
            _check_flag("create_graph", create_graph)
        if retain_graph is not True:
            if retain_graph is None:
                retain_graph = create_graph
            _check_flag("retain_graph", retain_graph)
        try:
            return _C.call_vjp_fn(recorded, cotangents, retain_graph, create_graph)
        except SparseCotangents as sparse:
            return _C.call_vjp_fn(recorded, sparse.as_entries, retain_graph, create_graph)
        except TransformError:
            raise
        except RuntimeError:
            _explain_cotangents(recorded.outputs, cotangents)
            raise

    vjp_fn.__qualname__ = "vjp_fn"  # Python's error for a missing argument shows this name
    return (output, vjp_fn, aux) if has_aux else (output, vjp_fn)


class SparseCotangents(Exception):
    """Cotangents of sparse matrices are given as matrices, and not as their entries."""

    def __init__(self, as_entries: Any) -> None:
        self.as_entries = as_entries


def refuse_cotangents(output: Any, cotangents: Any) -> None:
    """Raises an error that says how the cotangents differ from the output."""
    outputs, spec = pytree.flatten(output)
    flat, cotangent_spec = pytree.flatten(cotangents)
    if cotangent_spec != spec:
        from torchlayers.transforms.sparse.entries import as_entries  # which imports this module

        again = as_entries(output, cotangents)
        if again is not None and pytree.flatten(again)[1] == spec:
            raise SparseCotangents(again)
        raise StructureError(
            "torchlayers: vjp: the cotangents must have the structure of the output: got "
            f"{pytree.describe(cotangent_spec)} for {pytree.describe(spec)} (* is a leaf)."
        )
    for i, (leaf, cotangent) in enumerate(zip(outputs, flat, strict=True)):
        if not isinstance(cotangent, Tensor):
            raise NotTensorError(
                f"torchlayers: vjp: cotangent {i} must be a tensor like its output, got "
                f"{type(cotangent).__name__}."
            )
        if cotangent.shape != leaf.shape:
            raise StructureError(
                f"torchlayers: vjp: cotangent {i} has shape {tuple(cotangent.shape)}, but its "
                f"output has shape {tuple(leaf.shape)}: the shapes must be equal."
            )


def _explain_cotangents(outputs: list[Tensor], cotangents: Any) -> None:
    """Raises a clearer error if autograd failed because of a cotangent's dtype or device."""
    if cotangents is None:
        return
    for i, (output, cotangent) in enumerate(zip(outputs, pytree.leaves(cotangents), strict=True)):
        if not output.requires_grad:
            continue
        if cotangent.is_complex() != output.is_complex():
            raise StructureError(
                f"torchlayers: vjp: cotangent {i} is {cotangent.dtype}, its output "
                f"{output.dtype}: both must be real, or both complex."
            ) from None
        if cotangent.device != output.device:
            raise StructureError(
                f"torchlayers: vjp: cotangent {i} is on {cotangent.device}, its output on "
                f"{output.device}: they must be on the same device."
            ) from None


def _check_flag(name: str, value: Any) -> None:
    if not isinstance(value, int):  # 0 and 1 are accepted
        raise CallError(
            f"torchlayers: vjp: {name} must be a bool or None, got {type(value).__name__}. vjp_fn "
            "takes one pytree of cotangents: where the function returned a tuple, pass a tuple, "
            "vjp_fn((a, b))."
        )
