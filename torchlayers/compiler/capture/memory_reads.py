"""Refuses, during capture, functions that read a tensor's memory where no operator shows it.

A captured tensor would be read as it is at the capture, and any other one has no memory yet.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from torchlayers.compiler.capture.errors import MemoryReadError

# Functions of a tensor that share its memory with Python or NumPy, and their names.
_SHARING: dict[Any, str] = {
    Tensor.numpy: "numpy()",
    Tensor.__array__: "numpy()",
    Tensor.__dlpack__: "__dlpack__()",
    Tensor.storage: "storage()",
}


def memory_read_rules(func: Callable[..., Any]) -> dict[Any, Callable[..., Any]]:
    """Returns the replacements for torch functions, by function, in a capture of ``func``."""

    def refusing(name: str) -> Callable[..., Any]:
        def refuse(x: Tensor, *args: Any, **kwargs: Any) -> Any:
            raise MemoryReadError(func, name)

        return refuse

    return {
        Tensor.tolist: _numbers_of,
        **{function: refusing(name) for function, name in _SHARING.items()},
    }


def _numbers_of(x: Tensor) -> Any:
    """``x.tolist()`` by the operator of ``x.item()``, whose result may be a constant."""
    return x.item() if x.dim() == 0 else [*map(_numbers_of, x.unbind())]
