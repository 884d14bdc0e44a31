"""Checks of what the methods and rules of a Layer return."""

from typing import Any, NoReturn

from torch import Tensor

from torchlayers.core import pytree
from torchlayers.core.errors import RuleError, TransformError, location
from torchlayers.core.layer_stack import KINDS
from torchlayers.core.torch_private import OpOverload
from torchlayers.transforms.layers.layer_tensor import LayerTensor


def check_name(name: str) -> None:
    if name in KINDS:
        raise TransformError(
            f"torchlayers: a Layer can't be named {name!r}, as a transform of torchlayers is. "
            "Set the class attribute `name`."
        )


def check_inputs(layer: Any, result: Any) -> None:
    """Raises RuleError if `inputs` did not return a pair of arguments and keyword arguments."""
    is_pair = isinstance(result, (tuple, list)) and len(result) == 2
    if not (is_pair and isinstance(result[0], (tuple, list)) and isinstance(result[1], dict)):
        got = type(result).__name__
        if is_pair:
            got = f"({', '.join(type(part).__name__ for part in result)})"
        raise RuleError(
            f"torchlayers: {layer!r}: {type(layer).__name__}.inputs must return a pair (args, "
            "kwargs), a tuple and a dict: what the transformed function is called with. Got "
            f"{got}. For one argument write `return (x,), {{}}`."
        )


def check_result(layer: Any, rule: Any, op: Any, result: Any) -> None:
    """Raises RuleError if a rule returned None for an operator that has results."""
    if result is None and isinstance(op, OpOverload) and op._schema.returns:
        raise RuleError(
            f"torchlayers: {layer!r}: the rule {pytree.name_of(rule)} for {op} returned None. "
            "Return the operator's results, layer.tensor(value, parts), or NotImplemented to have "
            f"it decomposed.{location()}"
        )


def refuse_constants(layer: Any, result: Any, error: AttributeError) -> NoReturn:
    """Raises a clearer error if `outputs` took a plain tensor for one of the layer."""
    constants = [x for x in pytree.leaves(result) if not isinstance(x, LayerTensor)]
    if not any(isinstance(x, Tensor) and x is error.obj for x in constants):
        raise error
    name, plain = type(layer).__name__, layer._last_plain
    why = "the function's result does not depend on what inputs returned"
    if plain is not None:
        rule, op = plain
        why = (
            f"the rule {pytree.name_of(rule)} for {op} returned a plain tensor, which is a "
            "constant: return layer.tensor(value, parts)"
        )
    raise RuleError(
        f"torchlayers: {layer!r}: {name}.outputs got a tensor that is not of the layer ({error}): "
        f"{why}. If the function may return constants, outputs has to check for them: "
        "isinstance(result, torchlayers.LayerTensor)."
    ) from error
