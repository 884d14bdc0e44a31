"""functional: converts a module to a pure function of its parameters and buffers."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchlayers import _C
from torchlayers.core import pytree, tracing_state
from torchlayers.core.errors import CallError
from torchlayers.core.torch_private import functorch, is_batched_wrapper
from torchlayers.modules.functional_call import functional_call

__all__ = ["functional"]

# The base classes of all batch norms, and of those and instance norms.
_BatchNorm: Any = nn.BatchNorm1d.__base__
_NormBase: Any = nn.InstanceNorm1d.__mro__[2]

Named = dict[str, Tensor]
Modes = dict[nn.Module, bool]
Apply = Callable[..., tuple[Any, Named]]


def functional(module: nn.Module, *, training: bool | None = None) -> tuple[Apply, Named, Named]:
    """Converts a module to a pure function, with its parameters and buffers as values.

    ``apply(params, buffers, *args, **kwargs)`` calls the module on the arguments and returns
    ``(output, new_buffers)``. It writes neither to the module's buffers nor to those passed in:
    buffers that the module updates (batch norm statistics) are returned as new values. Under
    ``vmap`` there is one set for each sample, or each member of an ensemble; under ``grad`` return
    it as aux, with ``has_aux=True``.

    Under ``vmap`` the module may write to buffers even if only the input is batched: each sample
    then has its own. Batch norms with a cumulative average (``momentum=None``) count batches in a
    tensor.

    Args:
        module: any nn.Module that :func:`functional_call` takes. ``apply`` holds and calls it.
        training: apply calls the module in training mode (True) or evaluation mode (False), as
            ``module.train(training)`` would set it now; None: in its mode at each call.
    Returns:
        ``(apply, params, buffers)``. params and buffers are dicts by name; tied tensors appear
        under the first of their names. The tensors share memory with the module's, and do not
        require grad.
    Raises:
        CallError: module is not an nn.Module; or apply got something else than a dict for params
            or buffers.
        RuntimeError: the names passed to apply differ from the module's.
    Example:
        >>> apply, params, buffers = functional(torch.nn.BatchNorm1d(1, momentum=1.0))
        >>> x = torch.tensor([[1.0], [3.0]])
        >>> output, new_buffers = apply(params, buffers, x)
        >>> new_buffers["running_mean"], buffers["running_mean"]
        (tensor([2.]), tensor([0.]))
        >>> by_sample = torchlayers.vmap(lambda x: apply(params, buffers, x))
        >>> _, new_buffers = by_sample(torch.stack([x, -x]))
        >>> new_buffers["running_mean"]
        tensor([[ 2.],
                [-2.]])

    Source: the interface follows JAX's neural network libraries.
    """
    _check_module(module)
    modes = {} if training is None else _modes(module, training)
    own_modes = {part: mode for part, mode in modes.items() if _holds_its_mode(part)}
    assigned = {part: mode for part, mode in modes.items() if part not in own_modes}

    def apply(params: Named, buffers: Named, /, *args: Any, **kwargs: Any) -> tuple[Any, Named]:
        check_state("functional", params, buffers)
        state = {**params, **_copies(module, modes, buffers, (params, buffers, args, kwargs))}
        if tracing_state.is_tracing():
            with _in_modes(modes):
                output = functional_call(module, state, args, kwargs, strict=True)
        else:
            settings = (
                *((vars(part), "training", mode) for part, mode in own_modes.items()),
                *_cumulative(module, modes, buffers),
            )
            with _in_modes(assigned) if assigned else _UNCHANGED:
                output = _C.call_module(module, state, args, kwargs, True, True, settings)
        return output, {name: state[name] for name in buffers}

    return (
        apply,
        {name: parameter.detach() for name, parameter in module.named_parameters()},
        {name: buffer.detach() for name, buffer in module.named_buffers()},
    )


def _check_module(module: Any) -> None:
    if not isinstance(module, nn.Module):
        got = f"the class {module.__name__}" if isinstance(module, type) else type(module).__name__
        raise CallError(f"torchlayers: functional: takes a module, an nn.Module, got {got}.")


def check_state(api: str, params: Any, buffers: Any) -> None:
    """Checks the first two arguments of a function of parameters and buffers.

    Raises:
        CallError: one is not a dict.
    """
    for name, values in (("params", params), ("buffers", buffers)):
        if not isinstance(values, (dict, Mapping)):
            raise CallError(
                f"torchlayers: {api}: {name} must be a dict of tensors by name, got "
                f"{type(values).__name__}. The function takes params, buffers and then the "
                "arguments of the module; a module without buffers has an empty dict of them."
            )


# Training mode


_UNCHANGED = nullcontext()


def _modes(module: nn.Module, training: bool) -> Modes:
    """Returns the mode that module.train(training), which classes may override, sets on each
    submodule."""
    before = _modes_now(module.modules())
    try:
        module.train(training)
        return _modes_now(module.modules())
    finally:
        _set(before)


def _modes_now(modules: Iterable[nn.Module]) -> Modes:
    return {part: part.training for part in modules}


def _set(modes: Modes) -> None:
    for part, mode in modes.items():
        part.training = mode


def _holds_its_mode(part: nn.Module) -> bool:
    """Whether `training` is stored in the module's `__dict__`: not so for a script module or a
    property."""
    return type(part).__setattr__ is nn.Module.__setattr__ and not hasattr(type(part), "training")


@contextmanager
def _in_modes(modes: Modes) -> Iterator[None]:
    before = _modes_now(modes)
    _set(modes)
    try:
        yield
    finally:
        _set(before)


# Writable copies of buffers


def _copies(module: nn.Module, modes: Modes, buffers: Named, args: Any) -> Named:
    """Returns writable copies of the buffers; running statistics are batched at every level at
    which any argument of the call is."""
    if tracing_state.is_tracing() or not _C.any_layer():
        return {name: buffer.clone() for name, buffer in buffers.items()}
    statistics = {*_statistics(module, modes)}
    batched = _most_batched(args) if statistics else []
    return {
        name: _batched_copy(buffer, batched) if name in statistics else buffer.clone()
        for name, buffer in buffers.items()
    }


def _statistics(module: nn.Module, modes: Modes) -> Iterator[str]:
    """Yields the names of the running statistics that norms update in the call."""
    for prefix, _ in _training_norms(module, modes):
        for name in ("running_mean", "running_var"):
            yield f"{prefix}.{name}" if prefix else name


def _training_norms(module: nn.Module, modes: Modes) -> Iterator[tuple[str, _NormBase]]:
    for prefix, part in module.named_modules(remove_duplicate=False):
        if isinstance(part, _NormBase) and modes.get(part, part.training):
            yield prefix, part


def _most_batched(args: Any) -> list[Tensor]:
    """Returns tensors that together are batched at all levels at which any tensor is."""
    chosen, covered = [], set[int]()
    for leaf in pytree.leaves(args):
        if isinstance(leaf, Tensor) and not (levels := _batch_levels(leaf)) <= covered:
            chosen.append(leaf)
            covered |= levels
    return chosen


def _batch_levels(tensor: Tensor) -> set[int]:
    levels = set()
    while (level := functorch.maybe_get_level(tensor)) > 0:
        if is_batched_wrapper(tensor):
            levels.add(level)
        tensor = functorch.get_unwrapped(tensor)
    return levels


def _batched_copy(buffer: Tensor, batched: list[Tensor]) -> Tensor:
    copy = buffer.clone()
    for other in batched:
        # A detached zero takes over the other tensor's batch levels, and no value or gradient.
        copy = copy + other.detach().new_zeros((), dtype=copy.dtype, device=copy.device)
    return copy


# Batch norms with a cumulative average


def _cumulative(
    module: nn.Module, modes: Modes, buffers: Named
) -> Iterator[tuple[dict[str, Any], str, Callable[[Tensor], Tensor]]]:
    """Yields settings that replace the forward of batch norms whose momentum is None.

    torch uses one over the number of batches as a Python number there, which is not available
    under vmap and in a captured graph.
    """
    if not any(name.endswith("num_batches_tracked") for name in buffers):
        return
    for _, norm in _training_norms(module, modes):
        if (
            isinstance(norm, _BatchNorm)
            and norm.momentum is None
            and norm.track_running_stats
            and norm.num_batches_tracked is not None
            and type(norm).forward is _BatchNorm.forward
            and "forward" not in vars(norm)
        ):
            yield vars(norm), "forward", partial(_averaged, norm)


def _averaged(norm: Any, input: Tensor) -> Tensor:
    """The batch norm's forward with a tensor momentum."""
    norm._check_input_dim(input)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.num_batches_tracked is not None
    norm.num_batches_tracked.add_(1)
    mean, var = torch.zeros_like(norm.running_mean), torch.zeros_like(norm.running_var)
    output = F.batch_norm(input, mean, var, norm.weight, norm.bias, True, 1.0, norm.eps)
    for running, of_batch in ((norm.running_mean, mean), (norm.running_var, var)):
        share = 1 / norm.num_batches_tracked.to(running.dtype)
        running.mul_(1 - share).add_(of_batch * share)
    return output
