"""Measures the peak memory of a block of code."""

from torchlayers.core.tensors.peak_memory import PeakMemory as PeakMemory

__all__ = ["PeakMemory"]
