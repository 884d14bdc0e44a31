"""The parts of a layer's tensors as pytrees in which None stands for zeros."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def is_sequence(tree: Any) -> bool:
    return isinstance(tree, (tuple, list))


def template(*trees: Any) -> Any:
    """The trees' common structure: a tensor wherever one of them has a tensor, otherwise None.

    Raises:
        ValueError: they have different structures.
    """
    trees = tuple(tree for tree in trees if tree is not None)
    if not trees:
        return None
    first = trees[0]
    if is_sequence(first):
        if not all(is_sequence(tree) and len(tree) == len(first) for tree in trees):
            raise ValueError(f"{_kinds(trees)} differ")
        return tuple(template(*nodes) for nodes in zip(*trees, strict=True))
    if isinstance(first, Mapping):
        if not all(isinstance(tree, Mapping) and tree.keys() == first.keys() for tree in trees):
            raise ValueError(f"{_kinds(trees)} differ")
        return {key: template(*(tree[key] for tree in trees)) for key in first}
    if not all(isinstance(tree, Tensor) == isinstance(first, Tensor) for tree in trees):
        raise ValueError(f"{_kinds(trees)} differ")
    return first


def _kinds(trees: Sequence[Any]) -> str:
    return " and ".join(
        f"{type(tree).__name__} of {len(tree)}"
        if is_sequence(tree) or isinstance(tree, Mapping)
        else type(tree).__name__
        for tree in trees
    )


def leaves(tree: Any, like: Any, path: str = "") -> list[tuple[str, Any]]:
    """The leaves of a tree, with zeros in place of None, in the order of a template."""
    if is_sequence(like):
        parts = [None] * len(like) if tree is None else tree
        pairs = zip(parts, like, strict=True)
        return [leaf for i, pair in enumerate(pairs) for leaf in leaves(*pair, path=f"{path}[{i}]")]
    if isinstance(like, Mapping):
        return [
            leaf
            for key in like
            for leaf in leaves(None if tree is None else tree[key], like[key], f"{path}[{key!r}]")
        ]
    if like is None:
        return []
    if tree is None and isinstance(like, Tensor):
        tree = torch.zeros(like.shape, dtype=like.dtype, device=like.device)
    return [(path, tree)]


def first_difference(
    expected: Any, got: Any, name: str, atol: float, rtol: float
) -> tuple[str, str] | None:
    """The element that differs most, in the first leaf that differs: expected, and got."""
    try:
        like = template(expected, got)
    except ValueError as error:
        return f"{name}: the structure of the meaning", str(error)
    pairs = zip(leaves(expected, like), leaves(got, like), strict=True)
    for (path, x), (_, y) in pairs:
        difference = _difference(x, y, atol, rtol)
        if difference is not None:
            place, x, y = difference
            return f"{name}{path}{place}: {x}", str(y)
    return None


def _difference(x: Any, y: Any, atol: float, rtol: float) -> tuple[str, str, str] | None:
    if not isinstance(x, Tensor):
        return None if x == y else ("", repr(x), repr(y))
    if x.shape != y.shape or x.dtype != y.dtype:
        return "", _kind(x), _kind(y)
    wide = torch.complex128 if x.is_complex() else torch.float64
    x, y = x.detach().to(wide), y.detach().to(wide)
    is_close = torch.isclose(y, x, atol=atol, rtol=rtol, equal_nan=True)
    if bool(is_close.all()):
        return None
    distance = torch.where(is_close, -1.0, (x - y).abs().nan_to_num(nan=torch.inf))
    place = [int(i) for i in torch.unravel_index(distance.argmax(), x.shape)]
    where = f" at ({', '.join(map(str, place))})" if place else ""
    expected, got = (f"{z[tuple(place)].item():.6g}" for z in (x, y))
    return where, expected, got


def _kind(x: Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')}{[*x.shape]}"
