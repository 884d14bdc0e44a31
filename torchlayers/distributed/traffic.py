"""What is sent, counted where operators meet no layer any more."""

import contextlib
import importlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_SPACES = ("_c10d_functional", "_c10d_functional_autograd", "c10d", "torchlayers")
# These send nothing.
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
# What these send is DTensor's to choose.
_OF_DTENSORS = {"to_local": "_to_local", "redistributed": "_redistribute"}


@dataclass
class Sent:
    """What a rank has sent: the collectives in order, and the bytes that were given to them."""

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
            if kernel := _OF_DTENSORS.get(name):
                placed = importlib.import_module("torchlayers.distributed.dtensor_ops")
                with self:
                    return getattr(placed, kernel)(None, func, types, args, kwargs)
            if name not in _LOCAL:
                self.sent.names.append(name)
                given: list[Tensor] = args[0] if isinstance(args[0], list) else [args[0]]
                self.sent.bytes += sum(x.numel() * x.element_size() for x in given)
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def counting() -> Iterator[Sent]:
    """Counts the collectives inside, those of transforms, named axes and DTensors among them.

    Not counted is what ranks compare before a call (``check="first"``, :func:`checking`).

    Yields:
        ``names``, a list of the collectives of this rank, in order; and ``bytes``, those of the
        tensors that were given to them. How many travel is the backend's: of an all_reduce over
        a ring, twice as many for each rank.
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
