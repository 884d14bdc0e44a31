"""Reverse mode: grad, grad_and_value and vjp.

All three do the same. A grad layer is entered; the arguments are wrapped at its
level, and those to differentiate by are tracked; the function runs, and autograd
records it at this level alone. What the function returned is then pulled back to
the tracked arguments: by grad at once, inside the layer; by vjp later, as often as
its second result is called. csrc/python/call_grad.cpp does it.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from torchlayers import _C
from torchlayers.core import pytree, torch_func, tracing_state
from torchlayers.core.argnums import Argnums, are_numbers, by_names
from torchlayers.core.errors import (
    CallError,
    DtypeError,
    NotScalarError,
    NotTensorError,
    OutputError,
    StructureError,
    TransformError,
    instead,
)
from torchlayers.core.layer_stack import transformed
from torchlayers.remat.budget import budgeted
from torchlayers.taps import Names, with_taps, with_values


class Grad(NamedTuple):
    """A function, and by what to differentiate it.

    The call is C++, which reads the fields, and calls a method where something has to be refused.
    """

    api: str
    func: Callable[..., Any]
    argnums: int | tuple[int, ...] | None  # None for all arguments
    has_aux: bool

    def refuse_arguments(self, args: tuple[Any, ...], places: Sequence[int]) -> None:
        for i, leaf in enumerate(pytree.leaves(pytree.pick(args, places))):
            if isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex()):
                continue
            name = pytree.leaf_name("argument", args, i, places)
            if not isinstance(leaf, Tensor):
                raise NotTensorError(
                    f"torchlayers: {self.api}: {name} must be a tensor to differentiate by it, "
                    f"got {type(leaf).__name__} ({leaf!r}). Make it one, or {instead(self.api)}."
                )
            raise DtypeError(
                f"torchlayers: {self.api}: can't differentiate by {name}, of dtype {leaf.dtype}: "
                "only floating-point and complex tensors have gradients. Convert it, or "
                f"{instead(self.api)}."
            )

    def refuse_value(self, value: Any) -> NoReturn:
        must = f"torchlayers: {self.api}: {pytree.name_of(self.func)} must return a"
        if not isinstance(value, Tensor):
            raise NotScalarError(
                f"{must} tensor without dimensions, got {type(value).__name__}. With has_aux=True "
                "it may return (tensor, anything)."
            )
        if value.dim() != 0:
            raise NotScalarError(
                f"{must} tensor without dimensions, got shape {tuple(value.shape)}. Sum or average "
                "it, or use vjp or jacrev."
            )
        raise NotScalarError(f"{must} real tensor, got {value.dtype}. Take .real or .abs().")

    def refuse_outputs(self, output: Any) -> None:
        outputs = pytree.leaves(output)
        pytree.check_outputs(self.api, outputs)
        for leaf in outputs:
            if not (leaf.is_floating_point() or leaf.is_complex()):
                raise OutputError(
                    f"torchlayers: {self.api}: All outputs of f must be floating-point or complex "
                    f"Tensors, got Tensor with dtype {leaf.dtype}. Return it as aux with "
                    "has_aux=True."
                )


def grad(
    func: Callable[..., Any],
    argnums: Argnums = 0,
    has_aux: bool = False,
    *,
    memory_budget: int | float | None = None,
    taps: Names | None = None,
) -> Callable[..., Any]:
    """Gradient of a scalar-valued function.

    Args:
        func: takes tensors and pytrees of tensors; returns a tensor without dimensions,
            or ``(that, aux)`` with has_aux.
        argnums: which positional arguments to differentiate by, counted as Python counts; or
            which entries of one that is a dict: :func:`torchlayers.names`.
        has_aux: func returns a second value, which is passed through.
        taps: names of :func:`torchlayers.tap`, and paths of modules, to differentiate by too.
        memory_budget: how much func may keep for its gradient, and compute again, at once
            (docs/memory.md): in bytes, or as a fraction, up to 1.0, of what it keeps without.
    Returns:
        A function with func's arguments that returns the gradients, in the structure of
        the chosen arguments, each of its argument's shape and dtype (a tuple of them where
        argnums is one); with has_aux ``(gradients, aux)``. An argument that func does not
        use has a gradient of zeros. With taps there stands ``(gradients, {name: gradient})`` for
        gradients.
    Raises:
        NotScalarError: func returned something else than a real tensor without dimensions.
        NotTensorError: a chosen argument holds something else than tensors.
        DtypeError: a chosen tensor is neither floating-point nor complex.
        ArgnumsError: argnums fits the arguments not.
        OutputError: has_aux, and func did not return a pair.
        TapError: func has no value of a name among taps, or two.
        MemoryBudgetError: the memory budget is too small. The message says what is the least.
    Example:
        >>> grad(torch.sin)(torch.tensor(0.0))
        tensor(1.)
        >>> grad(grad(torch.sin))(torch.tensor(0.0))
        tensor(-0.)

    Source: torch.func.grad; reverse accumulation as in Griewank and Walther,
        "Evaluating Derivatives" (2008), chapter 3.
    """
    if taps is not None:
        transform = partial(grad, argnums=argnums, has_aux=has_aux)
        within = budgeted("grad", func, memory_budget)
        return with_taps("grad", transform, within, taps, has_aux)
    if not are_numbers(argnums):
        transform = partial(grad, has_aux=has_aux, memory_budget=memory_budget)
        return by_names("grad", transform, func, argnums)
    given = Grad("grad", budgeted("grad", func, memory_budget), argnums, has_aux)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if tracing_state.is_tracing():
            tracing_state.refuse_strict_export("grad")
            return torch_func.grad(func, argnums, has_aux)(*args, **kwargs)
        gradients, _, aux = _C.call_grad(given, args, kwargs)
        return (gradients, aux) if has_aux else gradients

    return transformed(func, wrapper)


def grad_and_value(
    func: Callable[..., Any],
    argnums: Argnums = 0,
    has_aux: bool = False,
    *,
    memory_budget: int | float | None = None,
    taps: Names | None = None,
) -> Callable[..., Any]:
    """Gradient of a scalar-valued function together with its value.

    Args and errors are those of :func:`grad`.

    Returns:
        A function with func's arguments that returns ``(gradients, value)``; with has_aux
        ``(gradients, (value, aux))``.
    Example:
        >>> grad_and_value(torch.square)(torch.tensor(3.0))
        (tensor(6.), tensor(9.))

    Source: torch.func.grad_and_value.
    """
    if taps is not None:
        transform = partial(grad_and_value, argnums=argnums, has_aux=has_aux)
        within = budgeted("grad_and_value", func, memory_budget)
        return with_taps("grad_and_value", transform, within, taps, True)
    if not are_numbers(argnums):
        transform = partial(grad_and_value, has_aux=has_aux, memory_budget=memory_budget)
        return by_names("grad_and_value", transform, func, argnums)
    given = Grad(
        "grad_and_value", budgeted("grad_and_value", func, memory_budget), argnums, has_aux
    )

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if tracing_state.is_tracing():
            tracing_state.refuse_strict_export("grad_and_value")
            return torch_func.grad_and_value(func, argnums, has_aux)(*args, **kwargs)
        gradients, value, aux = _C.call_grad(given, args, kwargs)
        return (gradients, (value, aux)) if has_aux else (gradients, value)

    return transformed(func, wrapper)


def vjp(
    func: Callable[..., Any],
    *primals: Any,
    has_aux: bool = False,
    memory_budget: int | float | None = None,
    taps: Names | None = None,
) -> Any:
    """Vector-Jacobian product: func's value, and the function that pulls cotangents back.

    Args:
        func: takes the primals; returns a tensor or a pytree of tensors, or
            ``(that, aux)`` with has_aux.
        primals: tensors or pytrees of tensors.
        has_aux: func returns a second value, which is passed through.
        memory_budget: as for :func:`grad`.
        taps: names of :func:`torchlayers.tap`, and paths of modules, whose values are outputs too:
            the output is then ``(output, {name: value})``, and so are the cotangents.
    Returns:
        ``(output, vjp_fn)``, or ``(output, vjp_fn, aux)`` with has_aux. ``vjp_fn(cotangents,
        retain_graph=True, create_graph=None)`` takes cotangents in the structure and shapes
        of the output, and returns a tuple: for each primal its cotangent, in its structure,
        shapes and dtypes. For a single output of one element None means 1. It can be called many
        times. ``create_graph`` is grad mode's state at the call where it is None.
    Raises:
        OutputError: func returned something else than floating-point or complex tensors.
        NotTensorError: a primal holds something else than tensors, or the cotangents do.
        DtypeError: a primal is neither floating-point nor complex.
        StructureError: the cotangents are not like the output.
        CallError: retain_graph or create_graph is neither a bool nor None.
        TapError: func has no value of a name among taps, or two.
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
        return torch_func.vjp(func, *primals, has_aux=has_aux)
    given = Grad("vjp", budgeted("vjp", func, memory_budget), None, has_aux)
    recorded, output, aux = _C.call_vjp(given, primals, False)

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
        except TransformError:
            raise
        except RuntimeError:
            _explain_cotangents(recorded.outputs, cotangents)
            raise

    vjp_fn.__qualname__ = "vjp_fn"  # which Python names where an argument is missing
    return (output, vjp_fn, aux) if has_aux else (output, vjp_fn)


