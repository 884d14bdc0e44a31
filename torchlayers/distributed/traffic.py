"""Counts what collectives send, in a mode below all layers."""

import contextlib
import importlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from torchlayers.core.torch_private import TorchDispatchMode

_SPACES = ("_c10d_functional", "_c10d_functional_autograd", "c10d", "torchlayers")
# Operators that send nothing.
_LOCAL = (
    "wait_tensor",
    "wait_tensors",
    "_wrap_tensor_autograd",
    "axis_index",
    "from_local",
    "own_part",
    "pvary",
    "pvary_each",
    "shared",
)
# Operators whose kernels are run under the mode, as DTensor decides what they send.
_DTENSOR_CALLS = {"to_local": "_to_local", "redistributed": "_redistribute"}


@dataclass
class Sent:
    """A rank's traffic: the collectives in order, and the bytes of the tensors passed to them."""

    names: list[str] = field(default_factory=list)
    bytes: int = 0


class _Count(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, sent: Sent) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sent = sent

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.namespace in _SPACES:
            name = func.__name__.split(".")[0]
            if kernel := _DTENSOR_CALLS.get(name):
                placed = importlib.import_module("torchlayers.distributed.dtensor_ops")
                with self:
                    return getattr(placed, kernel)(None, func, types, args, kwargs)
            if name not in _LOCAL:
                self.sent.names.append(name)
                operands: list[Tensor] = args[0] if isinstance(args[0], list) else [args[0]]
                self.sent.bytes += sum(x.numel() * x.element_size() for x in operands)
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def counting() -> Iterator[Sent]:
    """Counts the collectives in the block, including those of transforms, named axes and DTensors.

    Consistency checks before a call (``check="first"``, :func:`checking`) are not counted.

    Yields:
        ``names``, a list of this rank's collectives, in order; and ``bytes``, the size of the
        tensors passed to them. The bytes actually sent depend on the backend: for a ring
        all_reduce, about twice as many on each rank.
    Example:
        >>> from torchlayers.distributed import counting, psum
        >>> with counting() as sent:  # over samples, nothing is
        ...     _ = torchlayers.vmap(lambda x: psum(x, "batch"), axis_name="batch")(torch.ones(3))
        >>> sent.names, sent.bytes
        ([], 0)
    """
    sent = Sent()
    with _Count(sent):
        yield sent
