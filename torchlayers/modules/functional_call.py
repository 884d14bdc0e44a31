"""functional_call: calls a module with other tensors in place of its parameters and buffers."""

import difflib
import itertools
import types
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn

from torch import Tensor, nn
from torch.nn.utils import parametrize

from torchlayers import _C
from torchlayers.core import torch_func, tracing_state
from torchlayers.core.errors import location

Named = dict[str, Tensor]
# How to replace an attribute: [dict, key, new value].
Setting = list[Any]

_RUN_ON_LATER = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)
_ABSENT = object()


def functional_call(
    module: nn.Module,
    parameter_and_buffer_dicts: Named | Sequence[Named],
    args: Any = None,
    kwargs: dict[str, Any] | None = None,
    *,
    tie_weights: bool = True,
    strict: bool = False,
) -> Any:
    """Calls ``module(*args, **kwargs)`` with the given tensors in place of the module's own.

    The module's own tensors are restored when the call returns or raises. Values that it assigns
    to a buffer or parameter during the call (``self.seen = self.seen + 1``) are stored in the dict
    passed in. If the module returns a generator, each of its steps runs with the given tensors.

    Two threads can't call one module at once with different tensors: the second gets an error. A
    plain call, ``module(x)``, on another thread may see the tensors given here, as torchlayers
    can't intercept it; ``functional_call(module, {}, (x,))`` raises an error there instead.

    Args:
        module: any nn.Module, except jitted ones and nn.DataParallel.
        parameter_and_buffer_dicts: tensors of any shape, by the names of ``named_parameters()``
            and ``named_buffers()``; or a tuple of such dicts, without a name in common. Tensors
            that are not named are left in place. A plain tensor attribute may be named too. The
            name of a parametrized tensor (``"linear.weight"``) replaces the computed tensor and
            skips the parametrization; ``"linear.parametrizations.weight.original"`` replaces the
            tensor that it is computed from.
        args: positional arguments; a value that is not a tuple is the only argument.
        kwargs: keyword arguments.
        tie_weights: whether to replace tied tensors together.
        strict: whether the names must be exactly those of the module's parameters and buffers.
    Returns:
        The module's result.
    Raises:
        ValueError: different values are given for tied tensors, or for one tensor in two places;
            a name is in two dicts.
        TypeError: a given value is not a tensor, or the attribute to replace is not.
        AttributeError: a name refers to a submodule that does not exist.
        RuntimeError: with strict, a name is missing or unexpected; another thread is calling the
            module; it is jitted.
    Example:
        >>> net = torch.nn.Linear(2, 1)
        >>> x, given = torch.ones(3, 2), {"weight": torch.ones(1, 2), "bias": torch.ones(1)}
        >>> functional_call(net, given, (x,)).flatten()
        tensor([3., 3., 3.])
        >>> torchlayers.grad(lambda given: functional_call(net, given, (x,)).sum())(given)
        {'weight': tensor([[3., 3.]]), 'bias': tensor([3.])}

    Source: the interface is torch.func's.
    """
    if tracing_state.is_tracing():
        return torch_func.functional_call(
            module,
            parameter_and_buffer_dicts,
            args,
            kwargs,
            tie_weights=tie_weights,
            strict=strict,
        )
    return _C.call_module(module, parameter_and_buffer_dicts, args, kwargs, tie_weights, strict, ())


# Called from C++ for unusual arguments and results


def as_one(dicts: Named | Sequence[Named]) -> Named:
    if isinstance(dicts, dict):
        return dicts
    if not isinstance(dicts, Sequence):
        raise ValueError(
            "torchlayers: functional_call: Expected parameter_and_buffer_dicts to be a dict, or "
            f"a list/tuple of dicts, got {type(dicts).__name__}."
        )
    together: Named = {}
    for tensors in dicts:
        if not isinstance(tensors, dict):
            raise ValueError(
                "torchlayers: functional_call: Expected all elements of "
                f"parameter_and_buffer_dicts to be dictionaries, got {type(tensors).__name__}."
            )
        if repeated := [name for name in tensors if name in together]:
            raise ValueError(
                f"torchlayers: functional_call: {repeated} appeared in multiple dictionaries; keep "
                "only one value for each name."
            )
        together.update(tensors)
    return together


def as_keywords(kwargs: Any) -> dict[str, Any]:
    if isinstance(kwargs, Mapping):
        return dict(kwargs)
    raise TypeError(
        "torchlayers: functional_call: kwargs must be a dict of keyword arguments, or None; got "
        f"{type(kwargs).__name__}."
    )


def resumed(
    result: Any,
    module: nn.Module,
    tensors: Named,
    tie_weights: bool,
    settings: tuple[Any, ...],
    run: Callable[..., Any] = _C.run_module,
) -> Any:
    """Wraps a generator that the module returned, so that each step runs with the given tensors.

    Raises TypeError for a coroutine or an async generator, whose steps can't be intercepted.
    """
    if isinstance(result, types.GeneratorType):
        return _steps(
            result,
            lambda step, *sent: run(module, step, tensors, sent, None, tie_weights, settings),
        )
    if isinstance(result, types.CoroutineType):
        result.close()
    raise TypeError(
        f"torchlayers: functional_call: {type(module).__name__} returns a {type(result).__name__}, "
        "which would run after the module's own tensors have been restored. Make the forward an "
        "ordinary function, or a generator."
    )


def _steps(generator: Generator[Any, Any, Any], run: Callable[..., Any]) -> Any:
    """Drives the generator, each step called as run(step, value)."""
    step, sent = generator.send, None
    while True:
        try:
            result = run(step, sent)
        except StopIteration as stop:
            return stop.value
        try:
            sent = yield result
            step = generator.send
        except GeneratorExit:
            run(generator.close)
            raise
        except BaseException as error:
            step, sent = generator.throw, error


