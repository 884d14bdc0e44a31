"""Prints, checks, stops and a search for nan in transforms, control flow and compiled functions."""

from torchlayers.control_flow.debug import *  # noqa: F403
from torchlayers.control_flow.debug import __all__ as __all__
