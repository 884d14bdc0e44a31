"""Checks for tests: of a function's derivatives, and of the rules of a Layer."""

from torchlayers.transforms.testing import *  # noqa: F403
from torchlayers.transforms.testing import __all__ as __all__
