"""Removing mutations, and views: functionalize.

A functionalize layer is entered; the arguments are wrapped in functional tensors, which
track writes to them; the function runs; and its writes to the arguments are copied back
to them at the end.
"""

from collections.abc import Callable
from typing import Any, Literal

from torch import Tensor
from torch.nn import Parameter

from torchlayers import _C
from torchlayers.core import pytree, tracing_state
from torchlayers.core.annotations import P, R
from torchlayers.core.errors import TransformError
from torchlayers.core.layer_stack import transformed
from torchlayers.core.torch_private import functorch, torch_private
from torchlayers.transforms import patched_torch_func
from torchlayers.transforms.local_leaves import LEAF


def functionalize(
    func: Callable[P, R], *, remove: Literal["mutations", "mutations_and_views"] = "mutations"
) -> Callable[P, R]:
    """Removes the in-place operators inside a function.

    Each in-place operator on a tensor created inside is replaced by its out-of-place form. Writes
    to func's arguments are copied to them after it has run. Traced by ``make_fx``, the result is
    a graph without side effects.

    Args:
        func: takes tensors and pytrees of tensors; returns any pytree.
        remove: "mutations", or "mutations_and_views" to replace views with copies as well
            (``view`` becomes ``view_copy``).
    Returns:
        A function with func's arguments and results.
    Raises:
        TransformError: remove is neither of the two.
        RuntimeError: functionalize is directly inside functionalize, with no other transform
            between them.
    Example:
        >>> from torch.fx.experimental.proxy_tensor import make_fx
        >>> def f(x):
        ...     y = x + 1
        ...     y.mul_(2)
        ...     return y
        >>> graph = make_fx(functionalize(f))(torch.ones(2)).graph
        >>> [str(node.target) for node in graph.nodes if node.op == "call_function"]
        ['aten.add.Tensor', 'aten.mul.Tensor']

    Source: torch.func.functionalize.
    """
    if remove not in ("mutations", "mutations_and_views"):
        raise TransformError(
            "torchlayers: functionalize: remove must be 'mutations' or 'mutations_and_views', got "
            f"{remove!r}."
        )
    keeps_views = remove == "mutations"

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if tracing_state.is_tracing() or tracing_state.is_exporting():
            return func(*args, **kwargs)  # the compiler functionalizes anyway
        if _is_in_python_layer():
            return func(*args, **kwargs)  # Layer.apply has entered functionalize
        patched_torch_func.patched_steps(
            patched_torch_func.FUNCTIONALIZE
        )  # raises if one is replaced
        with _C.functionalize_entry(keeps_views) as level:
            wrapped = pytree.map_tensors(lambda leaf: functional(leaf, level), (args, kwargs))
            with tracing_state.run_eagerly():
                outputs = func(*wrapped[0], **wrapped[1])
            outputs = pytree.map_tensors(lambda leaf: _unwrap_output(leaf, level), outputs)
            _copy_back((args, kwargs), wrapped)
        return outputs

    return transformed(func, wrapper)


def _is_in_python_layer() -> bool:
    top = _C.top()
    if top is None or top[0] != "functionalize":
        return False
    with _C.Below():
        return _C.python_layer_on_top() is not None


def functional(tensor: Tensor, level: int) -> Tensor:
    """Wraps the tensor in a functional tensor of this level, unless an outer level has done so."""
    _C.check_from_outside(tensor)
    if torch_private._is_functional_tensor(tensor):
        return tensor
    wrapped: Tensor = functorch._wrap_functional_tensor(tensor, level)
    _C.add_front_key(wrapped)  # NOTE [Escaped] in csrc/values/escaped.h
    return wrapped


def level_of_functional(tensor: Tensor) -> int:
    """The level of a functional tensor; 0 for others."""
    is_functional = torch_private._is_functional_tensor(tensor)
    return int(functorch.maybe_get_level(tensor)) if is_functional else 0


def unwrapped(tensor: Tensor, level: int) -> Tensor:
    """Returns the current value of a functional tensor of this level."""
    if (
        not torch_private._is_functional_tensor(tensor)
        or functorch.maybe_get_level(tensor) != level
    ):
        return tensor  # created outside, perhaps by an outer functionalize, and passed through
    tensor.dim()  # a torch function, by which a capture sees that the tensor is read
    torch_private._functionalize_sync(tensor)
    value: Tensor = functorch.get_unwrapped(tensor)
    return value


def _unwrap_output(output: Tensor, level: int) -> Tensor:
    """Returns an output's value, in the output's class if that is a user-defined subclass."""
    value = unwrapped(output, level)
    is_plain = value is output or type(output) in (Tensor, Parameter)
    return value if is_plain else value.as_subclass(type(output))


def _copy_back(originals: Any, wrapped: Any) -> None:
    """Copies func's writes to its arguments back to them."""
    for original, functional in zip(pytree.leaves(originals), pytree.leaves(wrapped), strict=True):
        if isinstance(original, Tensor) and functional is not original:
            torch_private._functionalize_sync(functional)
            if hasattr(functional, LEAF) and _C.share_memory(
                original, functorch.get_unwrapped(functional)
            ):
                continue
            functorch._propagate_functional_input_mutation(original, functional)
