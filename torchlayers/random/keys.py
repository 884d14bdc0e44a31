"""Creates and splits keys, and draws random bits."""

import torch
from torch import Tensor

from torchlayers.random.arguments import Shape, check_key, drawn, operator_for

_CHILDREN = 1  # the use number of split's draws, as in csrc/rules/random/philox.h


def key(seed: int, *, device: torch.device | str | None = None) -> Tensor:
    """Creates a key.

    Args:
        seed: an int, taken modulo 2^64; different seeds give unrelated numbers.
        device: the device of the key, and of the numbers drawn by it.
    Returns:
        An int64 tensor without dimensions.
    Raises:
        TypeError: the seed is not an int.
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
            f"torchlayers: random.key: the seed must be an int, got {type(seed).__name__}. To make "
            "keys from a tensor of numbers, use fold_in(key(0), numbers)."
        )
    number = (seed + 2**63) % 2**64 - 2**63
    return torch.full((), number, dtype=torch.int64, device=device)


def split(key: Tensor, num: Shape = 2) -> Tensor:
    """Derives new keys from a key, which should not be used any more.

    Args:
        key: a key.
        num: how many, or their shape.
    Returns:
        Keys of shape (num,), or num. The first n keys are the same for any num.
    Example:
        >>> for_weights, for_noise = split(key(0))
        >>> torchlayers.vmap(lambda k: torchlayers.random.normal(k, (2,)))(split(key(0), 5)).shape
        torch.Size([5, 2])

    Source: jax.random.split.
    """
    return drawn("bits", "split", key, num, torch.int64, _CHILDREN)


def fold_in(key: Tensor, data: int | Tensor) -> Tensor:
    """Derives a key from a key and a number, such as the index of a step, a rank or a sample.

    Args:
        key: a key; other numbers may still be folded into it.
        data: an int, or a tensor of integers, which gives keys of its shape.
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
                f"torchlayers: random.fold_in: data must be a tensor of integers, got {data.dtype}."
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
    """Draws integers with uniformly random bits.

    Args:
        key: a key.
        shape: of the result.
        dtype: int64 or int32.
    Returns:
        A tensor of this shape and dtype, including negative numbers.
    Example:
        >>> bits(key(0), (3,)).shape
        torch.Size([3])

    Source: jax.random.bits.
    """
    return drawn("bits", "bits", key, shape, dtype, 0)
