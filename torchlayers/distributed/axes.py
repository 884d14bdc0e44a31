"""Resolves axis names to axes: the samples of a vmap, or a mesh dimension. NOTE [Named axes]."""

import contextlib
import functools
import importlib
import math
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeGuard

import torch

from torchlayers import _C
from torchlayers.core.errors import AxisError, TransformError
from torchlayers.core.layer_stack import current_stack

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    OneAxis: TypeAlias = str | DeviceMesh
    AxisLike: TypeAlias = OneAxis | tuple[OneAxis, ...]


class Axis(NamedTuple):
    """An axis for collectives to run along.

    ``keys`` identify it to the operators: a vmap's level, a process group's name. A batch that is
    spread over ranks has two, for the samples on this rank and for the ranks. ``start`` is the
    index in the batch of this rank's first sample.
    """

    name: str
    size: int
    keys: tuple[str, ...]
    start: int = 0


class _Bound(threading.local):
    def __init__(self) -> None:
        self.axes: list[Axis] = []
        self.spread: list[Axis] = []  # axes over whose ranks a transform is spread
        self.some: list[tuple[int, ...]] = []  # levels of vmaps, some of whose samples run a branch


_bound = _Bound()


@contextlib.contextmanager
def bound(axis: Axis) -> Iterator[None]:
    """Binds the axis to its name inside the block."""
    _bound.axes.append(axis)
    try:
        yield
    finally:
        _bound.axes.pop()


