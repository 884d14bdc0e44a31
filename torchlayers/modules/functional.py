"""A module as a pure function of its parameters and buffers, which are plain values."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.utils import _pytree as pytree

from torchlayers import _C
from torchlayers.core import tracing_state
from torchlayers.modules.functional_call import functional_call

__all__ = ["functional"]

Named = dict[str, Tensor]
Modes = dict[nn.Module, bool]
Apply = Callable[..., tuple[Any, Named]]

_functorch: Any = torch._C._functorch


def functional(module: nn.Module, *, training: bool | None = None) -> tuple[Apply, Named, Named]:
    """The module as a pure function, with its parameters and buffers as values.

    ``apply(params, buffers, *args, **kwargs)`` calls the module on the arguments and returns
    ``(output, new_buffers)``. It writes to no buffer, neither the module's nor the one given: what
    the module updates (the statistics of batch norms) comes back as a value. Under ``vmap``
    there is a set for each sample, or each member of an ensemble; under ``grad`` it is passed on
    with ``has_aux=True``.

    Under ``vmap`` buffers may be written to where only the input is batched: each sample then has
    its own. Batch norms that average over all batches (``momentum=None``) count them in a tensor.

    Args:
        module: any nn.Module that :func:`functional_call` takes. It is kept, and called.
        training: apply calls the module in training mode (True) or evaluation mode (False), as
            ``module.train(training)`` would put it now; None: as it is at each call.
    Returns:
        ``(apply, params, buffers)``. params and buffers are dicts by name; tied tensors have the
        first of their names. Their tensors share memory with the module's, and do not require
        grad.
    Raises:
        RuntimeError: apply is called with other names than the module has.
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

    Source: the shape of it is that of JAX's neural network libraries.
    """
    modes = {} if training is None else _modes(module, training)
    held = {part: mode for part, mode in modes.items() if _holds_its_mode(part)}
    assigned = {part: mode for part, mode in modes.items() if part not in held}

    def apply(params: Named, buffers: Named, /, *args: Any, **kwargs: Any) -> tuple[Any, Named]:
        state = {**params, **_copies(module, modes, buffers, (params, buffers, args, kwargs))}
        if tracing_state.is_tracing():
            with _in_modes(modes):
                output = functional_call(module, state, args, kwargs, strict=True)
        else:
            settings = (
                *((vars(part), "training", mode) for part, mode in held.items()),
                *_cumulative(module, modes, buffers),
            )
            with _in_modes(assigned) if assigned else _AS_THEY_ARE:
                output = _C.call_module(module, state, args, kwargs, True, True, settings)
        return output, {name: state[name] for name in buffers}

    return (
        apply,
        {name: parameter.detach() for name, parameter in module.named_parameters()},
        {name: buffer.detach() for name, buffer in module.named_buffers()},
    )


# In which mode


_AS_THEY_ARE = nullcontext()


def _modes(module: nn.Module, training: bool) -> Modes:
    """What module.train(training) makes of each module: a class may have a say in it."""
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
    """In its own dict, where Python finds it: neither a script module nor a property does."""
    return type(part).__setattr__ is nn.Module.__setattr__ and not hasattr(type(part), "training")


@contextmanager
def _in_modes(modes: Modes) -> Iterator[None]:
    before = _modes_now(modes)
    _set(modes)
    try:
        yield
    finally:
        _set(before)


# Buffers that may be written to


def _copies(module: nn.Module, modes: Modes, buffers: Named, given: Any) -> Named:
    """The buffers, to write to: running statistics at every level that the call is batched at."""
    if tracing_state.is_tracing() or not _C.any_layer():
        return {name: buffer.clone() for name, buffer in buffers.items()}
    statistics = {*_statistics(module, modes)}
    batched = _most_batched(given) if statistics else []
    return {
        name: _batched_copy(buffer, batched) if name in statistics else buffer.clone()
        for name, buffer in buffers.items()
    }


def _statistics(module: nn.Module, modes: Modes) -> Iterator[str]:
    """The names of what norms write to in the call."""
    for prefix, _ in _training_norms(module, modes):
        for name in ("running_mean", "running_var"):
            yield f"{prefix}.{name}" if prefix else name


def _training_norms(module: nn.Module, modes: Modes) -> Iterator[tuple[str, _NormBase]]:
    for prefix, part in module.named_modules(remove_duplicate=False):
        if isinstance(part, _NormBase) and modes.get(part, part.training):
            yield prefix, part


def _most_batched(given: Any) -> list[Tensor]:
    """Tensors that are batched, together, at all levels at which any is."""
    chosen, covered = [], set[int]()
    for leaf in pytree.tree_leaves(given):
        if isinstance(leaf, Tensor) and not (levels := _batch_levels(leaf)) <= covered:
            chosen.append(leaf)
            covered |= levels
    return chosen


def _batch_levels(tensor: Tensor) -> set[int]:
    levels = set()
    while (level := _functorch.maybe_get_level(tensor)) > 0:
        if _functorch.is_batchedtensor(tensor):
            levels.add(level)
        tensor = _functorch.get_unwrapped(tensor)
    return levels


def _batched_copy(buffer: Tensor, batched: list[Tensor]) -> Tensor:
    copy = buffer.clone()
    for other in batched:
        # Nobody differentiates by it: it has the levels of the other, and no value of it.
        copy = copy + other.detach().new_zeros((), dtype=copy.dtype, device=copy.device)
    return copy


# Statistics that are the average of all batches


def _cumulative(
    module: nn.Module, modes: Modes, buffers: Named
) -> Iterator[tuple[dict[str, Any], str, Callable[[Tensor], Tensor]]]:
    """Settings for batch norms whose momentum is None.

    Theirs is one over the batches they have seen, of which they make a Python number: under vmap
    and in a recording there is none.
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


def _averaged(norm: _BatchNorm, input: Tensor) -> Tensor:
    """The norm's forward, with its momentum a tensor."""
    norm._check_input_dim(input)  # type: ignore[no-untyped-call]
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
