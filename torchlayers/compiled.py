"""torch.compile: what our transforms do while Dynamo traces them.

NOTE [Under torch.compile]
Dynamo can't see into our C++ layers, and what it compiles has no use for them: no operator is
dispatched one by one any more. It does understand torch.func's transforms. So while it traces,
each of ours calls its namesake there, with which it agrees.
"""

import contextlib
import sys
from typing import Any

import torch

from torchlayers.errors import TransformError

is_tracing = torch.compiler.is_dynamo_compiling


def refuse(api: str, **options: Any) -> None:
    """Raises if an option was given that torch.func's namesake lacks."""
    for name, value in options.items():
        if value:
            raise TransformError(
                f"torchlayers: {api}: {name}={value!r} does not work in torch.compile. Leave it "
                "out there, or compile the function inside the transform instead."
            )


def run_eagerly() -> contextlib.AbstractContextManager[Any]:
    """Inside, compiled functions run as they were written, recorded or not.

    A compiled function has its mutations removed and is recorded as a whole already; neither
    can be done to it a second time, from outside.
    """
    if "torch._dynamo" not in sys.modules:  # nothing can have been compiled
        return contextlib.nullcontext()
    stack = contextlib.ExitStack()
    stack.enter_context(torch.compiler.set_stance("force_eager"))
    stack.enter_context(torch._dynamo.config.patch(error_on_nested_fx_trace=False))
    return stack
