"""The colourings of a sparse derivative: given, or detected at the first call and kept."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchlayers.core import pytree
from torchlayers.core.errors import StructureError
from torchlayers.remat.checkpoint import without_saved_tensor_hooks
from torchlayers.taps.loop_steps import without_listeners
from torchlayers.transforms.sparse.bookkeeping import bookkeeping
from torchlayers.transforms.sparse.coloring import Coloring, Mode, coloring
from torchlayers.transforms.sparse.detection.layer import plain_value
from torchlayers.transforms.sparse.pattern import PatternLike, SparsityPattern, as_pattern

# More patterns than this are not kept: a function of ever new shapes would fill the memory.
_MOST = 16


class KeptColorings:
    """Finds the colouring for a call.

    A detected pattern holds for all values of the differentiated arguments. It is detected anew
    for other shapes, dtypes or structures of arguments, and for other values of those that are not
    differentiated, whose zeros and indices it depends on.

    Args:
        api: the transform's name, for errors.
        sparse: True, a pattern or a colouring, as given by the user.
        detect: a function of func, args and argnums that detects the pattern.
        mode: of the colouring of a detected or given pattern.
        modes: those that a given colouring may have.
    """

    def __init__(
        self,
        api: str,
        sparse: bool | Coloring | PatternLike,
        detect: Callable[..., SparsityPattern],
        mode: Mode,
        modes: tuple[Mode, ...],
    ) -> None:
        self.api = api
        self.detect = detect
        self.mode: Mode = mode
        self.fixed: Coloring | None = None
        self.detected: dict[Any, tuple[list[Tensor], Coloring]] = {}
        if sparse is True:
            return
        with bookkeeping():
            if isinstance(sparse, Coloring):
                self.fixed = sparse
            else:
                self.fixed = coloring(_pattern_of(api, sparse), mode)
        if self.fixed.mode not in modes:
            names = ", ".join(repr(mode_name) for mode_name in modes)
            raise StructureError(
                f"torchlayers: {api}: sparse= is a Coloring of mode {self.fixed.mode!r}, but "
                f"{api} takes the modes {names}. Use torchlayers.coloring(pattern, {modes[0]!r})."
            )

    def coloring_for(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        argnums: int | tuple[int, ...],
        places: tuple[int, ...],
    ) -> Coloring:
        if self.fixed is not None:
            return self.fixed
        key, others = _key(args, places)
        if key is not None and key in self.detected:
            values, result = self.detected[key]
            if all(torch.equal(one, other) for one, other in zip(values, others, strict=True)):
                return result
        # A checkpoint recomputes the derivative and not this, and taps are met once.
        with without_saved_tensor_hooks(), without_listeners():
            pattern = self.detect(func, args, argnums)
        with bookkeeping():
            result = coloring(pattern, self.mode)
            if key is not None:
                self.detected.pop(key, None)
                self.detected[key] = [other.clone() for other in others], result
                if len(self.detected) > _MOST:
                    del self.detected[next(iter(self.detected))]
        return result


def _pattern_of(api: str, sparse: Any) -> SparsityPattern:
    try:
        return as_pattern(sparse)
    except StructureError:
        raise
    except (RuntimeError, TypeError, ValueError) as error:
        raise StructureError(
            f"torchlayers: {api}: sparse= is {sparse!r}, but must be True, a pattern (a "
            "SparsityPattern, a mask, or a matrix of torch.sparse or SciPy) or a Coloring."
        ) from error


def _key(args: tuple[Any, ...], places: tuple[int, ...]) -> tuple[Any, list[Tensor]]:
    """A key for arguments with one pattern if these tensors among them are equal, too.

    None for the key if they can't be compared.
    """
    facts: list[Any] = []
    others: list[Tensor] = []
    for place, arg in enumerate(args):
        leaves, spec = pytree.flatten(arg)
        facts.append(spec)
        for leaf in leaves:
            if not isinstance(leaf, Tensor):
                facts.append((type(leaf), leaf))
                continue
            facts.append((tuple(leaf.shape), leaf.dtype, leaf.device))
            if place not in places:
                with bookkeeping():
                    value = plain_value(leaf)
                if value is None:
                    return None, []
                others.append(value)
    key = (places, *facts)
    try:
        hash(key)
    except TypeError:
        return None, []
    return key, others
