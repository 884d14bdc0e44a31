"""How much memory a block of code takes at its peak."""

from torchlayers.core.peak_memory import PeakMemory as PeakMemory

__all__ = ["PeakMemory"]
