"""Keyed draws of a run that is not the call's own, and so must not shift later ones."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from torchlayers import _C


class KeyedDraws:
    """Whether any keyed layer has drawn."""

    have_been = False


@contextmanager
def rewind_draws() -> Iterator[KeyedDraws]:
    """Restores the draw counts of keyed layers on exit, so that the same draws are made again."""
    counts = [count for _, count in _C.draws()[0]]
    if counts:
        _make_keys_of_samples()
        _C.set_draws(counts)
    counted = KeyedDraws()
    draws = _C.draws_ever_made()  # counts also advance past branches that draw nothing
    try:
        yield counted
    finally:
        counted.have_been = _C.draws_ever_made() != draws
        _C.set_draws(counts)


def _make_keys_of_samples() -> None:
    """Creates the sample keys that a layer caches at its first draw, which may not be captured."""
    with ExitStack() as stack:
        while _C.top() is not None:
            _C.next_key()
            stack.enter_context(_C.Below())
