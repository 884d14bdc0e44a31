"""Calls the rule of an operator on tensors of a layer."""

from collections.abc import Callable
from typing import Any, NoReturn

from torch import Tensor

from torchlayers.core.errors import RuleError, location, message_of
from torchlayers.transforms.layers.layer_checks import check_result
from torchlayers.transforms.layers.layer_tensor import LayerTensor
from torchlayers.transforms.layers.rule_table import defaults


def call_rule(layer: Any, rule: Any, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls a rule as csrc/python/python_layer.cpp does, which calls most of them."""
    lifted = [map_argument(layer.lifted, arg) for arg in args]
    if kwargs:
        usual = defaults(op)
        kwargs = {
            name: map_argument(layer.lifted, arg)
            for name, arg in kwargs.items()
            if name not in usual or (arg is not usual[name] and arg != usual[name])
        }
    try:
        result = rule(layer, op, *lifted, **kwargs)
    except TypeError as error:
        refuse_type_error(layer, op, error)
    if not isinstance(result, LayerTensor):
        check_rule_result(layer, rule, op, result)
    return result


def refuse_type_error(layer: Any, op: Any, error: TypeError) -> NoReturn:
    """Of a rule: ``x + y`` would take it for a missing operator."""
    raise RuleError(
        f"torchlayers: {layer!r}: the rule for {op} raised TypeError: {message_of(error)}."
        f"{location()}"
    ) from error


def check_rule_result(layer: Any, rule: Any, op: Any, result: Any) -> None:
    """Checks what a rule returned that is not a tensor of a layer."""
    check_result(layer, rule, op, result)
    if isinstance(result, Tensor):
        layer._last_plain = rule, op


def map_argument(change: Callable[[Tensor], Tensor], arg: Any) -> Any:
    """Changes an operator's argument, if it is a tensor, or the tensors in a list of them."""
    if isinstance(arg, Tensor):
        return change(arg)
    if isinstance(arg, (list, tuple)):
        return [map_argument(change, item) for item in arg]
    return arg
