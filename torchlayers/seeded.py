"""seeded: torch's random operators draw by a key.

A layer is entered that wraps nothing. A random operator that arrives at it is not called: what it
would give is made by a key of its own (drawing.py). Everything else goes on to the layers below.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from torchlayers import _C, torch_compile
from torchlayers.errors import TransformError
from torchlayers.random.arguments import check_key
from torchlayers.stack import transformed

__all__ = ["recomputation", "seeded"]


def seeded(func: Callable[..., Any], key: Tensor) -> Callable[..., Any]:
    """The function, with torch.rand, dropout and the like drawing by a key.

    The n-th random operator that runs inside draws by the key with n folded in, and torch's own
    generator is left alone: so a call gives the same numbers each time. It holds on the calling
    thread, until the call returns or raises. Where it is nested, the inner key counts. Under
    vmap, or with a key that is batched, each sample draws by its own key.
    ``torchlayers.vmap(..., randomness="keyed")`` does the same with a key for each sample.

    Args:
        func: any function, or a module.
        key: a key.
    Returns:
        A function with func's arguments and results.
    Raises:
        TransformError: the key is none; it runs inside torch.compile; a random operator was called
            that has no form by keys, or with a generator of its own.
    Example:
        >>> noisy = seeded(lambda x: x + torch.randn(3), key(0))
        >>> torch.equal(noisy(torch.zeros(3)), noisy(torch.zeros(3)))
        True
        >>> apply, params, buffers = torchlayers.functional(torch.nn.Dropout())
        >>> output, _ = seeded(apply, key(1))(params, buffers, torch.ones(4))

    Source: flax.linen's rngs, which modules draw by, are the nearest to it.
    """
    check_key("seeded", key)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if torch_compile.is_tracing():
            raise TransformError(
                "torchlayers: random.seeded does not work in torch.compile. Draw by keys there "
                "(torchlayers.random.normal), or compile the function inside."
            )
        with _C.seeded_entry(key):
            return func(*args, **kwargs)

    return transformed(func, wrapper)


def recomputation() -> tuple[Any, Any]:
    """Contexts in which torch.utils.checkpoint draws the same numbers when it recomputes.

    torch's generator is set back for the recomputation by checkpoint itself. What is drawn inside
    :func:`seeded` or a keyed vmap goes on counting, and is set back by these.

    Returns:
        Two contexts: for the function, and for its recomputation.
    Example:
        >>> from torch.utils.checkpoint import checkpoint
        >>> def f(x):
        ...     return checkpoint(
        ...         torch.nn.functional.dropout, x, use_reentrant=False, context_fn=recomputation
        ...     ).sum()
        >>> g = torchlayers.grad(seeded(f, key(0)))(torch.ones(4))

    Source: the context_fn of torch.utils.checkpoint.checkpoint.
    """
    counts = _Counts()
    return counts, _Again(counts)


class _Counts:
    """Keeps how many draws there have been where it begins."""

    counts: list[int]

    def __enter__(self) -> None:
        self.counts = _C.draw_counts()

    def __exit__(self, *error: object) -> None: ...


class _Again:
    """Begins with the draws that another context kept, and puts them back."""

    def __init__(self, at: _Counts) -> None:
        self._at = at

    def __enter__(self) -> None:
        self._now = _C.draw_counts()
        _C.set_draw_counts(self._at.counts)

    def __exit__(self, *error: object) -> None:
        _C.set_draw_counts(self._now)
