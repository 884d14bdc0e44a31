"""Looks at tensors inside transforms: which layers wrap them, and around what."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import Tensor

from torchlayers import _C
from torchlayers.core.describe_function import describe_function
from torchlayers.core.errors import CallError
from torchlayers.core.torch_private import (
    ENDED,
    functorch,
    is_batched_wrapper,
    is_grad_wrapper,
    torch_private,
)

__all__ = ["inspect", "is_alive", "is_batched", "level", "unwrap"]


class Wrapper(NamedTuple):
    """A wrapper of a tensor: its layer's kind and level, the tensor, its batch dimension in the
    tensor inside of it, and that tensor."""

    kind: str
    level: int
    tensor: Tensor
    batch_dim: int | None
    inner: Tensor


def inspect(value: Any) -> None:
    """Prints what is inside a tensor, layer by layer, or what a transformed function is made of.

    Works inside transforms, where a tensor is a nest of wrappers, one for each layer that tracks
    it; and while a function is captured or differentiated. It reads no values.

    Args:
        value: a tensor, or a function that a transform or :func:`torchlayers.compile` returned.
    Raises:
        CallError: value is neither a tensor nor a function.
    Example:
        >>> def loss(x):
        ...     inspect(x)
        ...     return x.sum()
        >>> per_sample = torchlayers.vmap(torchlayers.grad(loss))
        >>> inspect(per_sample)
        vmap(grad(loss, argnums=0), in_dims=0)
        >>> _ = per_sample(torch.ones(3, 2))
        grad (level 2)  float32[2], requires grad
        vmap (level 1)  float32[2], batch dimension 0 of
        plain tensor    float32[3, 2]
    """
    if not isinstance(value, Tensor):
        if not callable(value):
            raise CallError(
                f"torchlayers: inspect takes a tensor or a function, got {type(value).__name__}."
            )
        print(describe_function(value))
        return
    rows = []
    inner = value
    for wrapper in wrappers(value):
        facts = _metadata(wrapper.tensor)
        if wrapper.batch_dim is not None:
            facts += f", batch dimension {wrapper.batch_dim} of"
        is_over = wrapper.level == ENDED
        kind = wrapper.kind if is_over else f"{wrapper.kind} (level {wrapper.level})"
        has_ended = is_over or has_escaped(wrapper.tensor)
        rows.append((f"{kind}, escaped" if has_ended else kind, facts))
        inner = wrapper.inner
    rows.append((_plain(inner), _metadata(inner)))
    width = max(len(name) for name, _ in rows)
    print("\n".join(f"{name:{width}}  {facts}" for name, facts in rows))


def has_escaped(tensor: Tensor) -> bool:
    """Whether a tensor with a level is outside the transform that created it."""
    level = functorch.maybe_get_level(tensor)
    stack = functorch.get_interpreter_stack() or ()
    if level == ENDED or level > len(stack):
        return True
    kind = stack[level - 1].key().name
    if is_batched_wrapper(tensor):
        return bool(kind != "Vmap")
    return bool(torch_private._is_functional_tensor(tensor) and kind != "Functionalize")


def level(tensor: Tensor) -> int:
    """The level of the innermost layer that tracks a tensor: that of its outermost wrapper.

    Returns:
        1 for the outermost layer of the stack, and so on; 0 for a plain tensor, and for one whose
        only layers have ended and left no trace of their levels.
    Example:
        >>> level(torch.ones(2))
        0
        >>> y = torch.ones(3)
        >>> torchlayers.vmap(lambda x: x * level(x) + level(y))(torch.ones(3))
        tensor([1., 1., 1.])

    Source: torch._C._functorch.maybe_get_level.
    """
    return max((wrapper.level for wrapper in wrappers(tensor) if wrapper.level > 0), default=0)


def is_batched(tensor: Tensor) -> bool:
    """Whether a tensor has a value of its own for each sample of a vmap around it.

    Returns:
        True if any layer that tracks it is a vmap, also below others. False for a tensor that all
        samples share.
    Example:
        >>> seen = []
        >>> w = torch.ones(2)
        >>> _ = torchlayers.vmap(lambda x: seen.append([is_batched(x), is_batched(w)]) or x)(w)
        >>> seen
        [[True, False]]

    Source: torch._C._functorch.is_batchedtensor.
    """
    return any(wrapper.batch_dim is not None for wrapper in wrappers(tensor))


def is_alive(tensor: Tensor) -> bool:
    """Whether every layer that tracks a tensor is still active; always True for a plain tensor.

    False for a tensor that has escaped: it was kept from inside a transform that has ended since,
    and can't be computed with.

    Example:
        >>> kept = []
        >>> _ = torchlayers.vmap(lambda x: kept.append(x) or x)(torch.ones(3))
        >>> is_alive(kept[0])
        False
    """
    return not any(has_escaped(wrapper.tensor) for wrapper in wrappers(tensor))


def unwrap(tensor: Tensor) -> Tensor:
    """The tensor one layer further in; of a plain tensor, the tensor itself.

    From a vmap's tensor it is that of all samples, with the batch dimension in it. It is for
    looking at, not for computing: the layer does not see what is done with it.

    Example:
        >>> shapes = []
        >>> _ = torchlayers.vmap(lambda x: shapes.append(unwrap(x).shape) or x)(torch.ones(3, 2))
        >>> shapes
        [torch.Size([3, 2])]

    Source: torch.func.debug_unwrap, which removes all layers by default.
    """
    for wrapper in wrappers(tensor):
        return wrapper.inner
    return tensor


def wrappers(tensor: Tensor) -> Iterator[Wrapper]:
    """The wrappers around a tensor's value, outermost first."""
    tensor = _resolve(tensor)
    while True:
        number = functorch.maybe_get_level(tensor)
        batch_dim = None
        if is_batched_wrapper(tensor):
            kind, batch_dim = "vmap", functorch.maybe_get_bdim(tensor)
        elif torch_private._is_functional_tensor(tensor):
            kind = "functionalize"
        elif is_grad_wrapper(tensor):
            kind = _kind_at(number)
        else:
            return
        inner = _resolve(_value(tensor))
        yield Wrapper(kind, number, tensor, batch_dim, inner)
        tensor = inner


def _resolve(tensor: Tensor) -> Tensor:
    """The batched tensor that a tensor written to inside a vmap represents, or the tensor."""
    return _C.shown(tensor)


def _value(wrapper: Tensor) -> Tensor:
    if torch_private._is_functional_tensor(wrapper):
        torch_private._functionalize_sync(wrapper)  # its value may be out of date
    value: Tensor = functorch.get_unwrapped(wrapper)
    return value


def _kind_at(number: int) -> str:
    """The layer at a level whose wrappers are torch's for grad; "grad or jvp" if it has ended."""
    ours = _C.current_stack()
    if not 0 < number <= len(ours):
        return "grad or jvp"
    if (layer := ours[number - 1]) is not None:
        return str(layer[0])
    kind: str = functorch.get_interpreter_stack()[number - 1].key().name
    return kind.lower()


def _metadata(tensor: Tensor) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{dtype}{[*tensor.shape]}" + (", requires grad" if tensor.requires_grad else "")


def _plain(tensor: Tensor) -> str:
    kind = type(tensor)
    return "plain tensor" if kind is Tensor else kind.__name__
