"""checkpoint: what a function saves for its gradient is computed again when it is asked for.

While the function runs, each level that records it gives the tensors that it saves to a pair of
saved-tensor hooks, which keep a place for each and no tensor. The reverse pass of a level asks for
the first of them, the function runs once more, on the stack of layers that it ran on (NOTE [Where
a hook runs] in csrc/core/earlier_stack.h), and the places of that level are filled.
"""

import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from torchlayers import _C, torch_compile, tree
from torchlayers.checkpoint_policies import Policy, everything_saveable, nothing_saveable
from torchlayers.errors import RecomputationError
from torchlayers.kept import Giving, Keeping
from torchlayers.stack import transformed
from torchlayers.surroundings import Surroundings

P = ParamSpec("P")
R = TypeVar("R")

_torch: Any = torch  # what it keeps for its own use has no types
_level_on_top: Any = _torch._C._functorch.maybe_current_level

__all__ = ["checkpoint"]


def checkpoint(func: Callable[P, R], policy: Policy | None = None) -> Callable[P, R]:
    """The function, whose saved tensors are computed again in the backward.

    It may be nested, inside a transform and around one, under every nest of transforms; it draws
    the same random numbers again, in the same autocast mode. It has to compute the same from the
    same arguments each time, and may read captured tensors.

    Args:
        func: takes and returns tensors and pytrees of tensors.
        policy: what is kept all the same, operator by operator
            (:mod:`torchlayers.checkpoint_policies`); None keeps the arguments alone.
    Returns:
        A function with func's arguments and results.
    Raises:
        RecomputationError: func did something else when it was recomputed, or one of its arguments
            has been written to since.
    Example:
        >>> layer = checkpoint(lambda x: x.sin().exp())
        >>> torchlayers.grad(lambda x: layer(layer(x)).sum())(torch.zeros(2))
        tensor([1.2534, 1.2534])

    Source: jax.checkpoint; Griewank and Walther, "Evaluating Derivatives" (2008), chapter 12.
    """

    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch_compile.is_tracing():  # torch.func's transforms refuse hooks there
            return func(*args, **kwargs)
        if policy is everything_saveable or not torch.is_grad_enabled() or is_recording():
            return func(*args, **kwargs)
        return _Region(func, policy, args, kwargs).run()  # type: ignore[no-any-return]

    return transformed(func, wrapper)


def is_recording() -> bool:
    """Whether a program is recorded to be compiled.

    A recomputation would be recorded too, and draw random numbers of its own in every call.
    """
    key = _torch._C._TorchDispatchModeKey.PROXY
    return _torch._C._get_dispatch_mode(key) is not None


class _Done(BaseException):
    """All that was asked for has been recomputed. An `except Exception` does not stop it."""


class _Place:
    """A saved tensor's, filled where it has been recomputed and not been read yet."""

    __slots__ = ("__weakref__", "like", "stream", "value")

    def __init__(self, stream: int, like: Any) -> None:
        self.stream, self.like = stream, like
        self.value: Tensor | None = None


# Besides the levels' streams of saved tensors, the one of those that regions inside were given.
_ARGUMENTS = -1


