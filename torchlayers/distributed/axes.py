"""Which axis a name means here: a vmap's, or a mesh dimension's. NOTE [Named axes]."""

import contextlib
import functools
import importlib
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

    AxisLike: TypeAlias = str | DeviceMesh


class Axis(NamedTuple):
    """What a collective runs along.

    ``keys`` are what the operators call it: a vmap's level, a process group's name. A batch that
    is spread over ranks has two, the samples here and the ranks. ``start`` is the place of the
    first of the samples here.
    """

    name: str
    size: int
    keys: tuple[str, ...]
    start: int = 0


class _Bound(threading.local):
    def __init__(self) -> None:
        self.axes: list[Axis] = []
        self.spread: list[Axis] = []  # over whose ranks a transform is at work
        self.some: list[tuple[int, ...]] = []  # vmaps of which some samples are in a branch


_bound = _Bound()


@contextlib.contextmanager
def bound(axis: Axis) -> Iterator[None]:
    """Inside, the name means this axis."""
    _bound.axes.append(axis)
    try:
        yield
    finally:
        _bound.axes.pop()


@contextlib.contextmanager
def checking() -> Iterator[None]:
    """Inside, each collective along ranks first makes sure that all ranks are at the same one.

    That goes for those of named axes and for torch's functional ones. What is compared is the
    collective's name, and its tensors' dtypes and shapes: in another small collective, which costs
    as much as a small one does. Without it the backends take for granted that they fit; where they
    don't, they hang until the timeout, abort the process, or return what was in memory.

    Returns:
        A context manager. Inside, where ranks differ, all of them raise a RuntimeError.
    Example:
        >>> from torchlayers.distributed import checking, psum
        >>> with checking():
        ...     torchlayers.vmap(lambda x: psum(x, "batch"), axis_name="batch")(torch.ones(3))
        tensor([3., 3., 3.])
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        comparing: Any = importlib.import_module("torchlayers.distributed.checked_collectives")
        with _C.ComparingRanks(), comparing.Comparing():
            yield
    else:
        yield


class SpreadOver:
    """A context manager: inside, the ranks of this axis have different samples."""

    def __init__(self, axis: Axis) -> None:
        self.axis = axis

    def __enter__(self) -> None:
        _bound.spread.append(self.axis)

    def __exit__(self, *error: object) -> None:
        _bound.spread.pop()


def naming_samples(
    func: Callable[..., Any], name: str, spread: Axis | None = None
) -> Callable[..., Any]:
    """func under a vmap whose samples are an axis of this name, spread over ranks or not."""

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
    """From here on what runs is for some of these vmaps' samples alone, until leave_branch."""
    _bound.some.append(levels)


def leave_branch() -> None:
    _bound.some.pop()


def _refuse_in_branch(axis: Axis, api: str) -> None:
    """Raises where not all of the axis take part, for what the others do is not this."""
    if api in ("axis_index", "axis_size"):
        return
    for levels in _bound.some:
        if any(not key.startswith("#") or int(key[1:]) in levels for key in axis.keys):
            raise TransformError(
                f"torchlayers: {api}: control flow on a batched predicate: not all of {axis.name!r}"
                " come to this branch or step, and the collective would wait for them, or miss "
                "them. Call it outside, and pass its result in."
            )


def resolve(axis: "AxisLike", api: str) -> Axis:
    """The axis of this name that was bound last, or a mesh's one dimension.

    Raises:
        AxisError: there is none.
        TransformError: a batched predicate decides who comes here.
    """
    found = _resolved(axis, api)
    if _bound.some:
        _refuse_in_branch(found, api)
    return found


def _resolved(axis: "AxisLike", api: str) -> Axis:
    if isinstance(axis, str):
        for each in reversed(_bound.axes):
            if each.name == axis:
                return each
        for mesh in reversed(_meshes()):
            if axis in (mesh.mesh_dim_names or ()):
                return of_mesh(mesh[axis])
        raise AxisError(
            f"torchlayers: {api}: no axis named {axis!r} is bound here. Bound are: "
            f"{', '.join(map(repr, _names())) or 'none'}. Name the samples with "
            f"vmap(..., axis_name={axis!r}), or a mesh's dimension in a `with mesh:` block."
        )
    if is_mesh(axis):
        return of_mesh(axis, api)
    raise AxisError(
        f"torchlayers: {api}: an axis is a name or a DeviceMesh of one dimension, got "
        f"{type(axis).__name__}."
    )


def is_mesh(value: Any) -> "TypeGuard[DeviceMesh]":
    module = sys.modules.get("torch.distributed.device_mesh")
    return module is not None and isinstance(value, module.DeviceMesh)


def of_mesh(mesh: "DeviceMesh", api: str = "an axis") -> Axis:
    """The axis of a mesh's one dimension."""
    if mesh.ndim != 1:
        names = ", ".join(map(repr, mesh.mesh_dim_names or ()))
        raise AxisError(
            f"torchlayers: {api}: an axis is one dimension of a mesh, and this one has "
            f"{mesh.ndim}. Take one of them, mesh[name]{f', of {names}' if names else ''}."
        )
    tell_autograd()
    key = str(mesh.get_group().group_name)
    name = mesh.mesh_dim_names[0] if mesh.mesh_dim_names else key
    if any(key in axis.keys for axis in _bound.spread):
        raise AxisError(
            f"torchlayers: {api}: the ranks of {name!r} have different samples here, as many as "
            "there are, for a transform outside is spread over them. Give its samples a name, "
            "vmap(..., mesh=..., axis_name=...), for a collective along all of them."
        )
    return Axis(name, mesh.size(), (key,))


@functools.cache
def tell_autograd() -> None:
    """Derivatives for plain autograd, which takes a moment, and samples need none."""
    importlib.import_module("torchlayers.distributed.autograd")


def _meshes() -> "list[DeviceMesh]":
    """The meshes of the `with mesh:` blocks that we are in."""
    module = sys.modules.get("torch.distributed.device_mesh")
    found: list[DeviceMesh] = getattr(getattr(module, "_mesh_resources", None), "mesh_stack", [])
    return found


def _names() -> list[str]:
    of_meshes = [name for mesh in _meshes() for name in mesh.mesh_dim_names or ()]
    return [*(axis.name for axis in _bound.axes), *of_meshes]
