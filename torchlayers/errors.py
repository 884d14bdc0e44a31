"""The errors that torchlayers raises."""

from torchlayers.core.errors import *  # noqa: F403
from torchlayers.core.errors import __all__ as __all__
