"""Reverse mode: grad, grad_and_value and vjp.

All three do the same. A grad layer is entered; the arguments are wrapped at its
level, and those to differentiate by are tracked; the function runs, and autograd
records it at this level alone. What the function returned is then pulled back to
the tracked arguments: by grad at once, inside the layer; by vjp later, as often as
its second result is called.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._functorch import eager_transforms

from torchlayers import _C, compiled, steps, torch_func, tree
from torchlayers.errors import (
    CallError,
    DtypeError,
    NotScalarError,
    NotTensorError,
    OutputError,
    StructureError,
    instead,
)
from torchlayers.stack import GradEntry, transformed
from torchlayers.steps import Replaced

_torch: Any = torch  # what it keeps for its own use has no types
_eager_transforms: Any = eager_transforms
_no_modes = _torch._C.DisableTorchFunction


def grad(
    func: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Gradient of a scalar-valued function.

    Args:
        func: takes tensors and pytrees of tensors; returns a tensor without dimensions,
            or ``(that, aux)`` with has_aux.
        argnums: which positional arguments to differentiate by, counted as Python counts.
        has_aux: func returns a second value, which is passed through.
    Returns:
        A function with func's arguments that returns the gradients, in the structure of
        the chosen arguments, each of its argument's shape and dtype (a tuple of them where
        argnums is one); with has_aux ``(gradients, aux)``. An argument that func does not
        use has a gradient of zeros.
    Raises:
        NotScalarError: func returned something else than a real tensor without dimensions.
        NotTensorError: a chosen argument holds something else than tensors.
        DtypeError: a chosen tensor is neither floating-point nor complex.
        ArgnumsError: argnums fits the arguments not.
        OutputError: has_aux, and func did not return a pair.
    Example:
        >>> grad(torch.sin)(torch.tensor(0.0))
        tensor(1.)
        >>> grad(grad(torch.sin))(torch.tensor(0.0))
        tensor(-0.)

    Source: torch.func.grad; reverse accumulation as in Griewank and Walther,
        "Evaluating Derivatives" (2008), chapter 3.
    """

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if compiled.is_tracing():
            compiled.refuse_strict_export("grad")
            return torch_func.grad(func, argnums, has_aux)(*args, **kwargs)
        gradients, _, aux = _differentiate("grad", func, argnums, has_aux, args, kwargs)
        return (gradients, aux) if has_aux else gradients

    return transformed(func, wrapper)


