"""Reads the ``dynamic`` argument of export: which sizes of which arguments may differ at calls."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torchlayers.core import pytree
from torchlayers.core.errors import StructureError

# One entry of torch.export's dynamic_shapes for each tensor among the arguments, in order.
DimsOfTensor = dict[int, Any]


def dynamic_dims(
    func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], dynamic: Any
) -> list[DimsOfTensor]:
    """Returns the dynamic dimensions of each tensor among the arguments.

    Args:
        func: the function, for the names of its arguments.
        args, kwargs: its arguments.
        dynamic: as torch.export's dynamic_shapes: by name or position of an argument, a pytree like
            the argument with a dict or a sequence for each tensor, whose values are
            torch.export.Dim, its hints (Dim.AUTO), names of dimensions, or None.
    Raises:
        StructureError: an entry of dynamic matches no argument.
    """
    dims = _DimReader()
    named = _by_name(func, args, kwargs)
    if dynamic is None:
        specs = dict.fromkeys(named)
    elif isinstance(dynamic, Mapping):
        if unknown := [name for name in dynamic if name not in named]:
            raise StructureError(
                f"torchlayers: export: dynamic names {unknown[0]!r}, and the arguments are "
                f"{', '.join(named)}."
            )
        specs = {name: dynamic.get(name) for name in named}
    else:
        if len(dynamic) != len(named):
            raise StructureError(
                f"torchlayers: export: dynamic has {len(dynamic)} entries for {len(named)} "
                "arguments. Pass one for each, None where all sizes are fixed."
            )
        specs = dict(zip(named, dynamic, strict=True))
    return [
        of_tensor
        for name, argument in named.items()
        for of_tensor in dims.of_argument(name, argument, specs[name])
    ]


def _by_name(
    func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments by name, in the order of the leaves of ``(args, kwargs)``."""
    try:
        parameters = [*inspect.signature(func).parameters.values()]
    except (TypeError, ValueError):
        parameters = []
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    names = [*names[: len(args)], *(f"arg_{i}" for i in range(len(names), len(args)))]
    return {**dict(zip(names, args, strict=True)), **kwargs}


class _DimReader:
    """Reads the entries for single arguments; one name is one Dim for all of them."""

    def __init__(self) -> None:
        self._named: dict[str, Any] = {}

    def of_argument(self, name: str, argument: Any, spec: Any) -> list[DimsOfTensor]:
        if isinstance(argument, Tensor):
            return [self._of_tensor(name, argument, spec)]
        inner, _ = pytree.tree_flatten(argument, lambda tree: tree is not argument)
        if not inner or inner == [argument]:
            return []
        if spec is None:
            specs: list[Any] = [None] * len(inner)
        elif isinstance(argument, Mapping) and isinstance(spec, Mapping):
            specs = [spec.get(key) for key in argument]
        elif isinstance(spec, Sequence) and len(spec) == len(inner):
            specs = [*spec]
        else:
            raise StructureError(
                f"torchlayers: export: dynamic has {spec!r} for {name}, which is a "
                f"{type(argument).__name__} of {len(inner)}. Pass an entry for each of them."
            )
        return [
            dims
            for i, (one, of_one) in enumerate(zip(inner, specs, strict=True))
            for dims in self.of_argument(f"{name}[{i}]", one, of_one)
        ]

    def _of_tensor(self, name: str, tensor: Tensor, spec: Any) -> DimsOfTensor:
        if spec is None:
            return {}
        is_usable = isinstance(spec, (Mapping, Sequence)) and not isinstance(spec, str)
        entries = (
            [*(spec.items() if isinstance(spec, Mapping) else enumerate(spec))] if is_usable else []
        )
        if not is_usable or any(not -tensor.dim() <= dim < tensor.dim() for dim, _ in entries):
            raise StructureError(
                f"torchlayers: export: dynamic has {spec!r} for {name}, a tensor of "
                f"{tensor.dim()} dimensions. Pass a dict of dimensions, such as {{0: 'batch'}}."
            )
        return {
            dim % tensor.dim(): self._dim(size)
            for dim, size in entries
            if size is not None and size is not torch.export.Dim.STATIC
        }

    def _dim(self, size: Any) -> Any:
        if not isinstance(size, str):
            return size
        if size not in self._named:
            self._named[size] = torch.export.Dim(size)
        return self._named[size]
