"""pure_callback and io_callback: Python functions in transforms and compiled functions."""

import contextlib
import dis
import functools
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd import forward_ad

from torchlayers.control_flow.checks import check_choice
from torchlayers.control_flow.debug import subset_modes
from torchlayers.control_flow.traced.dispatch import any_recorded
from torchlayers.core import pytree, tracing_state
from torchlayers.core.errors import StructureError, TransformError, location
from torchlayers.core.function_checks import check_function
from torchlayers.core.tensors.shape_dtype import ShapeDtypeStruct
from torchlayers.core.torch_private import (
    FakeTensor,
    dual_level,
    functorch,
    is_batched_wrapper,
    is_wrapped,
)
from torchlayers.fx import callbacks, debug_ops
from torchlayers.fx.callbacks import CallbackSpec
from torchlayers.fx.cse import hashable
from torchlayers.fx.recomputation import is_capturing

VmapMethod = Literal["sequential", "expand_dims", "broadcast_all"]
_METHODS = ("sequential", "expand_dims", "broadcast_all")


@tracing_state.skipped_while_tracing
def pure_callback(
    f: Callable[..., Any],
    result_like: Any,
    *args: Any,
    vmap_method: VmapMethod = "sequential",
    **kwargs: Any,
) -> Any:
    """Calls any Python code, such as NumPy's or SciPy's, in transforms and compiled functions.

    f runs on plain tensors below all transforms, and in a compiled function at each call. It has no
    side effects: it may be called more or less often than the program says. It has no derivative
    by itself: call it in a function with :class:`custom_jvp` or :class:`custom_vjp`.

    Args:
        f: takes the arguments; returns tensors, NumPy arrays or numbers in the structure of
            result_like, of those shapes and dtypes. It does not write to its arguments. Its errors
            reach the caller as they are.
        result_like: the results' shapes, dtypes and devices: a pytree of
            :class:`ShapeDtypeStruct`, or of tensors like them.
        args, kwargs: pytrees of tensors and of other values.
        vmap_method: what :func:`vmap` does. ``"sequential"``: it calls f for each sample.
            ``"expand_dims"``: it calls f once, with the samples in a first dimension of every
            tensor, of size 1 where samples share it; f returns them likewise.
            ``"broadcast_all"``: the same, with tensors expanded to the size of the batch.
    Returns:
        The results.
    Raises:
        FunctionError: f returned values of another shape or dtype.
        StructureError: f returned another structure; or a leaf of result_like is no tensor.
        MissingDerivativeError: a derivative flows through the results.
        TransformError: torch.export traces the call.
    Example:
        >>> import numpy as np
        >>> def sign(x):
        ...     return torchlayers.pure_callback(lambda x: np.sign(x.numpy()), x, x)
        >>> torchlayers.vmap(sign)(torch.tensor([-2.0, 3.0]))
        tensor([-1.,  1.])
        >>> torchlayers.grad(lambda x: x * sign(x.detach()))(torch.tensor(-2.0))
        tensor(-1.)

    Source: jax.pure_callback.
    """
    check_choice("pure_callback", "vmap_method", vmap_method, _METHODS)
    return _call("pure_callback", f, result_like, args, kwargs, vmap_method)


