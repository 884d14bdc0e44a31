"""User-defined rules for operators."""

from torchlayers.core.custom_rules import *  # noqa: F403
from torchlayers.core.custom_rules import __all__ as __all__
