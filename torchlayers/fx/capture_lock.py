"""The lock around torch.fx tracing, which patches torch's modules."""

import contextlib
from typing import Any

from torchlayers.core.tracing_state import import_uninterrupted


def capture_lock() -> contextlib.AbstractContextManager[Any]:
    """Returns the lock that lets one thread capture at a time, and none while torch.compile traces.

    Both patch torch's modules and later restore what they found there.
    """
    import_uninterrupted("torch._dynamo", "torch._inductor.compiler_bisector")
    from torch._dynamo.convert_frame import compile_lock

    return compile_lock
