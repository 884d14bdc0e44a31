"""The lock around torch.fx tracing, which patches torch's modules."""

import contextlib
import threading
from typing import Any

from torchlayers.core.private_names import lookup
from torchlayers.core.tracing_state import import_uninterrupted

_OURS = threading.RLock()


def capture_lock() -> contextlib.AbstractContextManager[Any]:
    """Returns the lock that lets one thread capture at a time, and none while torch.compile traces.

    Both patch torch's modules and later restore what they found there.
    """
    import_uninterrupted("torch._dynamo", "torch._inductor.compiler_bisector")
    # Without the lock there is no compilation to wait for: Dynamo has another way.
    return lookup("torch._dynamo.convert_frame.compile_lock", None) or _OURS
