"""The part of a layer written in Python that enters and leaves it, and knows its tensors."""

import sys
from collections.abc import Callable
from typing import Any, ClassVar, Self

from torch import Tensor

from torchlayers import _C
from torchlayers.core import tracing_state
from torchlayers.core.entered_at import noted_frame
from torchlayers.core.errors import TransformError, quoted_line
from torchlayers.transforms.functionalize import level_of_functional, unwrapped
from torchlayers.transforms.layers.layer_tensor import LayerTensor
from torchlayers.transforms.layers.rule_call import check_rule_result, refuse_type_error
from torchlayers.transforms.layers.write_history import parts_with_history


class EnteredLayer:
    """Base class of Layer: its counterpart in C++, which is on the stack while it is entered."""

    name: ClassVar[str]
    _half: _C.PythonLayer | None = None  # in C++, since it was last entered
    _entry: Any = None
    _entering: tuple[str, int] | None = None  # the `with` statement's line
    _level = 0

    def __enter__(self) -> Self:
        if self._half is not None and self._half.is_active:
            raise TransformError(
                f"torchlayers: {self!r} is active already. Enter another instance, or use it as a "
                "transform, layer(f)(*args), which copies it for each call."
            )
        self._entry = tracing_state.captured_below(self._new_entry())
        self._entering = noted_frame(sys._getframe(1))
        try:
            self._level = self._entry.__enter__()
        except BaseException as error:  # Ctrl-C, when it has been entered
            if self._half is not None and self._half.is_active:
                self._entry.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(self, *error: Any) -> None:
        self._entry.__exit__(*error)

    @property
    def level(self) -> int:
        self._active()
        return self._level

    def __repr__(self) -> str:
        is_active = self._half is not None and self._half.is_active
        return f"{self.name} (level {self._level})" if is_active else f"{type(self).__name__}()"

    def _entered_at(self) -> str:
        """The line of the ``with`` statement that entered it; "" if a call did."""
        return quoted_line(*self._entering) if self._entering is not None else ""

    def _new_entry(self) -> Any:
        self._entering = None
        self._half = self._new_half()
        return self._half.entry()

    def _active(self) -> _C.PythonLayer:
        if self._half is None or not self._half.is_active:
            raise TransformError(
                f"torchlayers: {self!r} is not active: enter it with `with`, or use it as a "
                "transform, layer(f)(*args)."
            )
        return self._half

    def _new_half(self) -> _C.PythonLayer:
        """The layer in C++, which calls this one."""
        raise NotImplementedError

    # For csrc/python/python_layer.cpp, which calls rules.
    _refuse_type_error = refuse_type_error
    _check_result = check_rule_result

    def _owns(self, tensor: Tensor) -> bool:
        return isinstance(tensor, LayerTensor) and tensor.layer is self

    def _owns_any(self, args: Any) -> bool:
        """Whether a tensor of this layer is among an operator's arguments."""
        for arg in args:
            if isinstance(arg, LayerTensor):
                if arg.layer is self:
                    return True
            elif isinstance(arg, (list, tuple)) and self._owns_any(arg):
                return True
        return False

    def _plain_or_owned(self, tensor: Tensor) -> Tensor:
        """The value of a tensor of the layer without parts: x.data, or a constant that was wrapped
        to be functional. Other tensors as they are."""
        return self._active().owned_or_plain(tensor)

    def _without_ended(self, tensor: Tensor) -> Tensor:
        """The value of a functional tensor of an `apply` that has ended: torch's checkpoint runs a
        Function again with those that it has saved."""
        while (level := level_of_functional(tensor)) > self._level:
            tensor = unwrapped(tensor, level)
        return tensor

    def _value(self, tensor: Tensor) -> Tensor:
        return _C.value_in_wrapper(tensor) if self._owns(tensor) else tensor

    def _rewritten_parts(
        self, before: Any, after: LayerTensor, keep_history: Callable[[Tensor, Tensor], Tensor]
    ) -> Any:
        """The parts of `after`, with the history of those that the tensor had before."""
        return parts_with_history(before, after, keep_history)

    def _parts_as_tree(self, parts: Any) -> Any:
        """The parts as a pytree of tensors and plain data, which a captured loop can carry."""
        return parts

    def _parts_of_tree(self, tree: Any) -> Any:
        """The inverse of _parts_as_tree."""
        return tree
