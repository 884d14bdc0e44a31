"""What JAX's names are called here, for the errors of those who come from JAX.

docs/from-jax.md has them in tables, with what differs.
"""

import difflib
import inspect
from collections.abc import Callable, Mapping
from inspect import Parameter
from types import MappingProxyType
from typing import Any, NoReturn, TypeVar

__all__ = ["FUNCTIONS", "refuse_keywords", "refuse_name", "without_others"]

F = TypeVar("F", bound=Callable[..., Any])

# What to write in place of a function of jax, jax.lax, jax.tree or jax.random.
FUNCTIONS: Mapping[str, str] = MappingProxyType(
    {
        "PRNGKey": "torchlayers.random.key(seed)",
        "axis_index": "torchlayers.distributed.axis_index(axis)",
        "block_until_ready": "the device's synchronize(): a CPU has no need",
        "checkpoint_policies": "torchlayers.checkpoint_policies",
        "closure_convert": "nothing: captured tensors are differentiated and batched",
        "custom_gradient": "torchlayers.custom_vjp",
        "debug_nans": "`with torchlayers.debug.nans():`",
        "device_put": "x.to(device)",
        "disable_jit": "f.__wrapped__, the function before torchlayers.compile",
        "ensure_compile_time_eval": "nothing: compile knows values that follow from shapes alone",
        "jit": "torchlayers.compile",
        "lax": "torchlayers.cond, scan, while_loop, …: control flow is in the package itself",
        "make_jaxpr": "torchlayers.make_graph",
        "nn": "torch.nn",
        "numpy": "torch",
        "pmap": 'torchlayers.vmap(f, mesh=mesh["dp"])',
        "pmean": "torchlayers.distributed.pmean(x, axis)",
        "pmin": "torchlayers.distributed.pmin(x, axis)",
        "pmax": "torchlayers.distributed.pmax(x, axis)",
        "ppermute": "torchlayers.distributed.ppermute(x, axis, perm)",
        "profiler": "torch.profiler, or torchlayers.trace",
        "psum": "torchlayers.distributed.psum(x, axis)",
        "ravel_pytree": "torchlayers.tree.ravel",
        "remat": "torchlayers.checkpoint",
        "select": "torch.where",
        "shard_map": 'torchlayers.vmap(f, mesh=mesh["dp"]), or named axes in `with mesh:`',
        "stop_gradient": "x.detach()",
        "tree_flatten": "torchlayers.tree.flatten",
        "tree_leaves": "torchlayers.tree.leaves",
        "tree_map": "torchlayers.tree.map_leaves",
        "tree_unflatten": "torchlayers.tree.unflatten(leaves, spec): the leaves come first",
        "tree_util": "torchlayers.tree, and torch.utils._pytree to register classes",
        "value_and_grad": "torchlayers.grad_and_value, which returns (gradient, value)",
    }
)
# What to do in place of a keyword argument of JAX.
_KEYWORDS: Mapping[str, str] = MappingProxyType(
    {
        "allow_int": "Pass floating-point tensors.",
        "argnum": "It is argnums here.",
        "axis": "It is dim here.",
        "axis_size": "Pass a batched argument: torch.arange(n).",
        "donate_argnums": "Write in place instead: x.add_(y).",
        "donate_argnames": "Write in place instead: x.add_(y).",
        "holomorphic": "Gradients of complex tensors need no flag; docs/from-jax.md has their "
        "convention.",
        "in_axes": "It is in_dims here, as in torch.func.",
        "inline": "Leave it out: a compiled function is always inlined in another.",
        "out_axes": "It is out_dims here, as in torch.func.",
        "reduce_axes": "Sum over a named axis with torchlayers.distributed.psum.",
        "spmd_axis_name": 'Spread a batch over ranks with mesh=mesh["dp"].',
        "static_argnames": "Arguments that are not tensors are static anyway.",
        "unroll": "Leave it out: compile unrolls short loops.",
    }
)


def refuse_name(module: str, name: str) -> NoReturn:
    """Raises the AttributeError of a module that has no such name."""
    if name not in FUNCTIONS:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    # With its name set, Python adds no suggestion: jet for jit.
    raise AttributeError(
        f"{module} has no {name}. In place of JAX's, use {FUNCTIONS[name]}.", name=name
    )


def refuse_keywords(func: Callable[..., Any], others: Mapping[str, Any]) -> NoReturn:
    """Raises the TypeError of a function that was called with keywords that it does not have."""
    name = next(iter(others))
    text = f"torchlayers: {func.__name__}() got an unexpected keyword argument {name!r}."
    known = [*inspect.signature(func).parameters]
    if name in _KEYWORDS:
        text += f" {_KEYWORDS[name]}"
    elif close := difflib.get_close_matches(name, known, 1):
        text += f" Did you mean {close[0]!r}?"
    else:
        text += f" Its arguments are {', '.join(known)}."
    raise TypeError(text)


def without_others(func: F) -> F:
    """Leaves ``**others``, whose only use is :func:`refuse_keywords`, out of func's signature."""
    signature = inspect.signature(func)
    shown = [
        param for param in signature.parameters.values() if param.kind != Parameter.VAR_KEYWORD
    ]
    func.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    return func