def by_argnums(chosen: tuple[Any, ...], argnums: int | tuple[int, ...]) -> Any:
    """One argument's gradient, or the tuple of them, as the caller asked for it."""
    return chosen[0] if isinstance(argnums, int) else chosen


def refuse_cotangents(output: Any, cotangents: Any) -> None:
    """Raises what is wrong with cotangents that are not like the output."""
    outputs, spec = pytree.flatten(output)
    flat, cotangent_spec = pytree.flatten(cotangents)
    if cotangent_spec != spec:
        raise StructureError(
            "torchlayers: vjp: the cotangents must have the structure of the output: got "
            f"{pytree.describe(cotangent_spec)} for {pytree.describe(spec)} (* stands for a leaf)."
        )
    for i, (leaf, cotangent) in enumerate(zip(outputs, flat, strict=True)):
        if not isinstance(cotangent, Tensor):
            raise NotTensorError(
                f"torchlayers: vjp: cotangent {i} must be a tensor like its output, got "
                f"{type(cotangent).__name__}."
            )
        if cotangent.shape != leaf.shape:
            raise StructureError(
                f"torchlayers: vjp: cotangent {i} has shape {tuple(cotangent.shape)}, its output "
                f"{tuple(leaf.shape)}: they must be the same."
            )


def _explain_cotangents(outputs: list[Tensor], cotangents: Any) -> None:
    """Raises what is wrong where autograd has refused to pull the cotangents back."""
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
                f"{output.device}: they must be on one device."
            ) from None


def _check_flag(name: str, value: Any) -> None:
    if not isinstance(value, int):  # 0 and 1 will do
        raise CallError(
            f"torchlayers: vjp: {name} must be a bool or None, got {type(value).__name__}. vjp_fn "
            "takes one pytree of cotangents: where the function returned a tuple, pass a tuple, "
            "vjp_fn((a, b))."
        )
