"""Several modules of one architecture as one function: ensemble, and their state stacked."""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from torchlayers.core import tracing_state
from torchlayers.core.device import RandomState, has_numbers
from torchlayers.core.errors import StructureError, TransformError
from torchlayers.modules.functional import Apply, Named, functional
from torchlayers.transforms.chunking import ChunkSize
from torchlayers.transforms.vmap import vmap

__all__ = ["Ensemble", "ensemble", "stack_module_state"]

Modules = Sequence[nn.Module] | nn.ModuleList

_functorch: Any = torch._C._functorch


@dataclass(frozen=True)
class Ensemble:
    """What :func:`ensemble` gives to call: its members, run as one.

    Example:
        >>> import dataclasses
        >>> members, params, buffers = ensemble(lambda: torch.nn.BatchNorm1d(1), seeds=range(2))
        >>> evaluated = dataclasses.replace(members, training=False)
        >>> output, _ = evaluated(params, buffers, torch.ones(3, 1))
        >>> output.shape
        torch.Size([2, 3, 1])
    """

    modules: tuple[nn.Module, ...]
    training: bool | None = None
    in_dims: int | tuple[Any, ...] | None = None
    randomness: str = "different"
    chunk_size: ChunkSize = None

    @cached_property
    def _apply(self) -> Apply:
        return functional(self.modules[0], training=self.training)[0]

    def __call__(
        self, params: Named, buffers: Named, /, *args: Any, **kwargs: Any
    ) -> tuple[Any, Named]:
        """The members' outputs and new buffers, stacked."""
        in_dims = self.in_dims if isinstance(self.in_dims, tuple) else (self.in_dims,) * len(args)
        if len(in_dims) != len(args):
            raise StructureError(
                f"torchlayers: ensemble: in_dims={in_dims} are for {len(in_dims)} positional "
                f"arguments after params and buffers, and the call has {len(args)}."
            )
        batched = vmap(
            self._apply,
            (0, 0, *in_dims),
            randomness=self.randomness,
            chunk_size=self.chunk_size,
        )
        result: tuple[Any, Named] = batched(params, buffers, *args, **kwargs)
        return result

    def load(self, *states: Mapping[str, Tensor]) -> None:
        """Copies stacked parameters and buffers, or some of them, into the modules.

        Raises:
            StructureError: a module has no such name, or not in that shape.
        Example:
            >>> nets = [torch.nn.Linear(1, 1, bias=False) for _ in range(2)]
            >>> members, params, buffers = ensemble(nets)
            >>> members.load({"weight": torch.tensor([[[1.0]], [[2.0]]])})
            >>> nets[1].weight.item()
            2.0
        """
        own = [_state(module) for module in self.modules]
        for name, stacked in ((name, value) for state in states for name, value in state.items()):
            if name not in own[0]:
                raise StructureError(
                    f"torchlayers: Ensemble.load: the modules have no {name!r}. Their names are: "
                    f"{', '.join(own[0])}."
                )
            shape = (len(own), *own[0][name].shape)
            if stacked.shape != shape:
                raise StructureError(
                    f"torchlayers: Ensemble.load: {name!r} has shape {tuple(stacked.shape)}, and "
                    f"the {len(own)} modules' together have {shape}."
                )
            with torch.no_grad():
                for state, value in zip(own, stacked, strict=True):
                    state[name].copy_(value)


