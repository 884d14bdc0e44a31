"""Reads a tensor's memory, during capture, where no operator shows that the function does.

Elsewhere a captured tensor would be read as it is at the capture, and any other one has no memory
yet, so the function is refused.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from torchlayers.compiler.capture.errors import MemoryReadError
from torchlayers.compiler.capture.values.reads import TensorReads
from torchlayers.compiler.capture.values.tensor_arrays import TensorArray
from torchlayers.core.errors import TransformError, location
from torchlayers.core.torch_private import FakeTensor

# Functions of a tensor that share its memory with Python or NumPy, and their names.
_SHARING: dict[Any, str] = {
    Tensor.numpy: "numpy()",
    Tensor.__array__: "numpy()",
    Tensor.__dlpack__: "__dlpack__()",
    Tensor.storage: "storage()",
}


def memory_read_rules(
    func: Callable[..., Any], reads: TensorReads | None
) -> dict[Any, Callable[..., Any]]:
    """Returns the replacements for torch functions, by function, in a capture of ``func``."""

    def refusing(name: str) -> Callable[..., Any]:
        def refuse(x: Tensor, *args: Any, **kwargs: Any) -> Any:
            raise MemoryReadError(func, name)

        return refuse

    rules: dict[Any, Callable[..., Any]] = {
        Tensor.tolist: _numbers_of if reads is None else reads.numbers,
        **{function: refusing(name) for function, name in _SHARING.items()},
    }
    if reads is not None:
        rules[Tensor.__repr__] = reads.text
        rules[Tensor.numpy] = _array(rules[Tensor.numpy], reads)
        rules[Tensor.__array__] = _array(rules[Tensor.__array__], reads)
    return rules


def _array(refuse: Callable[..., Any], reads: TensorReads) -> Callable[..., Any]:
    def array(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        if x.requires_grad and not kwargs.get("force"):
            raise TransformError(
                "torchlayers: compile: numpy() of a tensor that requires grad is an error in torch."
                f"{location()} Call detach() first."
            )
        if reads.defers_arrays and not args and isinstance(x.detach(), FakeTensor):
            return TensorArray(x.detach())
        values = reads.array(x)
        if values is NotImplemented:
            refuse(x)
        return values.astype(args[0]) if args and args[0] is not None else values

    return array


def _numbers_of(x: Tensor) -> Any:
    """``x.tolist()`` by the operator of ``x.item()``, whose result may be a constant."""
    return x.item() if x.dim() == 0 else [*map(_numbers_of, x.unbind())]
