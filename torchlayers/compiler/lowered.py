"""A function captured for one signature, for inspection and for saving."""

import os
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.fx import GraphModule

from torchlayers.compiler.capture.recording import CapturedGraph
from torchlayers.compiler.capture.signature import tensor_metadata
from torchlayers.compiler.costs import Costs, costs
from torchlayers.compiler.exported.aot_package import check_path
from torchlayers.compiler.exported.build import exported_for_compiler
from torchlayers.compiler.passes.entries.captured_constants import simplify_captured
from torchlayers.core import pytree


class Lowered:
    """The result of ``compile(f).lower(*args)``: f captured for arguments like these.

    Attributes:
        graph: the simplified graph, a torch.fx.GraphModule: print its ``code``. It takes the
            arguments' tensors and then the captured ones.
        operators, flops, bytes_moved, peak_bytes: the costs of a call, run operator by operator:
            the number of operators; floating-point operations; bytes that operators read and
            write; the most bytes held at once for intermediates and results.
    """

    def __init__(
        self,
        name: str,
        captured_graph: CapturedGraph,
        arguments: tuple[Sequence[Any], dict[str, Any]],
        options: dict[str, Any] | None,
    ) -> None:
        self.graph: GraphModule
        self._captured_graph, self.graph = simplify_captured(captured_graph)
        self._name = name
        args, kwargs = arguments
        leaves, self._spec = pytree.flatten((tuple(args), kwargs))
        self._leaves = [
            tensor_metadata(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves
        ]
        self._options = options
        self._costs: Costs = costs(self.graph)

    @property
    def operators(self) -> int:
        return self._costs.operators

    @property
    def flops(self) -> int:
        return self._costs.flops

    @property
    def bytes_moved(self) -> int:
        return self._costs.bytes_moved

    @property
    def peak_bytes(self) -> int:
        return self._costs.peak_bytes

    def __repr__(self) -> str:
        return (
            f"Lowered({self._name}: {self.operators} operators, {self.flops} floating-point "
            f"operations, {self.bytes_moved} bytes moved, {self.peak_bytes} bytes at most)"
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Compiles the function with AOTInductor to a file that :func:`torchlayers.load` reads.

        The file holds native code for this torch version and kind of processor, and the current
        values of the captured tensors. A C++ program can run it without Python (docs/compile.md).

        Args:
            path: must end in ``.pt2``.
        Raises:
            TransformError: the path does not end in ``.pt2``; a non-tensor argument or result can't
                be serialized; this machine has no C++ compiler.
        """
        check_path(os.fspath(path))
        exported_for_compiler(self._name, self._captured_graph, self._leaves, self._spec).to_aot(
            path, options=self._options
        )
