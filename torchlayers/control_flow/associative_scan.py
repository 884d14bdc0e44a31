"""associative_scan: all prefix results of an associative function, in logarithmic depth."""

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

from torchlayers.control_flow.checks import check_alike
from torchlayers.core import pytree
from torchlayers.core.annotations import A
from torchlayers.core.errors import DimensionError, NotTensorError, TransformError
from torchlayers.core.function_checks import check_function
from torchlayers.core.jax_names import refuse_keywords, without_others
from torchlayers.transforms.vmap import vmap


@without_others
def associative_scan(
    f: Callable[[A, A], A],
    xs: A,
    dim: int = 0,
    reverse: bool = False,
    **others: NoReturn,
) -> A:
    """Computes x_0, f(x_0, x_1), f(f(x_0, x_1), x_2), ... along a dimension.

    For n elements, f runs about 2 log2(n) times, each time vmapped over many pairs, and on fewer
    than 2 n pairs in all.

    Args:
        f: takes two elements, pytrees of tensors without that dimension, and returns one. It must
            be associative: f(f(a, b), c) is f(a, f(b, c)). It need not be commutative, and may
            capture tensors.
        xs: the elements: a tensor, or a pytree of tensors with the same length along dim.
        dim: the dimension.
        reverse: whether to start at the last element: x_n, f(x_n, x_n-1), ..., each at the
            position of its element.
    Returns:
        A pytree like xs.
    Raises:
        DimensionError: the tensors in xs differ in length along dim, or lack that dimension.
        StructureError: f's result differs from an element in structure, shape or dtype.
    Example:
        >>> torchlayers.associative_scan(torch.mul, torch.tensor([1.0, 2.0, 3.0, 4.0]))
        tensor([ 1.,  2.,  6., 24.])
        >>> def affine(first, then):  # x -> a x + b, one after the other
        ...     return then[0] * first[0], then[0] * first[1] + then[1]
        >>> torchlayers.associative_scan(affine, (torch.full((3,), 2.0), torch.ones(3)))
        (tensor([2., 4., 8.]), tensor([1., 3., 7.]))

    Source: jax.lax.associative_scan; Blelloch, "Prefix sums and their applications" (1990).
    """
    if others:
        refuse_keywords(associative_scan, others)
    check_function("associative_scan", "f", f)
    leaves, spec = pytree.flatten(xs)
    dims = [_dim(leaf, dim, pytree.leaf_name("xs", (xs,), i)) for i, leaf in enumerate(leaves)]
    if not leaves:
        raise TransformError("torchlayers: associative_scan: xs holds no tensors.")
    rows = [leaf.movedim(at, 0) for leaf, at in zip(leaves, dims, strict=True)]
    lengths = {len(leaf) for leaf in rows}
    if len(lengths) > 1:
        raise DimensionError(
            f"torchlayers: associative_scan: xs must have one length along dim {dim}, but have "
            f"{' and '.join(str(len(leaf)) for leaf in rows)}."
        )
    element = pytree.unflatten(rows, spec)

    def pairs(first: list[Tensor], second: list[Tensor]) -> list[Tensor]:
        results = vmap(f)(pytree.unflatten(first, spec), pytree.unflatten(second, spec))
        check_alike(
            "associative_scan",
            pytree.map_tensors(lambda leaf: leaf[0], element),
            "an element",
            pytree.map_tensors(lambda leaf: leaf[0], results),
            "f",
        )
        return pytree.leaves(results)

    if reverse:
        rows = [leaf.flip(0) for leaf in rows]
    results = scan_pairs(pairs, rows)
    if reverse:
        results = [leaf.flip(0) for leaf in results]
    return pytree.unflatten(
        [leaf.movedim(0, at) for leaf, at in zip(results, dims, strict=True)], spec
    )


def scan_pairs(
    pairs: Callable[[list[Tensor], list[Tensor]], list[Tensor]], rows: list[Tensor]
) -> list[Tensor]:
    """Scans the combined pairs for every second result; the others take one more step."""
    count = len(rows[0])
    if count < 2:
        return rows
    joined = pairs([leaf[:-1:2] for leaf in rows], [leaf[1::2] for leaf in rows])
    odd = scan_pairs(pairs, joined)
    if count == 2:
        return [torch.cat([leaf[:1], other]) for leaf, other in zip(rows, odd, strict=True)]
    before = [leaf[: (count - 1) // 2] for leaf in odd]
    even = pairs(before, [leaf[2::2] for leaf in rows])
    return [
        _interleaved(torch.cat([leaf[:1], one]), other)
        for leaf, one, other in zip(rows, even, odd, strict=True)
    ]


def _interleaved(even: Tensor, odd: Tensor) -> Tensor:
    """Returns even[0], odd[0], even[1], ...; even is as long as odd, or one longer."""
    both = torch.stack([even[: len(odd)], odd], 1).flatten(0, 1)
    return both if len(even) == len(odd) else torch.cat([both, even[-1:]])


def _dim(leaf: Any, dim: int, name: str) -> int:
    if not isinstance(leaf, Tensor):
        raise NotTensorError(
            f"torchlayers: associative_scan: {name} must be a tensor, got {type(leaf).__name__}."
        )
    if not -leaf.dim() <= dim < leaf.dim():
        raise DimensionError(
            f"torchlayers: associative_scan: dim {dim} is out of range for {name}, of shape "
            f"{tuple(leaf.shape)}."
        )
    return dim % leaf.dim()
