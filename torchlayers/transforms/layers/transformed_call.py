"""Calls a function inside a layer, as the transform layer(func) does."""

import copy
from collections.abc import Callable
from typing import Any

from torchlayers.core import tracing_state
from torchlayers.remat.ambient_state import apply_view_modes
from torchlayers.transforms.layers.layer_checks import check_inputs, refuse_constants


@tracing_state.skipped_while_tracing
@tracing_state.exported_below
def transformed_call(
    layer: Any, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    layer = copy.copy(layer)
    # Rules read them where no function mode is active, so they are shown to modes here.
    args, kwargs = apply_view_modes((args, kwargs))
    with layer._new_entry() as layer._level:
        inputs = layer.inputs(*args, **kwargs)
        check_inputs(layer, inputs)
        result = layer.apply(func, *inputs[0], **inputs[1])
    try:
        return layer.outputs(result)
    except AttributeError as error:
        refuse_constants(layer, result, error)