@tracing_state.skipped_while_tracing
def io_callback(f: Callable[..., Any], result_like: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls Python code with side effects, in transforms and compiled functions.

    f runs on plain tensors below all transforms, as often as the program calls it and in that
    order; in a compiled function at each call; under :func:`vmap` once for each sample, in turn. A
    checkpointed function calls it again when it is recomputed. A compiled function with one in a
    branch or a loop is replayed operator by operator, and one that autograd records runs
    uncompiled.

    Args:
        f: as for :func:`pure_callback`; it may return None, or read and change what it likes.
        result_like: as for :func:`pure_callback`; None or () for no results.
        args, kwargs: pytrees of tensors and of other values.
    Returns:
        The results, which have no derivative.
    Raises:
        FunctionError, StructureError, MissingDerivativeError: as :func:`pure_callback`.
        TransformError: torch.export traces the call; it is in a branch or loop that samples of a
            batch take differently, or in one that is differentiated in a compiled function.
    Example:
        >>> losses = []
        >>> def step(x):
        ...     loss = x.square().sum()
        ...     torchlayers.io_callback(lambda loss: losses.append(loss.item()), None, loss)
        ...     return loss
        >>> compiled = torchlayers.compile(torchlayers.vmap(step))
        >>> _ = compiled(torch.tensor([1.0, 2.0])), compiled(torch.tensor([3.0, 4.0]))
        >>> losses
        [1.0, 4.0, 9.0, 16.0]

    Source: jax.experimental.io_callback, ordered.
    """
    is_taken_by_some = any(mode.taken is not None for mode in subset_modes())
    if is_taken_by_some or debug_ops.subsets() or debug_ops.is_muted():
        raise TransformError(
            "torchlayers: io_callback: it is in a branch or a loop that samples take differently, "
            f"or that is differentiated in a compiled function.{location()} Return what it needs, "
            "and call it outside."
        )
    debug_ops.note_use()
    return _call("io_callback", f, result_like, args, kwargs, "sequential")


def _call(
    api: str,
    f: Callable[..., Any],
    result_like: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    method: str,
) -> Any:
    check_function(api, "f", f)
    if tracing_state.is_exporting():
        raise TransformError(
            f"torchlayers: {api} does not work in torch.export: an exported program holds no "
            "Python code. Define an operator with torch.library.custom_op."
        )
    _refuse_captured_tensors(f, api)
    structs, spec = _structs_of(api, result_like)
    leaves = pytree.TensorLeaves((args, kwargs))
    tensors, leaves.tensors = leaves.tensors, []
    is_captured = any_recorded(*tensors) or is_capturing()
    name = pytree.name_of(f)
    description = CallbackSpec(
        api,
        name,
        location() if is_captured else "",
        method,
        0,
        [len(struct.shape) for struct in structs],
        [str(struct.dtype).removeprefix("torch.") for struct in structs],
        [str(struct.device) for struct in structs],
    )
    if any(map(_has_plain_tangent, tensors)):
        raise callbacks.no_derivative(str(description))
    if is_captured and api == "io_callback":
        # Tracers call an operator of constants at once. This is none, and f does not get it.
        tensors = [*tensors, torch.empty(0)]
    callback = functools.partial(_run, f, leaves, spec, description)

    def key() -> Any:
        constants = hashable(leaves.constants)
        return _identity(f), leaves.spec, spec, constants, str(description)

    sizes = [size for struct in structs for size in struct.shape]
    op = getattr(callbacks, api)
    with callbacks.registered(callback, key, is_captured=is_captured) as number:
        results = op(tensors, number, sizes, str(description))
    return None if result_like is None else pytree.unflatten(results, spec)


def _identity(f: Callable[..., Any]) -> Any:
    """A key that is the same for functions that one line makes with the same captured values.

    A variable that f itself changes is one of its own.
    """
    if not isinstance(f, FunctionType):
        return f
    written = {line.argval for line in dis.get_instructions(f) if line.opname == "STORE_DEREF"}
    defaults = (*(f.__defaults__ or ()), *(f.__kwdefaults__ or {}).values())
    captured = _captured(f).items()
    values = (*(x for name, x in captured if name not in written), *defaults)
    cells = dict(zip(f.__code__.co_freevars, f.__closure__ or (), strict=True))
    numbers = (bool, int, float, str, type(None))
    return (
        f.__code__,
        *(id(cells[name]) for name in sorted(written & {*cells})),
        *(hashable(x) if isinstance(x, numbers) else id(x) for x in values),
    )


def _captured(f: FunctionType) -> dict[str, Any]:
    """The variables that a function captures and that have a value."""
    by_name: dict[str, Any] = {}
    for name, cell in zip(f.__code__.co_freevars, f.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # an empty cell
            by_name[name] = cell.cell_contents
    return by_name


def _refuse_captured_tensors(f: Callable[..., Any], api: str) -> None:
    for name, value in _captured(f).items() if isinstance(f, FunctionType) else ():
        if isinstance(value, Tensor) and (is_wrapped(value) or isinstance(value, FakeTensor)):
            raise TransformError(
                f"torchlayers: {api}: {pytree.name_of(f)} captures {name}, a tensor of the "
                f"transform or compiled function around it.{location()} Pass it as an argument."
            )


def _has_plain_tangent(x: Tensor) -> bool:
    """Whether plain forward mode or torch.func.jvp follows x: operators would drop its tangent."""
    if dual_level() < 0:
        return False
    while is_batched_wrapper(x):
        x = functorch.get_unwrapped(x)
    unpack: Any = forward_ad.unpack_dual
    return unpack(x).tangent is not None


def _structs_of(api: str, result_like: Any) -> tuple[list[ShapeDtypeStruct], pytree.TreeSpec]:
    leaves, spec = pytree.flatten(() if result_like is None else result_like)
    for leaf in leaves:
        if not isinstance(leaf, (Tensor, ShapeDtypeStruct)):
            raise StructureError(
                f"torchlayers: {api}: result_like must hold tensors or ShapeDtypeStructs, got "
                f"{type(leaf).__name__}."
            )
    return [ShapeDtypeStruct.of(leaf) for leaf in leaves], spec


def _run(
    f: Callable[..., Any],
    leaves: pytree.TensorLeaves,
    spec: pytree.TreeSpec,
    description: CallbackSpec,
    tensors: Sequence[Tensor],
) -> list[Any]:
    args, kwargs = leaves.put_in(tensors)
    outputs, actual = pytree.flatten(f(*args, **kwargs))
    if spec.num_leaves and actual != spec:
        raise StructureError(
            f"torchlayers: {description.api}: {description.name} returned "
            f"{pytree.describe(actual)}, but result_like is {pytree.describe(spec)} (* is a "
            f"leaf).{description.line or location()}"
        )
    return outputs if spec.num_leaves else []