def ensemble(
    modules: Modules | Callable[[], nn.Module],
    *,
    seeds: Iterable[int] | None = None,
    training: bool | None = None,
    in_dims: int | tuple[Any, ...] | None = None,
    randomness: str = "different",
    chunk_size: ChunkSize = None,
) -> tuple[Ensemble, Named, Named]:
    """Modules of one architecture as one pure function of their stacked state.

    ``members(params, buffers, *args, **kwargs)`` calls all of them at once and returns
    ``(outputs, new_buffers)``, the first dimension of each the members'. As with
    :func:`functional`, nothing is written to: each member's running statistics come back as
    values. It may stand inside any transform. Everything but tensors is taken from the
    first module.

    Args:
        modules: a sequence of modules, which are kept, and the first of which is called. Or, with
            seeds, a function without arguments that makes one.
        seeds: an int a member. Each is made after ``torch.manual_seed(seed)``, one after another;
            the generators then go on as if nothing had been drawn. Its parameters and buffers are
            views of the stacked ones: no member has memory of its own.
        training: as for :func:`functional`.
        in_dims: which dimension of each argument is the members': None where all get the
            same, an int, or a tuple with an entry a positional argument as for
            :func:`torchlayers.vmap`. Keyword arguments are the same for all.
        randomness: whether random operators (dropout) draw numbers of its own for each member:
            "different", "same", or "error" where they are to be refused.
        chunk_size: how many members at a time, as for :func:`torchlayers.vmap`.
    Returns:
        ``(members, params, buffers)``. params and buffers are dicts by name, as those of
        :func:`functional`, with the members in front; where the modules' tensors lie in one
        already, they share its memory. ``members.modules`` are the modules,
        ``members.load(params, buffers)`` copies state into them, and ``dataclasses.replace(members,
        training=False)`` is the same with another option.
    Raises:
        StructureError: the modules are of different classes, modes, names or shapes, or a module
            of torch's has another setting in one of them; in_dims do not fit the arguments.
        TransformError: no modules or seeds; a module is lazy.
        TypeError: what is given, or made, is no nn.Module.
    Example:
        >>> members, params, buffers = ensemble(lambda: torch.nn.BatchNorm1d(1), seeds=range(2))
        >>> members(params, buffers, torch.ones(4, 1))[0].shape
        torch.Size([2, 4, 1])
        >>> own_data = torch.tensor([1.0, 2.0]).view(2, 1, 1).expand(2, 4, 1)
        >>> members, params, buffers = ensemble(members.modules, in_dims=0)
        >>> _, new_buffers = members(params, buffers, own_data)
        >>> new_buffers["running_mean"].flatten()
        tensor([0.1000, 0.2000])

    Source: the idea is JAX's, of a vmap over what initialises and what applies a network.
    """
    if seeds is None:
        if isinstance(modules, nn.Module) and not isinstance(modules, nn.ModuleList):
            raise TypeError(
                f"torchlayers: ensemble: got one {type(modules).__name__}. Give a sequence of "
                "modules, or a function that makes one, with seeds."
            )
        if not isinstance(modules, (Sequence, nn.ModuleList)):
            raise TypeError(
                "torchlayers: ensemble: modules must be a sequence of modules, or a function that "
                f"makes one, with seeds; got {type(modules).__name__}."
            )
        given = tuple(modules)
        _check_alike(given)
        params, buffers = stack_module_state(given, copy=False)
    else:
        if isinstance(modules, (Sequence, nn.Module)):
            raise TypeError(
                "torchlayers: ensemble: with seeds, the first argument must be a function that "
                f"makes a module; got {type(modules).__name__}."
            )
        given, params, buffers = _made(modules, [operator.index(seed) for seed in seeds])
    members = Ensemble(given, training, in_dims, randomness, chunk_size)
    return members, _detached(params), _detached(buffers)


def stack_module_state(models: Modules, *, copy: bool = True) -> tuple[Named, Named]:
    """The parameters and buffers of modules of one class, stacked by their names.

    Args:
        models: a sequence of modules, or an nn.ModuleList.
        copy: with False, tensors of the models that lie in one tensor already, as those of
            modules made by :func:`ensemble` do, are not copied: the result is a view of them,
            and who writes to it writes to the models.
    Returns:
        ``(params, buffers)``: dicts by name, of tensors with the models in front. They are leaves
        that require grad where the models' do, ready for an optimizer.
    Raises:
        RuntimeError: there is no model; models are of different classes or modes, or differ in
            names, shapes or in what requires grad.
    Example:
        >>> params, buffers = stack_module_state([torch.nn.Linear(3, 2) for _ in range(5)])
        >>> params["weight"].shape, params["weight"].is_leaf
        (torch.Size([5, 2, 3]), True)

    Source: torch.func.stack_module_state.
    """
    models = tuple(models)
    api = "stack_module_state"
    if not models:
        raise TransformError(f"torchlayers: {api}: Expected at least one model, got 0.")
    if len({model.training for model in models}) > 1:
        raise StructureError(
            f"torchlayers: {api}: Expected all models to have the same training/eval mode. Call "
            "train() or eval() on each."
        )
    if other := next(
        (model for model in models if _class_of(model) is not _class_of(models[0])), None
    ):
        raise StructureError(
            f"torchlayers: {api}: Expected all models to be of the same class, got "
            f"{type(models[0]).__name__} and {type(other).__name__}."
        )
    return (
        _stacked(api, [dict(model.named_parameters()) for model in models], copy),
        _stacked(api, [dict(model.named_buffers()) for model in models], copy),
    )


def _stacked(api: str, states: list[Named], copy: bool) -> Named:
    for i, state in enumerate(states):
        _check_names(api, states[0], state, i)
    return {name: _leaf(api, name, [state[name] for state in states], copy) for name in states[0]}


def _leaf(api: str, name: str, tensors: list[Tensor], copy: bool) -> Tensor:
    requires_grad = tensors[0].requires_grad
    if any(tensor.requires_grad != requires_grad for tensor in tensors):
        raise StructureError(
            f"torchlayers: {api}: Expected {name} from each model to have the same .requires_grad."
        )
    values = [tensor.detach() for tensor in tensors]
    stacked = None if copy else _one_tensor(values)
    if stacked is None:
        stacked = torch.stack(values)
    return stacked.requires_grad_() if requires_grad else stacked


