"""The layers written in Python on the stack, and the Python state that their rules may change."""

import contextlib
from collections.abc import Callable
from typing import Any

from torchlayers import _C
from torchlayers.core.layer_stack import KINDS
from torchlayers.transforms.layers.layer import Layer


def is_inside_python_layer() -> bool:
    """Whether a layer written in Python is on the stack."""
    layers = [layer[0] for layer in _C.current_stack() if layer is not None]
    return any(kind not in KINDS for kind in layers)


def is_every_operator_processed() -> bool:
    """Whether a layer written in Python processes each operator of the user's, as a layer that
    counts them does: one captured step can't stand for all."""
    return any(type(layer).process is not Layer.process for layer in python_layers())


def python_layers() -> list[Any]:
    """The layers written in Python on the stack, from the top."""
    layers: list[Any] = []
    if not is_inside_python_layer():
        return layers
    with contextlib.ExitStack() as stack:
        while _C.top() is not None:
            layer = _C.python_layer_on_top()
            layers += [] if layer is None else [layer]
            stack.enter_context(_C.Below())
    return layers


def own_attributes(layer: Any) -> dict[str, Any]:
    """The attributes that a layer's class gives it, without those of the base class."""
    return {name: value for name, value in vars(layer).items() if not hasattr(Layer, name)}


class LayerStates:
    """The Python state of the layers on the stack, to be restored if running a function changes it.

    It consists of their attributes, and of the items of those that are lists, dicts or sets.
    """

    def __init__(self) -> None:
        self._before = [(layer, _attributes(layer)) for layer in python_layers()]

    def restore(self) -> bool:
        """Restores the state; returns whether it had changed."""
        changed = [(layer, before) for layer, before in self._before if _differs(layer, before)]
        for layer, before in changed:
            for name in own_attributes(layer):
                delattr(layer, name)
            for name, (value, items) in before.items():
                if (fill := _fill_of(value)) is not None:
                    value.clear()
                    fill(items)
                setattr(layer, name, value)
        return bool(changed)


def _attributes(layer: Any) -> dict[str, tuple[Any, Any]]:
    """The attributes by name, and a copy of the items of each."""
    return {
        name: (value, None if _fill_of(value) is None else value.copy())
        for name, value in own_attributes(layer).items()
    }


def _fill_of(value: Any) -> Callable[[Any], None] | None:
    if isinstance(value, list):
        return value.extend
    return value.update if isinstance(value, (dict, set)) else None


def _differs(layer: Any, before: dict[str, tuple[Any, Any]]) -> bool:
    now = own_attributes(layer)
    return now.keys() != before.keys() or any(
        now[name] is not value or (items is not None and _items(value) != _items(items))
        for name, (value, items) in before.items()
    )


def _items(value: Any) -> Any:
    """The items by identity, since tensors can't be compared."""
    if isinstance(value, dict):
        return [(key, id(item)) for key, item in value.items()]
    return [*map(id, value)] if isinstance(value, list) else {*map(id, value)}
