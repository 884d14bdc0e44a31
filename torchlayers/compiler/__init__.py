"""Functions recorded through the layers, simplified, and run as compiled code.

A call goes this way: runtime/call.py finds the entry of its signature (capture/signature.py). There
is none at first, and compiled_function.py makes it: capture/record.py writes down the plain
operators that reach the bottom of the stack, passes/ takes writes out and makes the graph smaller,
runtime/partition.py cuts off the reverse pass, and runtime/backends.py runs it, by fx/program.py or
by inductor/compile.py's code (inductor/speedups.py, inductor/kernels.py,
inductor/wrapper_program.py), held against that (runtime/compare.py), and against the recording as
it was made (runtime/verify.py, runtime/replayed_halves.py). What is compiled of a module
(compiled_module.py) stands for it. lowered.py shows a recording, with what it costs (costs.py), and
package.py keeps it in a file.
"""

from torchlayers.compiler.api import compile as compile
from torchlayers.compiler.api import make_graph as make_graph
from torchlayers.compiler.compiled_function import Compiled as Compiled
from torchlayers.compiler.lowered import Lowered as Lowered
from torchlayers.compiler.package import Package as Package
from torchlayers.compiler.package import load as load
from torchlayers.compiler.runtime.report import Report as Report
from torchlayers.compiler.runtime.report import SignatureReport as SignatureReport

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