def _one_tensor(values: list[Tensor]) -> Tensor | None:
    """The tensor that the values are the rows of, if there is one."""
    first, *others = values
    if tracing_state.is_tracing() or not others or not all(map(_is_plain, values)):
        return None
    storage, begin = first.untyped_storage().data_ptr(), first.storage_offset()
    step = others[0].storage_offset() - begin
    is_one = step >= first.numel() > 0 and all(
        other.untyped_storage().data_ptr() == storage
        and other.storage_offset() == begin + i * step
        and (other.shape, other.stride()) == (first.shape, first.stride())
        and (other.dtype, other.device) == (first.dtype, first.device)
        for i, other in enumerate(others, start=1)
    )
    if not is_one:
        return None
    return first.as_strided((len(values), *first.shape), (step, *first.stride()))


def _is_plain(tensor: Tensor) -> bool:
    """Nothing stands between it and its memory."""
    return (
        type(tensor) is Tensor
        and tensor.layout is torch.strided
        and has_numbers(tensor)
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not _functorch.is_functorch_wrapped_tensor(tensor)
    )


def _detached(state: Named) -> Named:
    return {name: value.detach() for name, value in state.items()}


def _state(module: nn.Module) -> Named:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


# Made by a function


def _made(
    make: Callable[[], nn.Module], seeds: list[int]
) -> tuple[tuple[nn.Module, ...], Named, Named]:
    """The modules, and their state, of which theirs are views."""
    made: list[nn.Module] = []
    state: Named = {}
    with RandomState().restored():
        for i, seed in enumerate(seeds):
            torch.manual_seed(seed)
            module = make()
            _check_module(module)
            own = _state(module)
            if not made:
                state = {name: t.new_empty(len(seeds), *t.shape) for name, t in own.items()}
            _check_names("ensemble", _state(made[0]) if made else own, own, i)
            for name, tensor in own.items():
                tensor.data = state[name][i].copy_(tensor.detach())
            made.append(module)
    modules = tuple(made)
    _check_alike(modules)
    params = {name: state[name] for name, _ in modules[0].named_parameters()}
    return modules, params, {name: t for name, t in state.items() if name not in params}


# Members that are alike


def _check_module(module: Any) -> None:
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"torchlayers: ensemble: each member must be an nn.Module, got {type(module).__name__}."
        )
    if lazy := next((name for name, t in module.named_parameters() if is_lazy(t)), None):
        raise TransformError(
            f"torchlayers: ensemble: {lazy!r} has no shape yet. Call the module on a sample first."
        )


def _check_alike(modules: Sequence[nn.Module]) -> None:
    """All but the tensors is read from the first one, so it has to say the same of all."""
    if not modules:
        raise TransformError("torchlayers: ensemble: Expected at least one module, got 0.")
    for module in modules:
        _check_module(module)
    first = [*modules[0].named_modules()]
    for i, module in enumerate(modules):
        parts = [*module.named_modules()]
        if [name for name, _ in parts] != [name for name, _ in first]:
            raise StructureError(
                f"torchlayers: ensemble: member {i} has other submodules than member 0. All must "
                "be built alike."
            )
        for (name, part), (_, other) in zip(parts, first, strict=True):
            where = f"{name!r} of member {i}" if name else f"member {i}"
            if _class_of(part) is not _class_of(other):
                raise StructureError(
                    f"torchlayers: ensemble: {where} is a {type(part).__name__}, and member 0 has "
                    f"a {type(other).__name__} there. All must be of one class."
                )
            for setting, value in _settings(other).items():
                if vars(part).get(setting, value) != value:
                    raise StructureError(
                        f"torchlayers: ensemble: {where} has {setting}={vars(part)[setting]!r}, "
                        f"and member 0 has {setting}={value!r}. All are called with the first's: "
                        "make them the same."
                    )


def _class_of(part: nn.Module) -> type:
    """A parametrized module is of a class of its own, made of this one."""
    return parametrize.type_before_parametrizations(part)


def _settings(part: nn.Module) -> dict[str, Any]:
    """What a module computes with besides tensors, as far as torch's own tell."""
    settings: dict[str, Any] = {"training": part.training}
    if _class_of(part).__module__.startswith("torch.nn.modules."):
        plain = (bool, int, float, str, tuple)
        settings |= {
            name: value
            for name, value in vars(part).items()
            if not name.startswith("_") and isinstance(value, plain)
        }
    return settings


def _check_names(api: str, first: Named, other: Named, i: int) -> None:
    if differing := sorted(first.keys() ^ other.keys()):
        raise StructureError(
            f"torchlayers: {api}: member {i} and member 0 must have the same names, and "
            f"{differing} are in one of them alone."
        )
    for name, tensor in other.items():
        if tensor.shape != first[name].shape:
            raise StructureError(
                f"torchlayers: {api}: {name!r} has shape {tuple(tensor.shape)} in member {i}, and "
                f"{tuple(first[name].shape)} in member 0: they must be the same."
            )
