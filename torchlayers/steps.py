"""Steps of torch.func's transforms that a package has replaced by its own.

NOTE [Replaced steps]
torch.func's transforms are Python, and packages assign to the functions that they consist of:
tensordict, so that vmap takes a TensorDict's batch size for its dimensions; pypose, so that a
LieTensor is still one when it is wrapped. What is computed there is what these functions say. Ours
do the same steps themselves; where one of them is not torch's own any more, they call it in place
of their own. It finds our layer, which stands in torch.func's stack too (NOTE [The mirror]). Only
entering and leaving can't be somebody else's, and are refused. Who replaces a whole transform has
replaced torch.func's, and not ours.

Each function is looked up at each call, as torch.func does it: so it does not matter whether it
was replaced before or after torchlayers was imported, or for how long.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor
from torch._functorch import eager_transforms, vmap
from torch.autograd import forward_ad

from torchlayers import _C, tree
from torchlayers.errors import TransformError

VMAP, CHUNKS, GRAD, JVP, FUNCTIONALIZE = range(5)  # as csrc/python/steps.h counts them

# What to call in place of steps of ours: functions of torch.func's, by name.
Replaced: TypeAlias = Mapping[str, Callable[..., Any]]

_MODULES: dict[str, Any] = {
    module.__name__.rpartition(".")[2]: module for module in (eager_transforms, forward_ad, vmap)
}
_NAMES = ("vmap", "vmap", "grad", "jvp", "functionalize")

_WRAP = (
    "eager_transforms._wrap_all_tensors",
    "eager_transforms._wrap_tensor_for_grad",
    "eager_transforms._wrap_for_grad",
)
_UNWRAP = (
    "eager_transforms._undo_create_differentiable",
    "eager_transforms._unwrap_for_grad",
)

# A step's function, and those that it calls.
_STEPS: dict[int, tuple[tuple[str, ...], ...]] = {
    VMAP: (
        ("vmap._process_batched_inputs", "vmap._validate_and_get_batch_size"),
        ("vmap._create_batched_inputs", "vmap._add_batch_dim"),
        ("vmap._unwrap_batched", "vmap._maybe_remove_batch_dim", "vmap._remove_batch_dim"),
    ),
    CHUNKS: (),
    GRAD: (
        _WRAP,
        (
            "eager_transforms._create_differentiable",
            "eager_transforms._set_tensor_requires_grad",
            "eager_transforms.enable_inplace_requires_grad",
        ),
        ("eager_transforms._autograd_grad",),
        _UNWRAP,
    ),
    JVP: (
        _WRAP,
        ("forward_ad.make_dual",),
        ("eager_transforms.safe_unpack_dual", "forward_ad.unpack_dual"),
        _UNWRAP,
    ),
    FUNCTIONALIZE: (),
}

_REFUSED: dict[int, tuple[str, ...]] = {
    VMAP: (
        "vmap._flat_vmap",
        "vmap.vmap_increment_nesting",
        "vmap._vmap_increment_nesting",
        "vmap._vmap_decrement_nesting",
    ),
    CHUNKS: (
        "vmap._chunked_vmap",
        "vmap._get_chunked_inputs",
        "vmap._flatten_chunks_output",
        "vmap._concat_chunked_outputs",
    ),
    GRAD: (
        "eager_transforms.grad_increment_nesting",
        "eager_transforms._grad_increment_nesting",
        "eager_transforms._grad_decrement_nesting",
    ),
    JVP: (
        "eager_transforms.jvp_increment_nesting",
        "eager_transforms.enter_jvp_nesting",
        "eager_transforms.exit_jvp_nesting",
        "eager_transforms._jvp_increment_nesting",
        "eager_transforms._jvp_decrement_nesting",
    ),
    FUNCTIONALIZE: (
        "eager_transforms._wrap_all_tensors_to_functional",
        "eager_transforms._maybe_wrap_functional_tensor",
        "eager_transforms._unwrap_all_tensors_from_functional",
        "eager_transforms._maybe_unwrap_functional_tensor",
        "eager_transforms._func_increment_nesting",
        "eager_transforms._func_decrement_nesting",
    ),
}


class _Watched(NamedTuple):
    """A function of torch.func's, and the one to call in place of our own step; or none."""

    function: str
    step: str | None


def _watch() -> dict[int, list[_Watched]]:
    """What each transform watches, in the order in which _C.replaced_steps counts."""
    watched = {}
    for transform, steps in _STEPS.items():
        watched[transform] = [
            *(_Watched(function, step[0]) for step in steps for function in step),
            *(_Watched(function, None) for function in _REFUSED[transform]),
        ]
        _C.watch_steps(transform, [_place(function) for function, _ in watched[transform]])
    return watched


def _place(function: str) -> tuple[dict[str, Any], str]:
    module, _, name = function.rpartition(".")
    return vars(_MODULES[module]), name


_watched = _watch()
NONE: Replaced = MappingProxyType({})


def replaced(transform: int) -> Replaced:
    """The steps of a transform that are replaced by now.

    Raises:
        TransformError: a function is replaced that no step of ours corresponds to.
    """
    indices = _C.replaced_steps(transform)
    if indices is None:
        return NONE
    found = {}
    for function, step in (_watched[transform][index] for index in indices):
        if step is None:
            raise _refusal(transform, function)
        names, name = _place(step)
        found[name] = names[name]
    return found


def wrap(values: Any, level: int, replaced: Replaced) -> Any:
    """The values with every tensor wrapped at the level of a grad or jvp, untracked."""
    if wrap_all := replaced.get("_wrap_all_tensors"):
        return wrap_all(values, level)
    return tree.map_tensors(lambda leaf: _C.wrap_argument(leaf, False), values)


def unwrap(values: Any, level: int, replaced: Replaced) -> Any:
    """The values with every tensor of that level unwrapped."""
    if values is None:
        return None
    if unwrap_all := replaced.get("_undo_create_differentiable"):
        return unwrap_all(values, level)
    return tree.map_tensors(lambda leaf: _C.unwrap(leaf, level), values)


def unwrap_leaves(leaves: list[Tensor], level: int, replaced: Replaced) -> list[Tensor]:
    if replaced:
        return [unwrap(leaf, level, replaced) for leaf in leaves]
    return [_C.unwrap(leaf, level) for leaf in leaves]


def _refusal(transform: int, function: str) -> TransformError:
    names, name = _place(function)
    by = names[name]
    written = f"{getattr(by, '__module__', '?')}.{getattr(by, '__qualname__', repr(by))}"
    return TransformError(
        f"torchlayers: {_NAMES[transform]}: {names['__name__']}.{name} was replaced by {written}, "
        "which can't be called here: torchlayers does otherwise what torch's own function does. "
        f"Put torch's back, or use torch.func.{_NAMES[transform]}."
    )
