"""What is sent, counted where operators meet no layer any more."""

import contextlib
import dataclasses
from collections.abc import Iterator

from torch.utils._python_dispatch import TorchDispatchMode

from torchlayers.distributed import placed

NAMESPACES = ("_c10d_functional", "_c10d_functional_autograd", "c10d", "torchlayers")
# These send nothing.
LOCAL = (
    "wait_tensor",
    "_wrap_tensor_autograd",
    "pvary",
    "pvary_each",
    "own_part",
    "shared",
    "from_local",
)
OF_DTENSORS = {"to_local": placed._to_local, "redistributed": placed._redistribute}


@dataclasses.dataclass
class Calls:
    names: list[str] = dataclasses.field(default_factory=list)
    bytes: int = 0  # of what is given to them


class _Count(TorchDispatchMode):
    def __init__(self, calls: Calls):
        super().__init__()
        self.calls = calls

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace in NAMESPACES:
            name = func.__name__.split(".")[0]
            if name in OF_DTENSORS:  # what these send is DTensor's to choose
                with self:
                    return OF_DTENSORS[name](None, func, types, args, kwargs)
            if name not in LOCAL:
                self.calls.names.append(name)
                sent = args[0] if isinstance(args[0], list) else [args[0]]
                self.calls.bytes += sum(x.numel() * x.element_size() for x in sent)
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def counted() -> Iterator[Calls]:
    """The collectives inside, of this rank."""
    calls = Calls()
    with _Count(calls):
        yield calls
