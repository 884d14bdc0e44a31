"""The policies of :func:`torchlayers.checkpoint`."""

from torchlayers.remat.policies import *  # noqa: F403
from torchlayers.remat.policies import __all__ as __all__
