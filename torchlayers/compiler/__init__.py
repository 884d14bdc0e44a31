"""Captures functions as FX graphs through the layers, simplifies the graphs and runs them compiled.

At a call, runtime/call.py looks up the entry for the call's signature (capture/signature.py). If
there is none, compiled_function.py makes one: capture/record.py captures the plain operators that
reach the bottom of the stack, passes/ functionalizes and simplifies the graph, runtime/partition.py
splits off the reverse pass, and runtime/backends.py runs the result, by replay (fx/program.py) and
then as Inductor's code (inductor/compile.py, patches.py and wrapper_program.py), which
another process compiles (runtime/background.py, inductor/worker.py). The first results of
Inductor's code are compared with a replay of the same graph (runtime/compare.py), and those of
either with the unsimplified graph (runtime/verify.py, runtime/replayed_halves.py). A compiled
module (compiled_module.py) can be used in place of the original. lowered.py exposes a captured
graph for inspection, with its costs (costs.py), and exported/ writes functions to files that
other programs run.
"""

import functools

from torchlayers.compiler.api import compile as compile
from torchlayers.compiler.api import make_graph as make_graph
from torchlayers.compiler.compiled_function import Compiled as Compiled
from torchlayers.compiler.exported.api import export as export
from torchlayers.compiler.exported.exported_function import ExportedFunction as ExportedFunction
from torchlayers.compiler.exported.load import load as load
from torchlayers.compiler.exported.loaded_package import Package as Package
from torchlayers.compiler.lowered import Lowered as Lowered
from torchlayers.compiler.runtime.report import Report as Report
from torchlayers.compiler.runtime.report import SignatureReport as SignatureReport
from torchlayers.transforms.result_preserving import RESULT_PRESERVING

__all__ = [
    "Compiled",
    "ExportedFunction",
    "Lowered",
    "Package",
    "Report",
    "SignatureReport",
    "compile",
    "export",
    "load",
    "make_graph",
]

# torchlayers.testing checks rules in what is captured, without Inductor.
RESULT_PRESERVING["compile"] = functools.partial(compile, backend="replay")
