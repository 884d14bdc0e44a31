"""sequential_vmap: a function that vmap calls once for each sample."""

from collections.abc import Callable
from typing import Any

from torchlayers.autograd_function.custom_vmap import custom_vmap
from torchlayers.control_flow.map import map
from torchlayers.core import pytree
from torchlayers.core.annotations import P, R


def sequential_vmap(f: Callable[P, R]) -> custom_vmap[P, R]:
    """Makes a function that :func:`vmap` runs one sample at a time, as a loop.

    For functions that can't be batched, or whose intermediates for all samples at once would take
    too much memory. Captured, the loop is one operator.

    Args:
        f: takes and returns tensors and pytrees of tensors.
    Returns:
        A :class:`custom_vmap` of f.
    Raises:
        CallError: at a call, if the arguments do not match f's signature, or are by keyword only.
    Example:
        >>> @torchlayers.sequential_vmap
        ... def shape_of_a_sample(x):
        ...     print(x.shape)
        ...     return 2 * x
        >>> torchlayers.vmap(shape_of_a_sample)(torch.ones(2, 3)).shape
        torch.Size([3])
        torch.Size([3])
        torch.Size([2, 3])

    Source: jax.custom_batching.sequential_vmap.
    """
    function = custom_vmap(f)
    call: Callable[..., Any] = f

    @function.def_vmap
    def each_sample(batch_size: int, in_dims: Any, *args: Any) -> tuple[Any, int]:
        leaves = pytree.TensorLeaves(args)
        dims = [dim for i, dim in enumerate(pytree.leaves(in_dims)) if i not in leaves.constants]
        batched = [x for x, dim in zip(leaves.tensors, dims, strict=True) if dim is not None]

        def of_sample(samples: Any) -> Any:
            rest = iter(samples)
            pairs = zip(leaves.tensors, dims, strict=True)
            sample = leaves.put_in(x if dim is None else next(rest) for x, dim in pairs)
            return call(*sample)

        return map(of_sample, batched), 0

    return function