# Names that the module does not have


def refuse_names(module: nn.Module, unexpected: list[str], missing: list[str]) -> NoReturn:
    """Raises the error for names that strict does not allow."""
    lines = [
        f"\n\t{kind} key(s): {', '.join(map(repr, names))}."
        for kind, names in (("Unexpected", unexpected), ("Missing", missing))
        if names
    ]
    raise RuntimeError(
        "torchlayers: functional_call: with strict=True the names must be those of the "
        f"{type(module).__name__}.{''.join(lines)}{_meant(module, unexpected)}{location()}"
    )


def _owner(module: nn.Module, name: str) -> Any:
    """Returns the submodule, or other object, that the tensor of this name is an attribute of."""
    path = name.split(".")[:-1]
    owner: Any = module
    for i, child in enumerate(path):
        try:
            owner = getattr(owner, child)
        except AttributeError as error:
            within = f"its {'.'.join(path[:i])!r} ({type(owner).__name__})" if i else "it"
            raise AttributeError(
                f"torchlayers: functional_call: the {type(module).__name__} has no tensor "
                f"{name!r}: {within} has no attribute {child!r}."
                f"{_meant(module, [name])}{location()}"
            ) from error
    return owner


def _meant(module: nn.Module, names: list[str]) -> str:
    """Returns `` Did you mean 'layer.weight'?`` if the module has similar names, else ``""``."""
    tensors = itertools.chain(module.named_parameters(), module.named_buffers())
    names_of_module = [name for name, _ in tensors]
    near = [
        *dict.fromkeys(
            match for name in names for match in difflib.get_close_matches(name, names_of_module, 1)
        )
    ]
    return f" Did you mean {' and '.join(map(repr, near))}?" if near else ""


# Tensors that are neither parameters nor buffers


class _ConstantParametrization(nn.Module):
    """Replaces a parametrization and returns the given tensor."""

    def __init__(self, tensor: Tensor) -> None:
        super().__init__()
        self.__dict__["tensor"] = tensor  # not registered, even if it is a Parameter

    def forward(self) -> Tensor:
        tensor: Tensor = vars(self)["tensor"]
        return tensor


def call_with_attributes(
    module: nn.Module,
    tensors: Named,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None,
    tie_weights: bool,
    settings: tuple[Any, ...],
) -> Any:
    """_C.call_module that also supports plain attributes. strict has already checked the names."""
    result = _run_with_attributes(module, module, tensors, args, kwargs, tie_weights, settings)
    if not isinstance(result, _RUN_ON_LATER):
        return result
    return resumed(result, module, tensors, tie_weights, settings, _run_with_attributes)


def _run_with_attributes(
    module: nn.Module,
    func: Callable[..., Any],
    tensors: Named,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None,
    tie_weights: bool,
    settings: tuple[Any, ...],
) -> Any:
    names = _C.unplanned_names(module, tensors)
    planned = {name: value for name, value in tensors.items() if name not in names}
    settings_of_attributes: dict[str, Setting] = {}
    with ExitStack() as stack:
        for name in names:
            if not isinstance(name, str):
                raise TypeError(
                    "torchlayers: functional_call: keys must be names (str), got a key of type "
                    f"{type(name).__name__}: {name!r}."
                )
            value, owner, key = tensors[name], _owner(module, name), name.rpartition(".")[2]
            _check(owner, key, name, value)
            if place := _place(owner, key, value):
                settings_of_attributes[name] = place
            else:
                stack.enter_context(_assigned(owner, key, name, tensors))
        try:
            return _C.run_module(
                module,
                func,
                planned,
                args,
                kwargs,
                tie_weights,
                (*settings, *settings_of_attributes.values()),
            )
        finally:
            tensors.update(planned)
            for name, (_, _, now) in settings_of_attributes.items():
                if isinstance(now, Tensor):
                    tensors[name] = now


def _check(owner: Any, key: str, name: str, value: Any) -> None:
    if not isinstance(owner, nn.Module):
        raise TypeError(
            f"torchlayers: functional_call: {name!r} is an attribute of a {type(owner).__name__}, "
            "which is not an instance of torch.nn.Module."
        )
    for tensor in (value, getattr(owner, key, None)):
        if tensor is not None and not isinstance(tensor, Tensor):
            raise TypeError(
                f"torchlayers: functional_call: {name!r} must be a tensor and replace a tensor: "
                f"{type(tensor).__name__} is not an instance of torch.Tensor."
            )


def _place(owner: nn.Module, key: str, value: Any) -> Setting | None:
    """Returns the Setting that replaces the attribute, or None if it has to be assigned with
    setattr (properties, slots, an overridden __setattr__)."""
    if parametrize.is_parametrized(owner, key):
        return [owner.parametrizations._modules, key, _ConstantParametrization(value)]  # type: ignore[union-attr]
    is_property = hasattr(getattr(type(owner), key, None), "__set__")  # or a slot
    if is_property or type(owner).__setattr__ is not nn.Module.__setattr__:
        return None
    return [vars(owner), key, value]


@contextmanager
def _assigned(owner: nn.Module, key: str, name: str, by_name: Named) -> Any:
    tensors = next((place for place in (owner._parameters, owner._buffers) if key in place), None)

    def assign(value: Any) -> None:
        if tensors is not None:  # of a script module
            tensors[key] = value
        else:
            setattr(owner, key, value)

    before = getattr(owner, key, _ABSENT)
    assign(by_name[name])
    try:
        yield
    finally:
        by_name[name] = getattr(owner, key, by_name[name])
        if before is _ABSENT:
            delattr(owner, key)
        else:
            assign(before)