@contextlib.contextmanager
def checking() -> Iterator[None]:
    """Checks before each collective over ranks in the block that all ranks call the same one.

    This covers collectives along named axes and torch's functional collectives. The name of the
    collective and the dtypes and shapes of its tensors are compared, in a further small collective.
    Without the check, backends assume that calls match; where they don't, they hang until the
    timeout, abort the process, or return uninitialized memory.

    Returns:
        A context manager. Inside, if ranks differ, all of them raise a RuntimeError.
    Example:
        >>> from torchlayers.distributed import checking, psum
        >>> with checking():
        ...     torchlayers.vmap(lambda x: psum(x, "batch"), axis_name="batch")(torch.ones(3))
        tensor([3., 3., 3.])
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        comparing: Any = importlib.import_module("torchlayers.distributed.checked_collectives")
        with _C.ComparingRanks(), comparing.CheckedCollectivesMode():
            yield
    else:
        yield


class SpreadOver:
    """Context manager for code in which each rank of this axis has its own part of the samples."""

    def __init__(self, axis: Axis) -> None:
        self.axis = axis

    def __enter__(self) -> None:
        _bound.spread.append(self.axis)

    def __exit__(self, *error: object) -> None:
        _bound.spread.pop()


def naming_samples(
    func: Callable[..., Any], name: str, spread: Axis | None = None
) -> Callable[..., Any]:
    """Wraps func, called under a vmap, to bind the vmap's samples to an axis of this name.

    With `spread` the axis extends over the samples of all ranks.
    """

    @functools.wraps(func)
    def named(*args: Any, **kwargs: Any) -> Any:
        vmap = current_stack()[-1]
        key = f"#{vmap.level}"
        if spread is None:
            axis = Axis(name, vmap.metadata["batch_size"], (key,))
        else:
            axis = spread._replace(name=name, keys=(key, *spread.keys))
        with bound(axis):
            return func(*args, **kwargs)

    return named


def enter_branch(levels: tuple[int, ...]) -> None:
    """Marks code until leave_branch as run by only some samples of the vmaps at these levels."""
    _bound.some.append(levels)


def leave_branch() -> None:
    _bound.some.pop()


def _refuse_in_branch(axis: Axis, api: str) -> None:
    """Raises if some samples or ranks of the axis may not reach this collective."""
    if api in ("axis_index", "axis_size"):
        return
    for levels in _bound.some:
        if any(not key.startswith("#") or int(key[1:]) in levels for key in axis.keys):
            raise TransformError(
                f"torchlayers: {api}: inside control flow on a batched predicate, not all members "
                f"of {axis.name!r} reach this branch or step, so the collective would wait for "
                "them or leave them out. Call it outside, and pass the result in."
            )


def resolve(axis: "AxisLike", api: str) -> Axis:
    """Returns the axis bound last to this name, or that of a one-dimensional mesh; of a tuple of
    these, the axis of all of them, the last varying fastest.

    Raises:
        AxisError: there is none.
        TransformError: inside a branch or loop on a batched predicate, not all take part.
    """
    if isinstance(axis, tuple):
        axes_of_name = _product([resolve(one, api) for one in axis], api)
    else:
        axes_of_name = _resolved(axis, api)
    if _bound.some:
        _refuse_in_branch(axes_of_name, api)
    return axes_of_name


def _product(axes: list[Axis], api: str) -> Axis:
    keys = [key for axis in axes for key in axis.keys]
    if not axes or len({*keys}) < len(keys):
        raise AxisError(
            f"torchlayers: {api}: a tuple of axes has at least one, and each of them once, got "
            f"{tuple(axis.name for axis in axes)}."
        )
    name = ", ".join(axis.name for axis in axes)
    return Axis(name, math.prod(axis.size for axis in axes), tuple(keys))


def _resolved(axis: "OneAxis", api: str) -> Axis:
    if isinstance(axis, str):
        for bound in reversed(_bound.axes):
            if bound.name == axis:
                return bound
        for mesh in reversed(_meshes()):
            if axis in (mesh.mesh_dim_names or ()):
                return of_mesh(mesh[axis])
        raise AxisError(
            f"torchlayers: {api}: no axis named {axis!r} is bound here. Bound axes: "
            f"{', '.join(map(repr, _names())) or 'none'}. Name the samples with vmap(..., "
            f"axis_name={axis!r}), or a mesh's dimension in a `with mesh:` block."
        )
    if is_mesh(axis):
        return of_mesh(axis, api)
    raise AxisError(
        f"torchlayers: {api}: an axis is a name, a DeviceMesh of one dimension or a tuple of "
        f"these, got {type(axis).__name__}."
    )


def is_mesh(value: Any) -> "TypeGuard[DeviceMesh]":
    module = sys.modules.get("torch.distributed.device_mesh")
    return module is not None and isinstance(value, module.DeviceMesh)


def of_mesh(mesh: "DeviceMesh", api: str = "an axis") -> Axis:
    """Returns the axis of a one-dimensional mesh."""
    if mesh.ndim != 1:
        names = ", ".join(map(repr, mesh.mesh_dim_names or ()))
        raise AxisError(
            f"torchlayers: {api}: an axis is one dimension of a mesh, but this mesh has "
            f"{mesh.ndim}. Select one with mesh[name]{f', from {names}' if names else ''}."
        )
    tell_autograd()
    key = str(mesh.get_group().group_name)
    name = mesh.mesh_dim_names[0] if mesh.mesh_dim_names else key
    if any(key in axis.keys for axis in _bound.spread):
        raise AxisError(
            f"torchlayers: {api}: an enclosing transform is spread over the ranks of {name!r}, "
            "which hold different samples here. For a collective along all samples, name them: "
            "vmap(..., mesh=..., axis_name=...)."
        )
    return Axis(name, mesh.size(), (key,))


@functools.cache
def tell_autograd() -> None:
    """Registers derivatives with plain autograd. On demand, as it is slow and axes of samples do
    not need it."""
    importlib.import_module("torchlayers.distributed.autograd")


def _meshes() -> "list[DeviceMesh]":
    """Returns the meshes of the enclosing `with mesh:` blocks."""
    module = sys.modules.get("torch.distributed.device_mesh")
    stack: list[DeviceMesh] = getattr(getattr(module, "_mesh_resources", None), "mesh_stack", [])
    return stack


def _names() -> list[str]:
    of_meshes = [name for mesh in _meshes() for name in mesh.mesh_dim_names or ()]
    return [*(axis.name for axis in _bound.axes), *of_meshes]
