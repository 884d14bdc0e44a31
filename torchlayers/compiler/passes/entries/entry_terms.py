"""Terms of entries that are read from a result: factors, values and where these are read."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Node

from torchlayers.fx.nodes import value


class Term(NamedTuple):
    """For each entry ``factor * value[places]``; without a value, the factor.

    ``places`` is -1, and the factor zero, for entries that the term is not part of.
    """

    factor: Tensor
    value: Node | None = None
    places: Tensor | None = None


def are_read_alike(one: Term, other: Term) -> bool:
    """Whether the values have as many elements, of which the same ones are read."""
    return (
        one.value is not None
        and other.value is not None
        and one.places is other.places
        and value(one.value).numel() == value(other.value).numel()
    )


def extent(term: Term) -> int:
    """How many entries the term is part of."""
    return int(term.factor.count_nonzero())


def is_small(term: Term) -> bool:
    return 2 * extent(term) <= len(term.factor)


def cost_of(terms: list[Term]) -> int:
    """About how many elements are read for the terms' values."""
    return sum(
        2 * extent(term) if is_small(term) else len(term.factor)
        for term in terms
        if term.value is not None
    )


def elements_at(x: Tensor, places: Tensor) -> Tensor:
    if not x.numel():
        return torch.zeros(len(places), dtype=x.dtype)
    elements = x.reshape(-1)[places.clamp(min=0)]
    return torch.where(places < 0, torch.zeros((), dtype=x.dtype), elements)


def followed(moved: Tensor, places: Tensor) -> Tensor:
    """The places before a move, of places after it."""
    return torch.where(places < 0, -1, moved[places.clamp(min=0)])


def scaled_terms(terms: list[Term], scale: Any) -> list[Term]:
    return [term._replace(factor=term.factor * scale) for term in terms]


def has_repeats(index: Tensor) -> bool:
    ordered = index.sort().values
    return bool((ordered[1:] == ordered[:-1]).any())


def uniform(factor: Tensor) -> float | None:
    """The number that all elements are, if they are."""
    first = factor[:1]
    return first.item() if bool((factor == first).all()) else None


def factored(
    terms: list[Term],
    multiply: Callable[[Node, float], Node],
    add: Callable[[Node, Node], Node],
) -> list[Term]:
    """Terms whose factors are multiples of each other become one, with a sum of their values."""
    terms_so_far: list[Term] = []
    for term in terms:
        if term.value is None:
            terms_so_far.append(term)
            continue
        for i, other in enumerate(terms_so_far):
            if other.value is None or not are_read_alike(other, term):
                continue
            ratio = _ratio(term.factor, other.factor)
            if ratio is not None:
                total = add(other.value, multiply(term.value, ratio))
                terms_so_far[i] = other._replace(value=total)
                break
        else:
            terms_so_far.append(term)
    return terms_so_far


def _ratio(one: Tensor, other: Tensor) -> float | None:
    """The number that one is a multiple of the other by."""
    inside = (other != 0).nonzero().reshape(-1)
    if not len(inside):
        return None
    ratio = float(one[inside[0]] / other[inside[0]])
    return ratio if torch.equal(other * ratio, one) else None
