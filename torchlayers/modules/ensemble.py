"""ensemble: runs several modules of one architecture as one; stack_module_state."""

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
from torchlayers.core.annotations import Randomness
from torchlayers.core.device import RandomState, has_data
from torchlayers.core.errors import CallError, StructureError, TransformError
from torchlayers.core.torch_private import is_wrapped
from torchlayers.modules.functional import Apply, Named, check_state, functional
from torchlayers.transforms.chunking import ChunkSize
from torchlayers.transforms.vmap import vmap

__all__ = ["Ensemble", "ensemble", "stack_module_state"]

Modules = Sequence[nn.Module] | nn.ModuleList


@dataclass(frozen=True)
class Ensemble:
    """A callable that runs all members of an ensemble at once; made by :func:`ensemble`.

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
    randomness: Randomness = "different"
    chunk_size: ChunkSize = None

    @cached_property
    def _apply(self) -> Apply:
        return functional(self.modules[0], training=self.training)[0]

    def __call__(
        self, params: Named, buffers: Named, /, *args: Any, **kwargs: Any
    ) -> tuple[Any, Named]:
        """Returns the members' outputs and new buffers, stacked."""
        check_state("ensemble", params, buffers)
        in_dims = self.in_dims if isinstance(self.in_dims, tuple) else (self.in_dims,) * len(args)
        if len(in_dims) != len(args):
            raise StructureError(
                f"torchlayers: ensemble: in_dims={in_dims} has {len(in_dims)} entries, but the "
                f"call has {len(args)} positional arguments after params and buffers."
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
        """Copies stacked parameters and buffers, all or some, into the modules.

        Raises:
            StructureError: the modules have no tensor of that name, or one of another shape.
        Example:
            >>> nets = [torch.nn.Linear(1, 1, bias=False) for _ in range(2)]
            >>> members, params, buffers = ensemble(nets)
            >>> members.load({"weight": torch.tensor([[[1.0]], [[2.0]]])})
            >>> nets[1].weight.item()
            2.0
        """
        states_here = [_state(module) for module in self.modules]
        for name, stacked in ((name, value) for state in states for name, value in state.items()):
            if name not in states_here[0]:
                raise StructureError(
                    "torchlayers: Ensemble.load: the modules have no parameter or buffer "
                    f"{name!r}. Their names are: {', '.join(states_here[0])}."
                )
            shape = (len(states_here), *states_here[0][name].shape)
            if stacked.shape != shape:
                raise StructureError(
                    f"torchlayers: Ensemble.load: {name!r} has shape {tuple(stacked.shape)}, but "
                    f"the stacked shape for {len(states_here)} modules is {shape}."
                )
            with torch.no_grad():
                for state, value in zip(states_here, stacked, strict=True):
                    state[name].copy_(value)


def ensemble(
    modules: Modules | Callable[[], nn.Module],
    *,
    seeds: Iterable[int] | None = None,
    training: bool | None = None,
    in_dims: int | tuple[Any, ...] | None = None,
    randomness: Randomness = "different",
    chunk_size: ChunkSize = None,
) -> tuple[Ensemble, Named, Named]:
    """Combines modules of one architecture into one pure function of their stacked state.

    ``members(params, buffers, *args, **kwargs)`` calls all of them at once and returns
    ``(outputs, new_buffers)``, each stacked along a leading member dimension. As with
    :func:`functional`, nothing is written in place: each member's running statistics are returned
    as values. It may be used inside any transform. Everything but tensors is taken from the
    first module.

    Args:
        modules: a sequence of modules, which the ensemble holds; the first one is called. Or,
            with seeds, a function without arguments that returns a new module.
        seeds: one int per member. Members are created in turn, each after
            ``torch.manual_seed(seed)``; the generators' states are restored afterwards. The
            members' parameters and buffers are views of the stacked ones and use no further memory.
        training: as for :func:`functional`.
        in_dims: the member dimension of each argument: None where all members get the same, an
            int, or a tuple with an entry for each positional argument as for
            :func:`torchlayers.vmap`. Keyword arguments are the same for all.
        randomness: how random operators (dropout) draw: "different" numbers for each member, the
            "same" for all, or "error" to raise an error.
        chunk_size: how many members to run at a time, as for :func:`torchlayers.vmap`.
    Returns:
        ``(members, params, buffers)``. params and buffers are dicts by name, as those of
        :func:`functional`, with a leading member dimension. They are views of the modules' tensors
        if these already lie in one stacked tensor. ``members.modules`` are the modules,
        ``members.load(params, buffers)`` copies state into them, and ``dataclasses.replace(members,
        training=False)`` changes an option.
    Raises:
        StructureError: the modules differ in class, mode, names or shapes, or a submodule of a
            torch class differs in another setting; in_dims do not match the arguments.
        TransformError: there are no modules or seeds; a module is lazy.
        TypeError: an item, or the function's result, is not an nn.Module.
    Example:
        >>> members, params, buffers = ensemble(lambda: torch.nn.BatchNorm1d(1), seeds=range(2))
        >>> members(params, buffers, torch.ones(4, 1))[0].shape
        torch.Size([2, 4, 1])
        >>> own_data = torch.tensor([1.0, 2.0]).view(2, 1, 1).expand(2, 4, 1)
        >>> members, params, buffers = ensemble(members.modules, in_dims=0)
        >>> _, new_buffers = members(params, buffers, own_data)
        >>> new_buffers["running_mean"].flatten()
        tensor([0.1000, 0.2000])

    Source: in JAX, a network's init and apply functions are vmapped to the same end.
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
        members_given = tuple(modules)
        _check_alike(members_given)
        params, buffers = stack_module_state(members_given, copy=False)
    else:
        if isinstance(modules, (Sequence, nn.Module)):
            raise TypeError(
                "torchlayers: ensemble: with seeds, the first argument must be a function that "
                f"makes a module; got {type(modules).__name__}."
            )
        members_given, params, buffers = _build_members(
            modules, [operator.index(seed) for seed in seeds]
        )
    members = Ensemble(members_given, training, in_dims, randomness, chunk_size)
    return members, _detached(params), _detached(buffers)


def stack_module_state(models: Modules, *, copy: bool = True) -> tuple[Named, Named]:
    """Stacks the parameters and buffers of modules of one class, by name.

    Args:
        models: a sequence of modules, or an nn.ModuleList.
        copy: False: tensors of the models that already lie in one stacked tensor, as those of
            modules made by :func:`ensemble` do, are not copied. The result is then a view of
            them, and writing to it writes to the models.
    Returns:
        ``(params, buffers)``: dicts by name, of tensors with a leading model dimension. They are
        leaf tensors that require grad where the models' do, ready for an optimizer.
    Raises:
        RuntimeError: there are no models, or they differ in class, mode, names, shapes or
            requires_grad.
    Example:
        >>> params, buffers = stack_module_state([torch.nn.Linear(3, 2) for _ in range(5)])
        >>> params["weight"].shape, params["weight"].is_leaf
        (torch.Size([5, 2, 3]), True)

    Source: torch.func.stack_module_state.
    """
    api = "stack_module_state"
    if not isinstance(models, Iterable):
        raise CallError(
            f"torchlayers: {api}: models must be a sequence of modules, got "
            f"{type(models).__name__}. For one module write [module]."
        )
    models = tuple(models)
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
    """Returns the stacked tensor whose rows the values are, or None if they are not."""
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
    """Whether the tensor reads its memory directly, without wrappers or pending conj or neg."""
    return (
        type(tensor) is Tensor
        and tensor.layout is torch.strided
        and has_data(tensor)
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not is_wrapped(tensor)
    )


def _detached(state: Named) -> Named:
    return {name: value.detach() for name, value in state.items()}


def _state(module: nn.Module) -> Named:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


# Members made by a function


def _build_members(
    make: Callable[[], nn.Module], seeds: list[int]
) -> tuple[tuple[nn.Module, ...], Named, Named]:
    """Makes the modules; returns them and their stacked state, of which their tensors are views."""
    built: list[nn.Module] = []
    state: Named = {}
    with RandomState().restored():
        for i, seed in enumerate(seeds):
            torch.manual_seed(seed)
            module = make()
            _check_module(module)
            state_of_module = _state(module)
            if not built:
                state = {
                    name: t.new_empty(len(seeds), *t.shape) for name, t in state_of_module.items()
                }
            _check_names(
                "ensemble", _state(built[0]) if built else state_of_module, state_of_module, i
            )
            for name, tensor in state_of_module.items():
                tensor.data = state[name][i].copy_(tensor.detach())
            built.append(module)
    modules = tuple(built)
    _check_alike(modules)
    params = {name: state[name] for name, _ in modules[0].named_parameters()}
    return modules, params, {name: t for name, t in state.items() if name not in params}


# Checks that members are alike


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
    """Raises if the modules differ in more than tensor values, as the first is called for all."""
    if not modules:
        raise TransformError("torchlayers: ensemble: Expected at least one module, got 0.")
    for module in modules:
        _check_module(module)
    first = [*modules[0].named_modules()]
    for i, module in enumerate(modules):
        parts = [*module.named_modules()]
        if [name for name, _ in parts] != [name for name, _ in first]:
            raise StructureError(
                f"torchlayers: ensemble: the submodules of member {i} differ from those of member "
                "0. All members must have the same architecture."
            )
        for (name, part), (_, other) in zip(parts, first, strict=True):
            where = f"{name!r} of member {i}" if name else f"member {i}"
            if _class_of(part) is not _class_of(other):
                raise StructureError(
                    f"torchlayers: ensemble: {where} is a {type(part).__name__}, but member 0 has "
                    f"a {type(other).__name__} there. All must be of the same class."
                )
            for setting, value in _settings(other).items():
                if vars(part).get(setting, value) != value:
                    raise StructureError(
                        f"torchlayers: ensemble: {where} has {setting}={vars(part)[setting]!r}, "
                        f"but member 0 has {setting}={value!r}. All members run with the first "
                        "one's settings: make them the same."
                    )


def _class_of(part: nn.Module) -> type:
    """Returns the module's class. For a parametrized module, whose class torch replaces by a
    generated one, returns the original."""
    return parametrize.type_before_parametrizations(part)


def _settings(part: nn.Module) -> dict[str, Any]:
    """Returns the non-tensor settings of a module; of the public attributes, only those of torch's
    own classes."""
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
            f"torchlayers: {api}: member {i} and member 0 must have the same names, but only one "
            f"of them has {differing}."
        )
    for name, tensor in other.items():
        if tensor.shape != first[name].shape:
            raise StructureError(
                f"torchlayers: {api}: {name!r} has shape {tuple(tensor.shape)} in member {i}, and "
                f"{tuple(first[name].shape)} in member 0: they must be the same."
            )
