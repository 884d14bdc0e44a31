"""tap and intermediates, and the wrappers that give other transforms their ``taps`` argument."""

from collections.abc import Callable, Mapping
from typing import Any

from torchlayers.core import pytree, tracing_state
from torchlayers.core.annotations import P, T
from torchlayers.core.errors import TapError, TransformError
from torchlayers.core.layer_stack import transformed
from torchlayers.taps.gradients import Gradients
from torchlayers.taps.listener import Names
from torchlayers.taps.loop_steps import thread
from torchlayers.taps.tangents import Tangents
from torchlayers.taps.values import Values


def tap(value: T, name: str) -> T:
    """Names a value inside a function, for transforms to read or differentiate with respect to it.

    Args:
        value: a tensor or a pytree of tensors.
        name: the name by which transforms refer to the value.
    Returns:
        The value. Gradients are taken with respect to what is returned, so continue with that.
    Raises:
        TapError: name is not a string; or a transform that uses the name encounters it twice, other
            than in different steps of one loop.
    Example:
        >>> def loss(x):
        ...     hidden = tap(x.sin(), "hidden")
        ...     return (hidden**2).sum()
        >>> x = torch.zeros(2)
        >>> intermediates(loss)(x)
        {'hidden': tensor([0., 0.])}
        >>> torchlayers.grad(loss, taps="hidden")(x + 1)
        (tensor([0.9093, 0.9093]), {'hidden': tensor([1.6829, 1.6829])})

    Source: Flax's Module.sow and Module.perturb.
    """
    if not isinstance(name, str):
        raise TapError(
            f"torchlayers: tap: name must be a string, got {type(name).__name__}. Write tap(value, "
            '"name").'
        )
    for listener in reversed(thread.listeners):
        value = listener.meet(name, value, is_module=False)
    return value


def intermediates(
    func: Callable[P, Any], names: Names | None = None
) -> Callable[P, dict[str, Any]]:
    """Makes a function return the values that it names by :func:`tap`, and module outputs by path.

    Args:
        func: any function of tensors; transforms may be inside and around it.
        names: which values: names of taps, and paths of modules, as in ``named_modules()`` of the
            outermost module that is called, for the outputs of those modules. None for all taps.
    Returns:
        A function with func's arguments that returns a dict of the values by name, in the order in
        which func produces them. If func uses vmap, a value has its batch dimension in front; if
        it uses scan, map or fori_loop, a dimension for the steps.
    Raises:
        TapError: there is no value with a requested name, or more than one.
    Example:
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Tanh())
        >>> intermediates(net, ["0"])(torch.ones(5, 3))["0"].shape
        torch.Size([5, 2])
        >>> torchlayers.vmap(intermediates(net, "0"))(torch.ones(5, 3))["0"].shape
        torch.Size([5, 2])

    Source: Flax's capture_intermediates.
    """

    def wrapper(*args: Any, **kwargs: Any) -> dict[str, Any]:
        _refuse_tracing("intermediates")
        listener = Values("intermediates", names)
        with listener.listening():
            func(*args, **kwargs)
        return listener.wholes()

    return transformed(func, wrapper)


def with_taps(
    api: str,
    transform: Callable[[Any], Any],
    func: Callable[..., Any],
    names: Names,
    has_more: bool,
) -> Callable[..., Any]:
    """Applies a grad-like transform to func and adds the gradients by taps to its result.

    has_more: whether the transform returns a pair of the gradients and something else.
    """

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        _refuse_tracing(api)
        listener = Gradients(api, names)

        def tapped(*args: Any, **kwargs: Any) -> Any:
            listener.connect_to((args, kwargs))
            with listener.listening():
                return func(*args, **kwargs)

        result = transform(tapped)(*args, **kwargs)
        if not has_more:
            return result, listener.gradients()
        gradients, more = result
        return (gradients, listener.gradients()), more

    return transformed(func, wrapper)


def with_values(
    api: str, func: Callable[..., Any], has_aux: bool, names: Names
) -> Callable[..., Any]:
    """Wraps func to return ``(output, {name: value})``."""

    def tapped(*args: Any) -> Any:
        _refuse_tracing(api)
        listener = Values(api, names)
        with listener.listening():
            result = func(*args)
        if not has_aux:
            return result, listener.wholes()
        output, aux = pytree.split_aux(api, result)
        return (output, listener.wholes()), aux

    return transformed(func, tapped)


def with_tangents(
    api: str, func: Callable[..., Any], tangents: Mapping[str, Any]
) -> Callable[..., Any]:
    """Wraps func, for a jvp, to add these tangents to those that the tapped values already have."""

    def tapped(*args: Any) -> Any:
        _refuse_tracing(api)
        with Tangents(api, tangents).listening():
            return func(*args)

    return transformed(func, tapped)


def _refuse_tracing(api: str) -> None:
    if tracing_state.is_tracing():
        raise TransformError(
            f"torchlayers: {api}: torch.compile does not support taps. Use them outside the "
            "compiled function, or return the values."
        )
