"""Where index sets and patterns are computed."""

import contextlib
from collections.abc import Iterator

import torch

from torchlayers.core.torch_private import dispatch_modes, torch_c


@contextlib.contextmanager
def bookkeeping() -> Iterator[None]:
    """For operators on index sets: no layer, mode or capture sees them."""
    with (
        torch.DisableTorchFunction(),
        torch_c._DisableFuncTorch(),
        dispatch_modes._disable_current_modes(),
        torch.no_grad(),
    ):
        yield
