"""Keys, and their bits."""

import torch
from torch import Tensor

from torchlayers.random.arguments import Shape, check_key, drawn, operator_for

_CHILDREN = 1  # what split draws, as csrc/rules/philox.h has it


def key(seed: int, *, device: torch.device | str | None = None) -> Tensor:
    """A key.

    Args:
        seed: an int; it is taken modulo 2^64, and different ones give unrelated numbers.
        device: where the key is, and with it what is drawn by it.
    Returns:
        An int64 tensor without dimensions.
    Raises:
        TypeError: the seed is no int.
    Example:
        >>> k = key(0)
        >>> k.dtype, k.shape
        (torch.int64, torch.Size([]))
        >>> torch.equal(torchlayers.random.normal(k, (3,)), torchlayers.random.normal(k, (3,)))
        True

    Source: jax.random.key.
    """
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(
            f"torchlayers: random.key: the seed must be an int, got {type(seed).__name__}. A key "
            "of a tensor of numbers is made by fold_in(key(0), numbers)."
        )
    number = (seed + 2**63) % 2**64 - 2**63
    return torch.full((), number, dtype=torch.int64, device=device)


def split(key: Tensor, num: Shape = 2) -> Tensor:
    """New keys of a key, which is not to be used any more.

    Args:
        key: a key.
        num: how many, or their shape.
    Returns:
        Keys of shape (num,), or num. The first n are the same whatever num is.
    Example:
        >>> for_weights, for_noise = split(key(0))
        >>> torchlayers.vmap(lambda k: torchlayers.random.normal(k, (2,)))(split(key(0), 5)).shape
        torch.Size([5, 2])

    Source: jax.random.split.
    """
    return drawn("bits", "split", key, num, torch.int64, _CHILDREN)


def fold_in(key: Tensor, data: int | Tensor) -> Tensor:
    """A key of a key and a number, such as that of a step, a rank or a sample.

    Args:
        key: a key, which may still be folded with other numbers.
        data: an int, or a tensor of integers: then keys of its shape.
    Returns:
        A key for each number.
    Raises:
        TypeError: data is neither an int nor a tensor of integers.
    Example:
        >>> k = key(0)
        >>> torch.equal(fold_in(k, torch.arange(3))[1], fold_in(k, 1))
        True

    Source: jax.random.fold_in.
    """
    check_key("random.fold_in", key)
    if isinstance(data, Tensor):
        if data.is_floating_point() or data.is_complex() or data.dtype == torch.bool:
            raise TypeError(
                f"torchlayers: random.fold_in: data must be of integers, got {data.dtype}."
            )
        numbers = data.to(device=key.device, dtype=torch.int64)
    elif isinstance(data, int) and not isinstance(data, bool):
        wrapped = (data + 2**63) % 2**64 - 2**63
        numbers = torch.full((), wrapped, dtype=torch.int64, device=key.device)
    else:
        raise TypeError(
            "torchlayers: random.fold_in: data must be an int or a tensor of integers, got "
            f"{type(data).__name__}."
        )
    keys: Tensor = operator_for("random_fold_in", key)(key, numbers)
    return keys


def bits(key: Tensor, shape: Shape = (), dtype: torch.dtype = torch.int64) -> Tensor:
    """Integers of whose bits each is 0 or 1 at random.

    Args:
        key: a key.
        shape: of the result.
        dtype: int64 or int32.
    Returns:
        A tensor of this shape and dtype, of negative numbers too.
    Example:
        >>> bits(key(0), (3,)).shape
        torch.Size([3])

    Source: jax.random.bits.
    """
    return drawn("bits", "bits", key, shape, dtype, 0)
