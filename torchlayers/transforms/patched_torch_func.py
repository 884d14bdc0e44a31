"""Detects torch.func internals that another package has monkeypatched, and calls the patches.

NOTE [Replaced steps]
torch.func's transforms are written in Python, and packages patch their internal functions:
tensordict, so that vmap takes a TensorDict's batch size for its dimensions; pypose, so that a
LieTensor stays one when it is wrapped. Our transforms implement the same steps; if torch's function
for a step was replaced, they call the replacement instead of their own code. It finds our layer,
which is in torch.func's stack too (NOTE [The mirror]). Only entering and leaving a layer can't be
replaced: that raises an error. A package that replaces a whole transform replaces torch.func's, not
ours.

Each function is looked up at each call, as in torch.func, so it does not matter whether it was
replaced before or after torchlayers was imported, or for how long.
"""

from collections.abc import Callable, Mapping
from types import BuiltinFunctionType, FunctionType, MappingProxyType, ModuleType
from typing import Any, NamedTuple, TypeAlias

from torch.autograd import forward_ad

from torchlayers import _C
from torchlayers.core.errors import TransformError
from torchlayers.core.private_names import lookup

# As csrc/python/calls/patched_torch_func.h counts them.
VMAP, CHUNKS, GRAD, JVP, FUNCTIONALIZE = range(5)

# torch.func's functions, by name, to call instead of our own steps.
Replaced: TypeAlias = Mapping[str, Callable[..., Any]]

_MODULES: dict[str, Any] = {
    "eager_transforms": lookup("torch._functorch.eager_transforms", ModuleType("absent")),
    "forward_ad": forward_ad,
    "vmap": lookup("torch._functorch.vmap", ModuleType("absent")),
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

# For each step, its function and the functions that it calls.
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


def _place(function: str) -> tuple[dict[str, Any], str]:
    module, _, name = function.rpartition(".")
    return vars(_MODULES[module]), name


class _WatchedFunction(NamedTuple):
    """A function of torch.func, and the one to call instead of our own step, or None."""

    function: str
    step: str | None
    names: dict[str, Any]
    name: str


_watched = {
    transform: [
        _WatchedFunction(function, step, *_place(function))
        for function, step in (
            *((function, step[0]) for step in steps for function in step),
            *((function, None) for function in _REFUSED[transform]),
        )
    ]
    for transform, steps in _STEPS.items()
}
_torchs_functions: dict[str, Any] = {}  # the functions last seen that are torch's own


def patched_bits() -> int:
    """Returns a bit mask of the transforms that have a replaced step.

    C++ calls it when a global of one of the modules has changed, and caches the result.
    """
    return sum(
        1 << transform for transform, watched in _watched.items() if any(map(_is_replaced, watched))
    )


def _is_replaced(watched: _WatchedFunction) -> bool:
    function = watched.names.get(watched.name)
    if function is None or _torchs_functions.get(watched.function) is function:
        return False
    if not _is_unpatched(function):
        return True
    _torchs_functions[watched.function] = function
    return False


def _is_unpatched(function: Any) -> bool:
    if not isinstance(function, FunctionType):
        return isinstance(function, BuiltinFunctionType)
    # Its __module__ may be copied by functools.wraps.
    home = function.__globals__.get("__name__", "")
    if home == "contextlib" and hasattr(function, "__wrapped__"):  # a context manager
        return _is_unpatched(function.__wrapped__)
    return str(home).startswith("torch.")


_C.watch_steps([vars(module) for module in _MODULES.values()])
_NONE: Replaced = MappingProxyType({})


def patched_steps(transform: int) -> Replaced:
    """Returns the currently replaced steps of a transform.

    Raises:
        TransformError: a function is replaced that corresponds to none of our steps.
    """
    if not _C.any_step_replaced(transform):
        return _NONE
    steps = {}
    for watched in filter(_is_replaced, _watched[transform]):
        if watched.step is None:
            raise _refusal(transform, watched)
        names, name = _place(watched.step)
        steps[name] = names[name]
    return steps


def _refusal(transform: int, watched: _WatchedFunction) -> TransformError:
    _, _, names, name = watched
    by = names[name]
    written = f"{getattr(by, '__module__', '?')}.{getattr(by, '__qualname__', repr(by))}"
    return TransformError(
        f"torchlayers: {_NAMES[transform]}: {names['__name__']}.{name} was replaced by {written}, "
        "which can't be called here: torchlayers does not use torch's function for this step. "
        f"Restore torch's function, or use torch.func.{_NAMES[transform]}."
    )
