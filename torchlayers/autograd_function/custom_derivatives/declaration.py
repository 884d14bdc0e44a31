"""The decorated function of custom_jvp and custom_vjp, and the arguments and results of a call."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Generic, overload

import torch
from torch import Tensor

from torchlayers.core import pytree, tracing_state
from torchlayers.core.annotations import P, R
from torchlayers.core.errors import CallError


class CustomFunction(Generic[P, R]):
    """A function, which of its arguments are not differentiated, and how it is called."""

    api = ""

    @overload
    def __init__(
        self, fun: Callable[P, R], nondiff_argnums: int | tuple[int, ...] = ()
    ) -> None: ...
    @overload
    def __init__(
        self: "CustomFunction[..., Any]",
        fun: None = None,
        nondiff_argnums: int | tuple[int, ...] = (),
    ) -> None: ...
    def __init__(
        self, fun: Callable[..., Any] | None = None, nondiff_argnums: int | tuple[int, ...] = ()
    ) -> None:
        self.nondiff_argnums = nondiff_argnums
        if fun is not None:
            self._take(fun)

    def _take(self, fun: Callable[..., Any]) -> None:
        if not callable(fun):
            raise CallError(
                f"torchlayers: {self.api} decorates a function, but was given one of type "
                f"{type(fun).__name__}. Pass nondiff_argnums by its name."
            )
        self.fun = fun
        functools.update_wrapper(self, fun)

    @property
    def _name(self) -> str:
        return pytree.name_of(self.fun)

    @tracing_state.skipped_while_tracing
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if "fun" not in vars(self):  # @custom_jvp(nondiff_argnums=...)
            self._take(*args, **kwargs)  # type: ignore[arg-type]
            return self  # type: ignore[return-value]
        return self._call(bind(self.api, self.fun, args, kwargs))  # type: ignore[no-any-return]

    def _call(self, args: tuple[Any, ...]) -> Any:
        raise NotImplementedError

    def _arguments(self, args: tuple[Any, ...]) -> "DifferentiatedArguments":
        places: Sequence[int] = ()
        if self.nondiff_argnums != ():
            places = sorted(pytree.positions(self.api, self.nondiff_argnums, len(args)))
        return DifferentiatedArguments(args, places)


class DifferentiatedArguments:
    """A call's arguments, without the tensors that are differentiated.

    Attributes:
        nondiff: the arguments that are not differentiated.
    """

    def __init__(self, args: tuple[Any, ...], places: Sequence[int]) -> None:
        self.nondiff = pytree.pick(args, places)
        self._nondiff_by_place = dict(zip(places, self.nondiff, strict=True))
        self._count = len(args)
        others = tuple(arg for i, arg in enumerate(args) if i not in places)
        self._others = pytree.TensorLeaves(others)

    def take_tensors(self) -> list[Tensor]:
        """Returns the tensors, and forgets them."""
        tensors, self._others.tensors = self._others.tensors, []
        return tensors

    def differentiated(self, tensors: Sequence[Tensor]) -> tuple[Any, ...]:
        """The differentiated arguments, with these tensors."""
        return self._others.put_in(tensors)  # type: ignore[no-any-return]

    def all(self, tensors: Sequence[Tensor]) -> list[Any]:
        rest = iter(self.differentiated(tensors))
        known = self._nondiff_by_place
        return [known[i] if i in known else next(rest) for i in range(self._count)]


def bind(
    api: str, fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    """Returns all arguments by position, with defaults."""
    try:
        signature = inspect.signature(fun)
    except (TypeError, ValueError):  # a builtin without a signature
        if kwargs:
            raise CallError(
                f"torchlayers: {api}: {pytree.name_of(fun)} has no signature, so its arguments "
                "must be positional."
            ) from None
        return args
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise CallError(
            f"torchlayers: {api}: {pytree.name_of(fun)} does not take these arguments: {error}."
        ) from error
    bound.apply_defaults()
    if bound.kwargs:
        raise CallError(
            f"torchlayers: {api}: {pytree.name_of(fun)} takes {', '.join(bound.kwargs)} by keyword "
            "only, but the rules of a derivative take all arguments by position."
        )
    return bound.args


class OutputStructure:
    """The structure of what a function returned, without its tensors."""

    def __init__(self, tree: Any) -> None:
        leaves = pytree.TensorLeaves(tree)
        self.tensors = tuple(leaves.tensors)
        self.is_float = [is_float(x) for x in self.tensors]
        leaves.tensors = []
        self._leaves = leaves

    def forget(self) -> tuple[Tensor, ...]:
        tensors, self.tensors = self.tensors, ()
        return tensors

    def put_in(self, tensors: Sequence[Tensor]) -> Any:
        return self._leaves.put_in(tensors)


def is_float(x: Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()


def not_input(x: Tensor, inputs: Sequence[Tensor]) -> Tensor:
    """A Function's output that is an input would not get the rule."""
    return x.clone() if any(x is leaf for leaf in inputs) else x


def save_call(ctx: Any, inputs: Any, output: Sequence[Tensor]) -> None:
    """The setup_context of a Function of a call and tensors: saves both, for either mode."""
    ctx.call, *tensors = inputs
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*(x for x in output if not is_float(x)))
    ctx.save_for_backward(*tensors)
    ctx.save_for_forward(*tensors)


def or_zeros(derivatives: Sequence[Any], like: Sequence[Tensor]) -> list[Tensor]:
    pairs = zip(derivatives, like, strict=True)
    return [torch.zeros_like(x) if t is None else t for t, x in pairs]
