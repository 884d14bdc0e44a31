"""Traces: every operator at every layer that it passes, and how long it took there.

``recording`` records, ``calls`` is what has been recorded; ``tree``, ``summary``, ``chrome`` and
``html`` show it.
"""

from torchlayers.core.trace.calls import CompiledCode, TracedCall, TracedTensor
from torchlayers.core.trace.recording import Trace, trace
from torchlayers.core.trace.summary import Loop, Summary, SummaryRow

__all__ = [
    "CompiledCode",
    "Loop",
    "Summary",
    "SummaryRow",
    "Trace",
    "TracedCall",
    "TracedTensor",
    "trace",
]
