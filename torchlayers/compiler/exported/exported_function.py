"""ExportedFunction: a function as a torch.export program, with the ways out of Python."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from torchlayers.compiler.capture.signature import TensorMetadata
from torchlayers.compiler.costs import Costs, costs
from torchlayers.compiler.exported import aot_package, onnx_file
from torchlayers.compiler.exported.signature import FunctionSignature
from torchlayers.core import pytree
from torchlayers.core.errors import StructureError, TransformError

_METADATA = "torchlayers.json"  # a file in the archive that torch.export.save writes


class ExportedFunction:
    """A function, with whatever transforms are in it, as one graph of core ATen operators.

    Called like the function that was exported, it returns the same results. :func:`export` makes
    it, :func:`load` reads it from a file.

    Attributes:
        program: the graph, a torch.export.ExportedProgram: its inputs are the tensors among the
            arguments, its outputs those of the result.
        input_names, output_names: of these, by their paths in the arguments and the result.

    Example:
        >>> slope = torchlayers.export(torchlayers.grad(torch.sin), torch.tensor(0.0))
        >>> slope
        ExportedFunction(sin: arg_0 -> result)
        >>> slope(torch.tensor(0.0))
        tensor(1.)
    """

    # for_compiler exports the function for a compiler that fuses operators, undecomposed; lines are
    # the user's, by the operators that they called.
    def __init__(
        self,
        program: ExportedProgram,
        signature: FunctionSignature,
        for_compiler: Callable[[], ExportedProgram] | None = None,
        lines: Mapping[str, str] | None = None,
    ) -> None:
        self.program = program
        self._signature = signature
        self._for_compiler = for_compiler
        self._lines = lines or {}
        self._module: nn.Module | None = None

    @property
    def name(self) -> str:
        return self._signature.name

    @property
    def input_names(self) -> list[str]:
        return [*self._signature.input_names]

    @property
    def output_names(self) -> list[str]:
        return [*self._signature.output_names]

    @property
    def writes(self) -> bool:
        """Whether calls write to their arguments, or to tensors that the function captured."""
        buffers = self.program.graph_signature.buffers_to_mutate
        return bool(self._signature.written or buffers)

    def __repr__(self) -> str:
        inputs, outputs = ", ".join(self.input_names), ", ".join(self.output_names)
        return f"ExportedFunction({self.name}: {inputs} -> {outputs})"

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        leaves, spec = pytree.flatten((args, kwargs))
        if spec != self._signature.spec:
            raise StructureError(
                f"torchlayers: {self.name} was exported for arguments of the structure "
                f"{pytree.describe(self._signature.spec)}, got {pytree.describe(spec)} "
                "(* is a leaf)."
            )
        tensors = self._tensors_of(leaves)
        if self._module is None:
            self._module = self.program.module()
        computed = self._module(*tensors)
        results = [
            value
            if source == "constant"
            else leaves[value]
            if source == "argument"
            else computed[value]
            for source, value in self._signature.outputs
        ]
        return pytree.unflatten(results, self._signature.out_spec)

    def _tensors_of(self, leaves: Sequence[Any]) -> list[Tensor]:
        tensors: list[Tensor] = []
        for i, (leaf, like) in enumerate(zip(leaves, self._signature.leaves, strict=True)):
            if isinstance(like, TensorMetadata):
                if not isinstance(leaf, Tensor) or leaf.dtype != like.dtype:
                    got = leaf.dtype if isinstance(leaf, Tensor) else type(leaf).__name__
                    raise StructureError(
                        f"torchlayers: {self.name} was exported for a tensor of dtype {like.dtype} "
                        f"as leaf {i} of its arguments; got {got}."
                    )
                tensors.append(leaf)
            elif type(leaf) is not type(like) or leaf != like:
                raise StructureError(
                    f"torchlayers: {self.name} was exported with the constant {like!r} as leaf {i} "
                    f"of its arguments; got {leaf!r}."
                )
        return tensors

    def module(self) -> nn.Module:
        """Returns a module that is called like the function, and runs the program's operators.

        Example:
            >>> doubled = torchlayers.export(lambda x: {"y": 2 * x}, torch.ones(2))
            >>> doubled.module()(torch.ones(2))
            {'y': tensor([2., 2.])}
        """
        return _CalledLikeTheFunction(self)

    def costs(self) -> Costs:
        """Returns the costs of a call: operators, floating-point operations, bytes, peak memory.

        They are of the program's operators, run one by one, for the sizes of the export.

        Example:
            >>> product = torchlayers.export(torch.mv, torch.ones(3, 2), torch.ones(2))
            >>> product.costs().flops
            12
        """
        return costs(self.program.graph_module)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the program to a file of torch.export.save, which :func:`load` reads.

        The file is independent of the processor, and torch.export.load reads it too.

        Args:
            path: must end in ``.pt2``.
        Raises:
            TransformError: the path does not end in ``.pt2``, or a non-tensor argument or result
                can't be serialized.
        """
        path = os.fspath(path)
        aot_package.check_path(path)
        torch.export.save(self.program, path, extra_files={_METADATA: self._signature.to_json()})

    def to_onnx(
        self, path: str | os.PathLike[str], *, opset: int = onnx_file.OPSET, check: bool = True
    ) -> None:
        """Writes the function as an ONNX model, which onnxruntime runs without torch.

        Inputs and outputs have the names ``input_names`` and ``output_names``. Needs the packages
        of ``torchlayers[onnx]``.

        Args:
            path: of the file.
            opset: the version of ONNX's operators, 18 or later.
            check: run the model in onnxruntime, on the arguments of the export and, with dynamic
                sizes, on arguments of other sizes, and compare it with the program.
        Raises:
            TransformError: an operator has no counterpart in ONNX or onnxruntime; the function
                writes to its arguments; results differ; a package is not installed.

        Source: torch.onnx.export.
        """
        onnx_file.write(self.program, self._signature, self._lines, os.fspath(path), opset, check)

    def to_aot(
        self, path: str | os.PathLike[str], *, options: dict[str, Any] | None = None
    ) -> None:
        """Compiles the function with AOTInductor to a file that :func:`load` reads.

        The file holds native code for this torch version and kind of processor. A C++ program can
        run it without Python (docs/deploy.md).

        Args:
            path: must end in ``.pt2``.
            options: for Inductor, by their names in torch._inductor.config.
        Raises:
            TransformError: the path does not end in ``.pt2``; a non-tensor argument or result can't
                be serialized; this machine has no C++ compiler.

        Source: torch._inductor.aoti_compile_and_package.
        """
        program = self._for_compiler() if self._for_compiler is not None else self.program
        aot_package.write(program, self._signature, os.fspath(path), options)

    @staticmethod
    def read_program(path: str) -> "ExportedFunction":
        """Reads a file that ``save`` wrote: see :func:`load`."""
        files = {_METADATA: ""}
        try:
            program = torch.export.load(path, extra_files=files)
        except Exception as error:
            raise TransformError(
                f"torchlayers: load: {path!r} can't be read "
                f"({str(error).partition(chr(10))[0]}). Export the function again."
            ) from error
        if not files[_METADATA]:
            raise TransformError(
                f"torchlayers: load: {path!r} was not saved by torchlayers. torch.export.load "
                "reads it."
            )
        return ExportedFunction(program, FunctionSignature.from_json(files[_METADATA]))


class _CalledLikeTheFunction(nn.Module):
    """An exported function as a module; its parameters are the program's."""

    def __init__(self, function: ExportedFunction) -> None:
        super().__init__()
        self._function = function
        self.program = function.program.module()
        function._module = self.program

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)
