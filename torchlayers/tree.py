"""Functions to flatten, map and match pytrees."""

from torchlayers.core.pytree import *  # noqa: F403
from torchlayers.core.pytree import __all__ as __all__
