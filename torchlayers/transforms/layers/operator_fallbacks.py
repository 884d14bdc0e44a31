"""Processes autograd.Functions, and operators that have neither a rule nor a decomposition."""

from typing import Any

from torchlayers import _C
from torchlayers.core import operator_schema, pytree
from torchlayers.core.errors import RuleError, location
from torchlayers.core.operator_schema import schema_of
from torchlayers.core.private_names import lookup


def process_undecomposed(layer: Any, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs the kernel of a composite operator, or the Python function of a custom one, above
    the layer; raises RuleError for others."""
    if operator_schema.is_composite(op) and not operator_schema.writes(op):
        return layer.apply(op.decompose, *args, **kwargs)  # which may write
    custom_op = lookup("torch._library.custom_ops.OPDEFS", {}).get(schema_of(op).name)
    if custom_op is not None and not operator_schema.writes(op):
        return layer.apply(custom_op._init_fn, *args, **kwargs)
    if operator_schema.writes(op):
        raise RuleError(
            f"torchlayers: {layer!r} can't process {op}, which writes to a tensor. Inside "
            f"layer.apply(f, *args), and in the transform layer(f), writes are replaced by "
            f"operators that have rules.{location()}"
        )
    raise RuleError(
        f"torchlayers: {layer!r} has no rule for {op}, and torch has no decomposition of it. "
        f"Register a rule: @{type(layer).__name__}.rule(torch.ops.{op}) on a function of "
        f"(layer, op, {', '.join(argument.name for argument in schema_of(op).arguments)})."
        f"{location()}"
    )


def process_function(layer: Any, function: Any, operands: tuple[Any, ...]) -> Any:
    """Applies an autograd.Function by its rule, or by its forward inside the layer."""
    operands = tuple(pytree.map_all_tensors(layer._without_ended, operands))
    operands = tuple(pytree.map_all_tensors(layer._plain_or_owned, operands))
    with _C.Below():
        result = layer.process(function, operands, {})
        if result is NotImplemented and hasattr(function, "in_python_layer"):
            return function.in_python_layer(layer, *operands)
    return layer.apply(function.forward, *operands) if result is NotImplemented else result
