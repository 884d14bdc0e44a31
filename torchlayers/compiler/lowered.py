"""A function recorded for one signature, to look at and to save."""

import os
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.fx import GraphModule

from torchlayers.compiler import package
from torchlayers.compiler.capture.recording import Recording
from torchlayers.compiler.capture.signature import like
from torchlayers.compiler.costs import Costs, costs
from torchlayers.compiler.passes import simplify
from torchlayers.core import pytree


class Lowered:
    """What ``compile(f).lower(*args)`` returns: f recorded for arguments like these.

    Attributes:
        graph: the simplified recording, a torch.fx.GraphModule: print its ``code``. It takes the
            arguments' tensors and then the captured ones.
        operators, flops, bytes_moved, peak_bytes: what a call costs, one operator after the other:
            how many operators; floating-point operations; bytes that operators read and write;
            the most bytes held at once for intermediates and results.
    """

    def __init__(
        self,
        name: str,
        recorded: Recording,
        arguments: tuple[Sequence[Any], dict[str, Any]],
        options: dict[str, Any] | None,
    ) -> None:
        self.graph: GraphModule = simplify(recorded.graph)
        self._name = name
        self._recorded = recorded
        args, kwargs = arguments
        leaves, self._spec = pytree.flatten((tuple(args), kwargs))
        self._leaves = [like(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
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
        """Compiles the function by AOTInductor into a file that :func:`torchlayers.load` reads.

        The file holds native code, for this torch and this kind of processor, and the captured
        tensors as they are now. A C++ program can run it without Python (docs/compile.md).

        Args:
            path: ends in ``.pt2``.
        Raises:
            TransformError: the path ends in something else; an argument or a result that is no
                tensor has no place in a file; this machine has no C++ compiler.
        """
        package.save(
            package.Content(
                self._name,
                simplify(self._recorded.graph, fuse_small=True),
                self._recorded,
                self._leaves,
                self._spec,
            ),
            os.fspath(path),
            self._options,
        )
