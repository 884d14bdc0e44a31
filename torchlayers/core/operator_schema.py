"""What an operator's schema says: whether it writes to arguments, returns views, or is random.

An operator is an OpOverload. What has no schema, such as a higher-order operator, does none of it.
"""

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchlayers import _C
from torchlayers.core import pytree
from torchlayers.core.errors import TorchVersionError
from torchlayers.core.private_names import explain
from torchlayers.core.torch_private import OpOverload, torch_c


def overload(name: str, overload_name: str) -> Any:
    """Returns the OpOverload of a schema's names: ("aten::add", "Tensor")."""
    namespace, _, base = name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), base)
    return getattr(packet, overload_name or "default")


def schema_of(op: Any) -> Any:
    """The schema of an operator: its name, arguments and results; None if it has none.

    Raises:
        TorchVersionError: this torch's OpOverloads have no schema under the name that is known.
    """
    schema = getattr(op, "_schema", None)
    if schema is None and isinstance(op, OpOverload):
        raise TorchVersionError(explain("torch._ops.OpOverload._schema"))
    return schema


def writes(op: Any) -> bool:
    """Whether it writes to one of its arguments."""
    schema = schema_of(op)
    return schema is not None and bool(schema.is_mutable)


def is_random(op: Any) -> bool:
    """Whether two calls with equal arguments may differ, by torch's random generators."""
    return torch.Tag.nondeterministic_seeded in getattr(op, "tags", ())


@functools.cache
def is_composite(op: Any) -> bool:
    """Whether it is defined by other operators that it calls, with their derivatives."""
    key = "CompositeImplicitAutograd"
    return bool(torch_c._dispatch_has_kernel_for_dispatch_key(op.name(), key))


@functools.cache
def is_dispatched(op: Any) -> bool:
    """Whether the dispatcher knows the operator: torch.ops also has operators of TorchScript."""
    try:
        _C.has_jvp_rule(schema_of(op).name, schema_of(op).overload_name)
    except ValueError:  # there is no operator of this name
        return False
    return True


@functools.cache
def is_view(op: Any) -> bool:
    """Whether a result is a view of an argument that the operator only reads."""
    aliases = (result.alias_info for result in _returns(op))
    return any(alias is not None and not alias.is_write for alias in aliases)


@functools.cache
def returns_alias(op: Any) -> bool:
    """Whether a result shares memory with an argument: a view, or the argument written to."""
    return any(result.alias_info is not None for result in _returns(op))


@functools.cache
def places_written(op: Any) -> tuple[tuple[int, str], ...]:
    """The arguments that it writes to: position and name of each."""
    if not writes(op):
        return ()
    return tuple(
        (i, argument.name)
        for i, argument in enumerate(schema_of(op).arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def arguments_written(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Tensor]:
    """The tensors of a call that it writes to, those inside of lists too."""
    written = [args[i] if i < len(args) else kwargs.get(name) for i, name in places_written(op)]
    return [leaf for leaf in pytree.leaves(written) if isinstance(leaf, Tensor)]


def _returns(op: Any) -> Sequence[Any]:
    schema = schema_of(op)
    return () if schema is None else schema.returns
