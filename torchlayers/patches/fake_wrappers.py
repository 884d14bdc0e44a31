"""Lets a function of torch.compile take a tensor that was computed inside a grad.

Dynamo makes a fake tensor for each input. For one that a level has computed it makes a leaf that
requires grad, which serves: but then it asserts that the fake is a leaf only where the input is
one, and the call fails (torch 2.13), and with it each graph break inside a grad.
"""

from collections.abc import Callable
from typing import Any


def compare_metadata_of(torchs: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces Dynamo's comparison of an input with its fake."""

    def compare(assert_eq: Any, expected: Any, fake: Any, **options: Any) -> None:
        # Dynamo has left the layers here: the wrapper alone says that there are any.
        if getattr(expected, "is_gradtrackingtensor", False) and "skip_leaf" in options:
            options["skip_leaf"] = True
        torchs(assert_eq, expected, fake, **options)

    return compare
