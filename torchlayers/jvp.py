"""Forward mode: jvp.

A jvp layer is entered; each primal is made a dual number of its tangent at the
layer's level; the function runs on the duals, and its results are split again into
values and tangents.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, cast

import torch
from torch import Tensor
from torch._functorch import eager_transforms
from torch.autograd import forward_ad

from torchlayers import _C, compiled, steps, torch_func, tree
from torchlayers.errors import DtypeError, NotTensorError, OutputError, StructureError, instead
from torchlayers.stack import JvpEntry
from torchlayers.steps import Replaced

_eager_transforms: Any = eager_transforms
# Some of torch's tangent formulas are decompositions in Python, registered by an import.
_load_decompositions = cache(cast(Any, forward_ad)._maybe_load_decompositions)


def jvp(
    func: Callable[..., Any],
    primals: tuple[Any, ...],
    tangents: tuple[Any, ...],
    *,
    strict: bool = False,
    has_aux: bool = False,
) -> Any:
    """Jacobian-vector product: func's value, and its derivative along the tangents.

    Args:
        func: takes the primals; returns a tensor or a pytree of tensors, or
            ``(that, aux)`` with has_aux.
        primals: a tuple of tensors or pytrees of tensors: func's positional arguments.
        tangents: of the primals' structure, shapes and dtypes.
        strict: refuse an output that does not depend on the primals, instead of giving it
            a tangent of zeros.
        has_aux: func returns a second value, which is passed through.
    Returns:
        ``(output, output_tangents)``, both in the structure of func's output; with has_aux
        ``(output, output_tangents, aux)``.
    Raises:
        StructureError: primals are not a tuple, or tangents are not like them; or a primal is
            expanded, and its tangent is not.
        NotTensorError: a primal or a tangent holds something else than tensors.
        OutputError: func returned something else than tensors; or strict, and an output is
            independent of the primals.
        DtypeError: a primal or tangent is neither floating-point nor complex, or func can't
            compute with their two dtypes.
    Example:
        >>> jvp(torch.sin, (torch.tensor(0.0),), (torch.tensor(2.0),))
        (tensor(0.), tensor(2.))

    Source: torch.func.jvp; forward accumulation as in Griewank and Walther, "Evaluating
        Derivatives" (2008), chapter 3.
    """
    if compiled.is_tracing():
        return torch_func.jvp(func, primals, tangents, strict=strict, has_aux=has_aux)
    output, output_tangents, aux = jvp_by_argnums(
        "jvp", func, primals, tangents, None, strict, has_aux
    )
    return (output, output_tangents, aux) if has_aux else (output, output_tangents)


def jvp_by_argnums(
    api: str,
    func: Callable[..., Any],
    primals: tuple[Any, ...],
    tangents: Any,
    argnums: int | tuple[int, ...] | None,
    strict: bool,
    has_aux: bool,
) -> tuple[Any, Any, Any]:
    """jvp along tangents for some of the primals, as a tuple; for all where argnums is None."""
    if not isinstance(primals, tuple):
        raise StructureError(
            f"torchlayers: {api}: primals must be a tuple, so that func(*primals) can be called; "
            f"got {type(primals).__name__}. For one argument write (x,)."
        )
    everything = tuple(range(len(primals)))
    places = everything if argnums is None else tree.positions(api, argnums, len(primals))
    if places == everything and not (strict or has_aux):
        _load_decompositions()
        try:
            result = _C.call_jvp(func, primals, tangents, partial(_split_all, api))
        except RuntimeError as error:
            leaves, others = tree.leaves(primals), tree.leaves(tangents)
            _explain(error, api, primals, places, leaves, others)
            raise
        if result is not NotImplemented:
            return (*result, None)
    if compiled.is_exporting():
        return compiled.exported(
            jvp_by_argnums, api, func, primals, tangents, argnums, strict, has_aux
        )
    flat_primals, spec = tree.flatten(tree.pick(primals, places))
    flat_tangents, tangent_spec = tree.flatten(tangents)
    if spec != tangent_spec:
        raise StructureError(
            f"torchlayers: {api}: tangents must have the structure of the primals: got "
            f"{tree.describe(tangent_spec)} for {tree.describe(spec)} (* stands for a leaf)."
        )
    _check_pairs(api, primals, places, flat_primals, flat_tangents)
    return jvp_of_leaves(
        api, func, primals, places, flat_primals, spec, flat_tangents, strict, has_aux
    )


def jvp_of_leaves(
    api: str,
    func: Callable[..., Any],
    primals: tuple[Any, ...],
    places: tuple[int, ...],
    flat_primals: list[Tensor],
    spec: tree.TreeSpec,
    flat_tangents: Sequence[Tensor | None],
    strict: bool,
    has_aux: bool,
) -> tuple[Any, Any, Any]:
    """jvp along the leaves of tangents for the primals at these places, whose leaves are given.

    A primal may have no tangent. The user's pytrees, which may drop or refuse what is not there,
    never see that.
    """
    _load_decompositions()
    replaced = steps.replaced(steps.JVP)
    with JvpEntry() as level:
        rest = primals
        if len(places) < len(primals):
            rest = steps.wrap(
                tuple(None if i in places else primal for i, primal in enumerate(primals)),
                level,
                replaced,
            )
        try:
            flat_duals = [
                steps.wrap(p, level, replaced) if t is None else _make_dual(p, t, replaced)
                for p, t in zip(flat_primals, flat_tangents, strict=True)
            ]
            output = func(*tree.replace(rest, places, tree.unflatten(flat_duals, spec)))
        except RuntimeError as error:
            given = [
                primal if tangent is None else tangent
                for primal, tangent in zip(flat_primals, flat_tangents, strict=True)
            ]
            _explain(error, api, primals, places, flat_primals, given)
            raise
        aux = None
        if has_aux:
            output, aux = tree.split_aux(api, output)
            aux = steps.unwrap(aux, level, replaced)
        values, output_tangents = _split_all(api, output, level, strict, replaced)
    return values, output_tangents, aux


def _make_dual(primal: Tensor, tangent: Tensor, replaced: Replaced) -> Tensor:
    if make := replaced.get("make_dual"):
        return cast(Tensor, make(primal, tangent, level=0))
    if type(primal) is Tensor:
        return _C.make_dual(primal, tangent)
    dual: Tensor = torch._VF._make_dual(primal, tangent, level=0)
    return dual  # of primal's class, if that asks for it by __torch_function__


def _split_all(
    api: str,
    output: Any,
    level: int,
    strict: bool = False,
    replaced: Replaced = steps.NONE,
) -> tuple[Any, Any]:
    """What the function returned, as values and as tangents; inside the layer."""
    outputs, spec = tree.flatten(output)
    tree.check_outputs(api, outputs)
    pairs = [_split(i, dual, level, strict, replaced) for i, dual in enumerate(outputs)]
    values, tangents = zip(*pairs, strict=True)
    return tree.unflatten(values, spec), tree.unflatten(tangents, spec)


def _split(
    i: int, dual: Tensor, level: int, strict: bool, replaced: Replaced
) -> tuple[Tensor, Tensor]:
    if replaced:
        pair = _eager_transforms.safe_unpack_dual(dual, strict)
        return steps.unwrap(pair[0], level, replaced), steps.unwrap(pair[1], level, replaced)
    primal, tangent = _C.split_dual(dual, level)
    if tangent is None:
        if strict:
            raise OutputError(
                f"torchlayers: jvp: output {i} is independent of the primals, which strict=True "
                "refuses. Without strict it has a tangent of zeros."
            )
        tangent = _C.unwrap(torch.zeros_like(dual), level)
    return primal, tangent


def _check_pairs(
    api: str,
    args: tuple[Any, ...],
    places: tuple[int, ...],
    primals: list[Any],
    tangents: list[Any],
) -> None:
    if not primals:
        raise StructureError(f"torchlayers: {api}: primals must hold at least one tensor.")
    for kind, leaves in (("primal", primals), ("tangent", tangents)):
        for i, leaf in enumerate(leaves):
            if not isinstance(leaf, Tensor):
                advice = (
                    f"Make it one, or {instead(api)}."
                    if kind == "primal"
                    else "Give zeros of its primal's shape (torch.zeros_like)."
                )
                raise NotTensorError(
                    f"torchlayers: {api}: {_name(api, kind, args, places, i)} must be a tensor, "
                    f"got {type(leaf).__name__}. {advice}"
                )
            if not (leaf.is_floating_point() or leaf.is_complex()):
                advice = (
                    f"Convert it, or {instead(api)}."
                    if kind == "primal"
                    else "Convert it to its primal's dtype."
                )
                raise DtypeError(
                    f"torchlayers: {api}: {_name(api, kind, args, places, i)} must be "
                    f"floating-point or complex, got {leaf.dtype}. {advice}"
                )
    for i, (primal, tangent) in enumerate(zip(primals, tangents, strict=True)):
        if primal.shape != tangent.shape:
            raise StructureError(
                f"torchlayers: {api}: {_name(api, 'tangent', args, places, i)} has shape "
                f"{tuple(tangent.shape)}, its primal {tuple(primal.shape)}: they must be the same."
            )


def _explain(
    error: RuntimeError,
    api: str,
    args: tuple[Any, ...],
    places: tuple[int, ...],
    primals: list[Tensor],
    tangents: list[Tensor],
) -> None:
    """Raises what is wrong where torch failed because of a tangent unlike its primal.

    Most operators take a tangent of another dtype, and some take one on another device. So
    neither is refused before an operator fails.
    """
    if type(error) is not RuntimeError:  # torch's own, and no kind that the user made
        return
    text = str(error)
    for i, (primal, tangent) in enumerate(zip(primals, tangents, strict=True)):
        if "written-to tensor" in text and 0 in primal.stride():
            raise StructureError(
                f"torchlayers: {api}: {_name(api, 'primal', args, places, i)} is expanded: its "
                "elements share memory, and those of its tangent don't. Pass its clone()."
            ) from error
        if "device" in text and tangent.device != primal.device:
            raise StructureError(
                f"torchlayers: {api}: {_name(api, 'tangent', args, places, i)} is on "
                f"{tangent.device}, its primal on {primal.device}: they must be on one device."
            ) from error
        if "type" in text and tangent.dtype != primal.dtype:
            raise DtypeError(
                f"torchlayers: {api}: {_name(api, 'tangent', args, places, i)} is "
                f"{tangent.dtype}, its primal {primal.dtype}, and the function needs one dtype."
            ) from error


def _name(api: str, kind: str, args: tuple[Any, ...], places: tuple[int, ...], i: int) -> str:
    """What errors call a primal or tangent, which others than jvp's own callers did not give."""
    return tree.leaf_name(kind if api == "jvp" else "argument", args, i, places)
