"""Records which operators use a weight, and with which inputs, while a sample's function runs."""

import types
import weakref
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from torchlayers import _C
from torchlayers.core.errors import TransformError, warn
from torchlayers.core.torch_private import functorch, saved_hooks
from torchlayers.transforms.per_sample.operators import HANDLERS
from torchlayers.transforms.per_sample.uses import Use
from torchlayers.transforms.per_sample.weight import WeightGradient

_torch: Any = torch  # its private names have no type stubs


def _warn_of_batch_norm(api: str) -> None:
    warn(
        f"torchlayers: {api}: batch norm in training normalizes each sample by the statistics of "
        "that sample alone, which is another network than the one that a batch trains. Use group "
        "norm or layer norm, or call eval() of the batch norm to use its running statistics."
    )


class WeightUseMode(TorchFunctionMode):
    """Passes operators that multiply by a weight its detached value, and records the call."""

    def __init__(
        self,
        api: str,
        level: int,
        leaves: list[Tensor],
        weights: list[WeightGradient],
        anchor: Tensor,
    ) -> None:
        super().__init__()
        self.api, self.level, self.anchor = api, level, anchor
        self.leaves = leaves
        self.weights = dict(zip(map(id, leaves), weights, strict=True))

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is _torch.batch_norm and (args[5] if len(args) > 5 else kwargs["training"]):
            _warn_of_batch_norm(self.api)
        used = {id(leaf) for leaf in _tensors((args, kwargs))} & self.weights.keys()
        if not used:
            return func(*args, **kwargs)
        if (body := _body(func)) is not None:
            with self:
                return body(*args, **kwargs)
        if (use := self._use(func, args, kwargs)) is not None:
            return self._call_operator(use, func, args, kwargs)
        result = func(*args, **kwargs)
        if any(tensor.requires_grad for tensor in _tensors(result)):
            for leaf_id in used:
                self.weights[leaf_id].is_used_otherwise = True
        return result

    def _use(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Use | None:
        """Returns the use to record for a call, or None if the call is to run as usual.

        Only calls at this level, with grad mode on and without saved-tensor hooks, are recorded.
        """
        reader = HANDLERS.get(func)
        if (
            reader is None
            or functorch.maybe_current_level() != self.level
            or not torch.is_grad_enabled()
            or saved_hooks._top_saved_tensors_default_hooks(True) is not None
        ):
            return None
        use = reader(*args, **kwargs)
        if use is None or use.weight is use.x or id(use.weight) not in self.weights:
            return None
        return None if use.weight.is_complex() else use

    def _call_operator(self, use: Use, func: Any, args: Any, kwargs: dict[str, Any]) -> Tensor:
        leaf, value = use.weight, _C.unwrap(use.weight, self.level)

        def unwrap_leaf(operand: Any) -> Any:
            return value if operand is leaf else operand

        result: Tensor = func(
            *map(unwrap_leaf, args),
            **{name: unwrap_leaf(operand) for name, operand in kwargs.items()},
        )
        if not result.requires_grad:
            result = result + self.anchor
        use.weight, use.x = value, _C.unwrap(use.x, self.level)
        is_unchanged = _watch_version(use.x)
        expect = self.weights[id(leaf)].expect(use)

        def arrive(g: Tensor) -> None:
            if not is_unchanged(use.x):
                raise TransformError(
                    f"torchlayers: {self.api}: the input that was multiplied by a weight has been "
                    "written to since, but is needed for the norm of the weight's gradient. Use "
                    "the out-of-place operator, or write to a clone."
                )
            expect(_C.unwrap(g, self.level))

        result.register_hook(arrive)  # type: ignore[no-untyped-call]
        return result


def _watch_version(x: Tensor) -> Callable[[Tensor], bool]:
    """Returns a function that tells whether x, passed again, is unchanged, without keeping it."""
    # A write at any level bumps the version of the tensor that holds the values, or replaces it.
    holder = _C.holder_of(x)
    version = None if holder.is_inference() else holder._version
    which = weakref.ref(holder)

    def is_unchanged(x: Tensor) -> bool:
        now = _C.holder_of(x)
        return which() is now and (version is None or now._version == version)

    return is_unchanged


def _tensors(values: Any) -> Iterator[Tensor]:
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, (tuple, list)):
        for value in values:
            yield from _tensors(value)
    elif isinstance(values, dict):
        yield from _tensors([*values.values()])


@cache
def _body(func: Any) -> Callable[..., Any] | None:
    """Returns the body of a Python function of torch.nn.functional, or None for other functions.

    In it, checks for torch function overrides return False, so that it does not call the mode.
    """
    if not isinstance(func, types.FunctionType) or func.__module__ != F.__name__:
        return None
    asks = {name: _without_modes for name in func.__code__.co_names if name.startswith(_MODE_CHECK)}
    if not asks:
        return None
    body = types.FunctionType(
        func.__code__,
        {**func.__globals__, **asks},
        func.__name__,
        func.__defaults__,
        func.__closure__,
    )
    body.__kwdefaults__ = func.__kwdefaults__
    return body


_MODE_CHECK = "has_torch_function"


def _without_modes(*args: Any) -> bool:
    return False
