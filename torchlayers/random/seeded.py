"""seeded: makes torch's random operators draw by a key.

It enters a layer that wraps no tensors. A random operator that reaches the layer is replaced by a
sampler with a separate key (aten_samplers.py). All other operators go on to the layers below.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from torch import Tensor

from torchlayers import _C
from torchlayers.core import tracing_state
from torchlayers.core.annotations import P, R
from torchlayers.core.errors import TransformError
from torchlayers.core.layer_stack import transformed
from torchlayers.core.torch_private import TorchDispatchMode
from torchlayers.random.arguments import check_key

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["recomputation", "seeded"]


def seeded(func: Callable[P, R], key: Tensor) -> Callable[P, R]:
    """Wraps a function so that torch.rand, dropout and other random operators draw by a key.

    The n-th random operator inside draws by the key with n folded in, and torch's generator is not
    used, so each call gives the same numbers. This applies to the calling thread, until the call
    returns or raises. If calls are nested, the innermost key is used. Under vmap, or with a batched
    key, each sample draws by its own key. ``torchlayers.vmap(..., randomness="keyed")`` does the
    same with a key for each sample.

    Args:
        func: any function, or a module.
        key: a key.
    Returns:
        A function with func's arguments and results.
    Raises:
        TransformError: key is not a key; the function runs inside torch.compile; or a random
            operator is called that has no keyed implementation, or with an explicit generator.
    Example:
        >>> noisy = seeded(lambda x: x + torch.randn(3), torchlayers.random.key(0))
        >>> torch.equal(noisy(torch.zeros(3)), noisy(torch.zeros(3)))
        True
        >>> apply, params, buffers = torchlayers.functional(torch.nn.Dropout())
        >>> output, _ = seeded(apply, torchlayers.random.key(1))(params, buffers, torch.ones(4))

    Source: most similar are flax.linen's rngs, by which modules draw.
    """
    check_key("seeded", key)

    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        if tracing_state.is_tracing():
            raise TransformError(
                "torchlayers: random.seeded does not work in torch.compile. Draw by keys there "
                "(torchlayers.random.normal), or compile the function inside."
            )
        with _C.seeded_entry(_seen_by_modes(key)):
            return func(*args, **kwargs)

    return transformed(func, wrapper)


def _seen_by_modes(key: Tensor) -> Tensor:
    """The key as an operator gets it: control flow replaces what a branch captures."""
    return key.view_as(key) if _C.any_function_mode() else key


def recomputation() -> tuple[Any, Any]:
    """Returns contexts with which torch.utils.checkpoint redraws the same numbers on recomputation.

    For the recomputation, checkpoint itself resets torch's generator, but not the draw counts of
    :func:`seeded` and keyed vmaps. These contexts reset those.

    Returns:
        Two contexts: one for the function, and one for its recomputation.
    Example:
        >>> from torch.utils.checkpoint import checkpoint
        >>> def f(x):
        ...     return checkpoint(
        ...         torch.nn.functional.dropout, x, use_reentrant=False, context_fn=recomputation
        ...     ).sum()
        >>> x = torch.ones(4, requires_grad=True)
        >>> seeded(f, torchlayers.random.key(0))(x).backward()

    Source: the context_fn of torch.utils.checkpoint.checkpoint.
    """
    first = _ForwardContext()  # type: ignore[no-untyped-call]
    return first, _RecomputationContext(first)


class DrawCounters:
    """Snapshot of the draw counts of all keyed layers on the stack."""

    def __init__(self) -> None:
        draws, self._key = _C.draws()
        self._layers = [number for number, _ in draws]
        self._counts = [count for _, count in draws]

    def have_advanced(self) -> bool:
        """Whether there have been draws since."""
        return [count for _, count in _C.draws()[0]] != self._counts

    @contextlib.contextmanager
    def replayed(self) -> Iterator[None]:
        """Resets the draw counts to the snapshot inside, and restores the current ones on exit."""
        draws, _ = _C.draws()
        counts = [count for _, count in draws]
        with contextlib.ExitStack() as stack:
            stack.callback(_C.set_draws, counts)
            if [number for number, _ in draws[: len(self._layers)]] == self._layers:
                _C.set_draws(self._counts)
            elif self._key is not None:  # seeded has returned; backward runs through its graph
                stack.enter_context(_C.seeded_entry(self._key))
                _C.set_draws([*counts, self._counts[-1]])
            else:
                raise TransformError(
                    "torchlayers: the keyed vmap has returned, so its draws can't be repeated. Run "
                    "the backward pass inside that vmap."
                )
            yield


class BranchDraws:
    """Separates the draws of control flow, whose number depends on the branch or the trip count.

    A sample's draws must not depend on what other samples do. So each branch, and each loop, starts
    from a separate draw count, and code after it continues as if there had been one draw.
    """

    _counted = 1  # as this many draws by the code after it

    def __init__(self) -> None:
        self._counts = [count for _, count in _C.draws()[0]]

    def start(self) -> None:
        """Call this before each branch, and before a loop."""
        if self._counts:
            _C.set_draws([self._start(count) for count in self._counts])

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *error: object) -> None:
        if self._counts:
            _C.set_draws([count + self._counted for count in self._counts])

    @staticmethod
    def _start(count: int) -> int:
        return _splitmix64(count)


class JvpDraws(BranchDraws):
    """Separates the draws of a Function's jvp, which runs only if it is differentiated.

    Code after it continues as if it had drawn nothing.
    """

    _counted = 0

    def __enter__(self) -> "Self":
        self.start()
        return self

    @staticmethod
    def _start(count: int) -> int:
        return _splitmix64(_splitmix64(count))  # a branch may start at the same count


def _splitmix64(count: int) -> int:
    """Hashes a count to one far from any other's: splitmix64, Steele et al. (2014), section 4."""
    word = 2**64 - 1
    mixed = (count + 1) * 0x9E3779B97F4A7C15 & word
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & word
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & word
    return (mixed ^ mixed >> 31) >> 2


class _ForwardContext(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode, but never pushed: while a graph is captured, torch's checkpoint takes only modes."""

    draws: DrawCounters | None

    def __enter__(self) -> Any:
        self.draws = DrawCounters()
        return self

    def __exit__(self, *error: object) -> None:
        if self.draws is not None and not self.draws.have_advanced():
            self.draws = None


class _RecomputationContext(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, first: _ForwardContext) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._first = first
        self._replayed = contextlib.ExitStack()

    def __enter__(self) -> Any:
        if self._first.draws is not None:
            self._replayed.enter_context(self._first.draws.replayed())
        return self

    def __exit__(self, *error: object) -> None:
        self._replayed.close()
