"""The classes that :func:`torchlayers.compile` returns."""

from torchlayers.compiler import *  # noqa: F403
from torchlayers.compiler import __all__ as __all__