def grad_and_value(
    func: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False
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

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if compiled.is_tracing():
            compiled.refuse_strict_export("grad_and_value")
            return torch_func.grad_and_value(func, argnums, has_aux)(*args, **kwargs)
        gradients, value, aux = _differentiate(
            "grad_and_value", func, argnums, has_aux, args, kwargs
        )
        return (gradients, (value, aux)) if has_aux else (gradients, value)

    return transformed(func, wrapper)


def vjp(func: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """Vector-Jacobian product: func's value, and the function that pulls cotangents back.

    Args:
        func: takes the primals; returns a tensor or a pytree of tensors, or
            ``(that, aux)`` with has_aux.
        primals: tensors or pytrees of tensors.
        has_aux: func returns a second value, which is passed through.
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
    Example:
        >>> output, vjp_fn = vjp(torch.sin, torch.tensor([0.0, 1.0]))
        >>> vjp_fn(torch.ones(2))
        (tensor([1.0000, 0.5403]),)

    Source: torch.func.vjp.
    """
    if compiled.is_tracing():
        compiled.refuse_strict_export("vjp")
        return torch_func.vjp(func, *primals, has_aux=has_aux)
    if compiled.is_exporting():
        recorded, aux = compiled.exported(record, "vjp", func, primals, None, has_aux)
    else:
        recorded, aux = record("vjp", func, primals, None, has_aux)
    outputs, output_spec = recorded.outputs, recorded.output_spec

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
        if cotangents is None and len(outputs) == 1 and outputs[0].numel() == 1:
            flat = [torch.ones_like(outputs[0])]
        else:
            flat, cotangent_spec = tree.flatten(cotangents)
            if cotangent_spec != output_spec:
                raise StructureError(
                    "torchlayers: vjp: the cotangents must have the structure of the output: got "
                    f"{tree.describe(cotangent_spec)} for {tree.describe(output_spec)} (* stands "
                    "for a leaf)."
                )
            _check_cotangents(outputs, flat)
        gradients = recorded.pull_back(flat, retain_graph, create_graph)
        return tree.unflatten(gradients, recorded.primal_spec)

    vjp_fn.__qualname__ = "vjp_fn"  # which Python names where an argument is missing
    output = tree.unflatten(recorded.values, output_spec)
    return (output, vjp_fn, aux) if has_aux else (output, vjp_fn)


@dataclasses.dataclass
class Recorded:
    """A function that has run under a grad layer, and can be pulled back.

    Leaves are told apart by their places, never put into the user's pytrees for that: these may
    drop or refuse what is not there.
    """

    api: str
    outputs: list[Tensor]  # at the layer's level
    values: list[Tensor]  # what they hold
    output_spec: tree.TreeSpec
    tracked: list[Tensor]
    primal_spec: tree.TreeSpec  # of the chosen primals, as a tuple
    row: list[Tensor] | None = None  # the gradients of an only output, where they are known

    def pull_back(
        self, cotangents: Sequence[Tensor | None], retain_graph: bool, create_graph: bool
    ) -> list[Tensor]:
        """The gradients by the chosen primals' leaves. An output may have no cotangent."""
        if self.row is not None:
            return self.row
        if compiled.is_exporting():
            return compiled.exported(self.pull_back, cotangents, retain_graph, create_graph)
        pairs = zip(self.outputs, cotangents, strict=True)
        pulled = [(output, given) for output, given in pairs if given is not None]
        outputs, given = [output for output, _ in pulled], [given for _, given in pulled]
        try:
            return _pull_back(
                outputs, self.tracked, given, retain_graph, create_graph, in_layer=False
            )
        except RuntimeError:
            _explain_cotangents(self.api, outputs, given)
            raise


def record(
    api: str,
    func: Callable[..., Any],
    primals: tuple[Any, ...],
    argnums: int | tuple[int, ...] | None,
    has_aux: bool,
    for_rows: bool = False,
) -> tuple[Recorded, Any]:
    """The function, run to be pulled back to some of the primals, or all of them; and its aux.

    For the rows of a Jacobian, an output without dimensions has one: it is pulled back here, as
    grad does it, so that no graph is kept.
    """
    everything = tuple(range(len(primals)))
    places = everything if argnums is None else tree.positions(api, argnums, len(primals))
    replaced = steps.replaced(steps.GRAD)
    with GradEntry() as level:
        args, tracked, spec = _wrap(api, primals, places, level, replaced)
        output = func(*args)
        output, aux = tree.split_aux(api, output) if has_aux else (output, None)
        outputs, output_spec = tree.flatten(output)
        _check_outputs(api, outputs)
        row = None
        if for_rows and _is_real_scalar(output):
            gradients = _pull_back(
                outputs, tracked, [], retain_graph=False, create_graph=True, in_layer=True
            )
            row = steps.unwrap_leaves(gradients, level, replaced)
        values = steps.unwrap_leaves(outputs, level, replaced)
        aux = steps.unwrap(aux, level, replaced)
    return Recorded(api, outputs, values, output_spec, tracked, spec, row), aux


def _differentiate(
    api: str,
    func: Callable[..., Any],
    argnums: int | tuple[int, ...],
    has_aux: bool,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[Any, Any, Any]:
    """(gradients, value, aux) of a scalar-valued function."""
    if not (has_aux or kwargs):
        result = _C.call_grad(func, args, argnums, partial(_gradients, api))
        if result is not NotImplemented:
            return (*result, None)
    if compiled.is_exporting():
        return compiled.exported(_differentiate, api, func, argnums, has_aux, args, kwargs)
    places = tree.positions(api, argnums, len(args))
    replaced = steps.replaced(steps.GRAD)
    with GradEntry() as level:
        wrapped, tracked, spec = _wrap(api, args, places, level, replaced)
        if kwargs:
            kwargs = steps.wrap(kwargs, level, replaced)
        value = func(*wrapped, **kwargs)
        value, aux = tree.split_aux(api, value) if has_aux else (value, None)
        gradients = _gradients(api, func, value, tracked)
        chosen = tree.unflatten(steps.unwrap_leaves(gradients, level, replaced), spec)
        value = steps.unwrap(value, level, replaced)
        aux = steps.unwrap(aux, level, replaced)
    return by_argnums(chosen, argnums), value, aux


def by_argnums(chosen: tuple[Any, ...], argnums: int | tuple[int, ...]) -> Any:
    """One argument's gradient, or the tuple of them, as the caller asked for it."""
    return chosen[0] if isinstance(argnums, int) else chosen


def _gradients(
    api: str, func: Callable[..., Any], value: Any, tracked: list[Tensor]
) -> list[Tensor]:
    """The gradients of what the function returned, if that is a scalar; inside the layer."""
    _check_scalar(api, func, value)
    try:
        return _pull_back(
            [value], tracked, [], retain_graph=False, create_graph=True, in_layer=True
        )
    except RuntimeError:
        _explain_complex(api, func, value)
        raise


def _wrap(
    api: str,
    args: tuple[Any, ...],
    places: tuple[int, ...],
    level: int,
    replaced: Replaced,
) -> tuple[tuple[Any, ...], list[Tensor], tree.TreeSpec]:
    """The arguments at the layer's level; the tracked leaves of the chosen ones, and their spec."""
    flat, spec = tree.flatten(tree.pick(args, places))
    for leaf in flat:
        _check_differentiable(api, args, places, leaf)
    if not replaced:
        tracked = [_C.wrap_argument(leaf, True) for leaf in flat]
        rest = tuple(
            None if i in places else steps.wrap(arg, level, replaced) for i, arg in enumerate(args)
        )
        return tree.replace(rest, places, tree.unflatten(tracked, spec)), tracked, spec
    wrapped = steps.wrap(args, level, replaced)
    tracked, spec = tree.flatten(tree.pick(wrapped, places))
    for leaf in tracked:
        _eager_transforms._create_differentiable(leaf, level)
    return wrapped, tracked, spec


def _check_differentiable(
    api: str, args: tuple[Any, ...], places: tuple[int, ...], leaf: Any
) -> None:
    if not isinstance(leaf, Tensor):
        raise NotTensorError(
            f"torchlayers: {api}: {_name(args, places, leaf)} must be a tensor to differentiate "
            f"by it, got {type(leaf).__name__} ({leaf!r}). Make it one, or {instead(api)}."
        )
    if not (leaf.is_floating_point() or leaf.is_complex()):
        raise DtypeError(
            f"torchlayers: {api}: can't differentiate by {_name(args, places, leaf)}, of dtype "
            f"{leaf.dtype}: only floating-point and complex tensors have gradients. Convert it, "
            f"or {instead(api)}."
        )


def _name(args: tuple[Any, ...], places: tuple[int, ...], leaf: Any) -> str:
    flat = tree.leaves(tree.pick(args, places))
    index = next(i for i, other in enumerate(flat) if other is leaf)
    return tree.leaf_name("argument", args, index, places)


def _check_scalar(api: str, func: Callable[..., Any], value: Any) -> None:
    if not isinstance(value, Tensor):
        raise NotScalarError(
            f"torchlayers: {api}: {tree.name_of(func)} must return a tensor without dimensions, "
            f"got {type(value).__name__}. With has_aux=True it may return (tensor, anything)."
        )
    if value.dim() != 0:
        raise NotScalarError(
            f"torchlayers: {api}: {tree.name_of(func)} must return a tensor without dimensions, "
            f"got shape {tuple(value.shape)}. Sum or average it, or use vjp or jacrev."
        )


def _is_real_scalar(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() == 0 and not value.is_complex()


def _explain_complex(api: str, func: Callable[..., Any], value: Tensor) -> None:
    """Raises what is wrong where autograd has refused to pull a complex value back."""
    if value.is_complex():
        raise NotScalarError(
            f"torchlayers: {api}: {tree.name_of(func)} must return a real tensor, got "
            f"{value.dtype}. Take .real or .abs()."
        ) from None


def _check_outputs(api: str, outputs: list[Any]) -> None:
    tree.check_outputs(api, outputs)
    for output in outputs:
        if not (output.is_floating_point() or output.is_complex()):
            raise OutputError(
                f"torchlayers: {api}: All outputs of f must be floating-point or complex Tensors, "
                f"got Tensor with dtype {output.dtype}. Return it as aux with has_aux=True."
            )


def _check_cotangents(outputs: list[Tensor], cotangents: list[Any]) -> None:
    for i, (output, cotangent) in enumerate(zip(outputs, cotangents, strict=True)):
        if not isinstance(cotangent, Tensor):
            raise NotTensorError(
                f"torchlayers: vjp: cotangent {i} must be a tensor like its output, got "
                f"{type(cotangent).__name__}."
            )
        if cotangent.shape != output.shape:
            raise StructureError(
                f"torchlayers: vjp: cotangent {i} has shape {tuple(cotangent.shape)}, its output "
                f"{tuple(output.shape)}: they must be the same."
            )


def _explain_cotangents(api: str, outputs: list[Tensor], cotangents: list[Tensor]) -> None:
    """Raises what is wrong where autograd has refused to pull the cotangents back."""
    for i, (output, cotangent) in enumerate(zip(outputs, cotangents, strict=True)):
        if not output.requires_grad:
            continue
        if cotangent.is_complex() != output.is_complex():
            raise StructureError(
                f"torchlayers: {api}: cotangent {i} is {cotangent.dtype}, its output "
                f"{output.dtype}: both must be real, or both complex."
            ) from None
        if cotangent.device != output.device:
            raise StructureError(
                f"torchlayers: {api}: cotangent {i} is on {cotangent.device}, its output on "
                f"{output.device}: they must be on one device."
            ) from None


def _check_flag(name: str, value: Any) -> None:
    if not isinstance(value, int):  # 0 and 1 will do
        raise CallError(
            f"torchlayers: vjp: {name} must be a bool or None, got {type(value).__name__}. vjp_fn "
            "takes one pytree of cotangents: where the function returned a tuple, pass a tuple, "
            "vjp_fn((a, b))."
        )


def _pull_back(
    outputs: list[Tensor],
    inputs: list[Tensor],
    cotangents: list[Tensor],
    retain_graph: bool,
    create_graph: bool,
    in_layer: bool,
) -> list[Tensor]:
    """The gradients by the inputs: zeros where no output depends on one."""
    if _C.replaced_steps(steps.GRAD) and "_autograd_grad" in steps.replaced(steps.GRAD):
        pull = _eager_transforms._autograd_grad
        return list(pull(outputs, inputs, cotangents or None, retain_graph, create_graph))
    connected = [i for i, output in enumerate(outputs) if output.requires_grad]
    if not connected:
        return [torch.zeros_like(leaf) for leaf in inputs]
    # A mode of the user's must not see what torch's formulas in Python call.
    with _no_modes() if _torch._C._len_torch_function_stack() else contextlib.nullcontext():
        gradients = _C.pull_back(
            [outputs[i] for i in connected],
            inputs,
            [cotangents[i] for i in connected] if cotangents else [],
            retain_graph,
            create_graph,
            in_layer,
        )
    return [
        torch.zeros_like(leaf) if gradient is None else gradient
        for gradient, leaf in zip(gradients, inputs, strict=True)
    ]
