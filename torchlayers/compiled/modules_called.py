"""The modules that a recorded function calls, and whether they were training.

Dropout and batch norm go by that, and no tensor shows it. After ``module.eval()`` a recording made
in training is another signature's.
"""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn
from torch.nn.modules import module as modules

Called = tuple[nn.Module, bool]  # and whether it was training


@contextlib.contextmanager
def noted() -> Iterator[list[Called]]:
    """The modules that this thread calls inside, when all is over.

    One that the function itself puts into training, or takes out, is left out: what it was before
    the call does not count.
    """
    thread = threading.get_ident()
    seen: dict[int, Called] = {}

    def note(module: nn.Module, args: Any) -> None:
        if threading.get_ident() == thread:
            seen.setdefault(id(module), (module, module.training))

    found: list[Called] = []
    handle = modules.register_module_forward_pre_hook(note)
    try:
        yield found
    finally:
        handle.remove()
        found += [called for called in seen.values() if _is_as_then(called)]


def are_as_then(called: Sequence[Called]) -> bool:
    """Whether all are in training that were, and no others."""
    return all(map(_is_as_then, called))


def _is_as_then(called: Called) -> bool:
    module, was_training = called
    return module.training is was_training
