"""Differentiation of TorchScript graphs."""

from torchlayers.graph.torchscript import differentiate_script as differentiate_script
from torchlayers.graph.torchscript import steps as steps

__all__ = ["differentiate_script", "steps"]