class _Region:
    """One call of a checkpointed function."""

    def __init__(
        self,
        func: Callable[..., Any],
        policy: Policy | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self.func = func
        self.leaves, self.spec = tree.flatten((args, kwargs))
        self.depth = _level_on_top() or 0
        self.places: dict[int, list[weakref.ref[_Place]]] = {}
        self.surroundings = Surroundings()
        self.keeping = (
            Keeping(policy) if policy is not None and policy is not nothing_saveable else None
        )
        self.inputs = _Inputs(self.leaves)

    def run(self) -> Any:
        args, kwargs = tree.unflatten(self.leaves, self.spec)
        del self.leaves  # which `inputs` may have packed
        with self._hooks(_Packing(self)), self.keeping or nullcontext():
            result = self.func(*args, **kwargs)
        self.surroundings.forget_unused()
        return result

    def place(self, tensor: Tensor) -> _Place:
        stream = _stream()
        place = _Place(stream, _looks(tensor))
        self.places.setdefault(stream, []).append(weakref.ref(place))
        return place

    def read(self, place: _Place) -> Tensor:
        if place.value is None:
            self._recompute(place.stream)
        value, place.value = place.value, None
        assert value is not None
        return value

    def _recompute(self, stream: int) -> None:
        wanted = {
            key: [place() for place in self.places.get(key, ())] for key in (stream, _ARGUMENTS)
        }
        filling = _Filling(self, wanted)
        args, kwargs = tree.unflatten(self.inputs.read(self.func), self.spec)
        with ExitStack() as stack:
            stack.enter_context(self.surroundings.again())
            stack.enter_context(torch.enable_grad())
            stack.enter_context(self._hooks(filling))
            if self.keeping is not None:
                stack.enter_context(Giving(self.keeping.results))
            try:
                self.func(*args, **kwargs)
            except _Done:
                return
        filling.check(stream)

    @staticmethod
    def _hooks(hooks: "_Hooks") -> saved_tensors_hooks:
        return AdoptedHooks(hooks, hooks.unpack)


class AdoptedHooks(saved_tensors_hooks):
    """Hooks that have been put on their stack by the time that the block begins."""

    def __enter__(self) -> None:
        super().__enter__()
        _C.adopt_saved_hooks()


class _Hooks:
    """What a region does with the tensors that are saved while its function runs."""

    remakes_tangents = True  # csrc/python/saved_hooks.cpp

    def __init__(self, region: _Region) -> None:
        self.region = region

    def __call__(self, tensor: Tensor) -> Any:
        if (_level_on_top() or 0) > self.region.depth:  # of a transform that the function calls
            return _C.without_graphs(tensor)
        return self.pack(tensor)

    def pack(self, tensor: Tensor) -> Any:
        raise NotImplementedError

    def unpack(self, packed: Any) -> Tensor:
        return packed if isinstance(packed, Tensor) else self.region.read(packed)


class _Packing(_Hooks):
    """At first: keeps places."""

    def pack(self, tensor: Tensor) -> _Place:
        return self.region.place(tensor)


class _Filling(_Hooks):
    """When it is recomputed: fills those of one level."""

    def __init__(self, region: _Region, wanted: dict[int, list[_Place | None]]) -> None:
        super().__init__(region)
        self.wanted = wanted
        self.counts = dict.fromkeys(wanted, 0)

    def pack(self, tensor: Tensor) -> Tensor:
        value: Tensor = _C.without_graphs(tensor)
        stream = _stream()
        if stream not in self.wanted:
            return value
        places, count = self.wanted[stream], self.counts[stream]
        self.counts[stream] += 1
        if count < len(places):
            self._fill(places[count], value)
            places[count] = None
        if all(self.counts[key] >= len(places) for key, places in self.wanted.items()):
            raise _Done
        return value

    def _fill(self, place: _Place | None, value: Tensor) -> None:
        if place is None:  # nobody will read it any more
            return
        if place.like != _looks(value):
            raise RecomputationError(
                f"torchlayers: checkpoint: {tree.name_of(self.region.func)} saved a tensor "
                f"{_in_words(place.like)} for its gradient, and {_in_words(_looks(value))} when "
                "it was recomputed. It has to do the same each time."
            )
        place.value = value

    def check(self, stream: int) -> None:
        raise RecomputationError(
            f"torchlayers: checkpoint: {tree.name_of(self.region.func)} saved "
            f"{len(self.wanted[stream])} tensors for its gradient, and {self.counts[stream]} when "
            "it was recomputed. It has to do the same each time."
        )


class _Thread(threading.local):
    saves_arguments = False


_thread = _Thread()


class _Inputs:
    """The arguments until they are needed again: as a region or hooks around this one keep them."""

    def __init__(self, leaves: list[Any]) -> None:
        is_packed = _torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
        self.versions = [leaf._version if _has_version(leaf) else 0 for leaf in leaves]
        if not is_packed:
            self.leaves = leaves
            return
        outer, _thread.saves_arguments = _thread.saves_arguments, True
        try:
            self.leaves = [
                _C.SavedByHooks(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves
            ]
        finally:
            _thread.saves_arguments = outer

    def read(self, func: Callable[..., Any]) -> list[Any]:
        for leaf, version in zip(self.leaves, self.versions, strict=True):
            if _has_version(leaf) and leaf._version != version:
                raise RecomputationError(
                    f"torchlayers: checkpoint: an argument of {tree.name_of(func)} has been "
                    "written to since, and is needed for its gradient. Use the out-of-place "
                    "operator, or write to a clone."
                )
        saved = _C.SavedByHooks
        return [leaf.unpack() if isinstance(leaf, saved) else leaf for leaf in self.leaves]


def _stream() -> int:
    return _ARGUMENTS if _thread.saves_arguments else _level_on_top() or 0


def _has_version(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and not leaf.is_inference()


def _looks(tensor: Tensor) -> Any:
    return tensor.shape, tensor.dtype, tensor.device


def _in_words(looks: Any) -> str:
    shape, dtype, device = looks
    return f"of shape {tuple(shape)} and {dtype} on {device}"
