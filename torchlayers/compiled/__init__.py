"""Functions recorded through the layers, simplified, and run as compiled code.

A call goes this way: call.py finds the entry of its signature (signature.py). There is none at
first, and function.py makes it: record.py writes down the plain operators that reach the bottom of
the stack, simplify/ takes writes out and makes the graph smaller, split.py cuts off the reverse
pass, and backends.py runs it, by replay.py or by inductor.py's code (shortcuts.py, kernels.py,
wrapper.py), held against that (compare.py), and against the recording as it was made (held.py,
unsimplified.py). What is compiled of a module (module.py) stands for it.
lowered.py shows a recording, with what it costs (costs.py), and package.py keeps it in a file.
"""

from torchlayers.compiled.api import compile as compile
from torchlayers.compiled.api import make_graph as make_graph
from torchlayers.compiled.function import Compiled as Compiled
from torchlayers.compiled.lowered import Lowered as Lowered
from torchlayers.compiled.package import Package as Package
from torchlayers.compiled.package import load as load
from torchlayers.compiled.report import Report as Report
from torchlayers.compiled.report import SignatureReport as SignatureReport

__all__ = [
    "Compiled",
    "Lowered",
    "Package",
    "Report",
    "SignatureReport",
    "compile",
    "load",
    "make_graph",
]
