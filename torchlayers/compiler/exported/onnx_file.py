"""Writes an exported program as an ONNX model, and compares it in onnxruntime."""

import importlib
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from torchlayers.compiler.exported.compare import compare_all
from torchlayers.compiler.exported.decompositions import onnx_decompositions
from torchlayers.compiler.exported.exact_scalars import keep_scalars_exact
from torchlayers.compiler.exported.program import rename_outputs
from torchlayers.compiler.exported.signature import FunctionSignature
from torchlayers.core.errors import TransformError
from torchlayers.fx.nodes import value

OPSET = 18  # the oldest that torch.onnx writes, which most runtimes know


def write(
    program: ExportedProgram,
    signature: FunctionSignature,
    lines: Mapping[str, str],
    path: str,
    opset: int,
    check: bool,
) -> None:
    """See ExportedFunction.to_onnx."""
    needed = ("onnx", "onnxscript", *(("onnxruntime",) if check else ()))
    for package in needed:
        _import(package)
    if signature.written or program.graph_signature.buffers_to_mutate:
        raise TransformError(
            f"torchlayers: to_onnx: {signature.name} writes to a tensor that it did not create, "
            "which an ONNX model can't do. Return the new value, and pass it to the next call."
        )
    with _quiet():
        try:
            program = with_onnx_operators(program, signature)
            model = torch.onnx.export(
                program,
                input_names=signature.input_names,
                output_names=signature.output_names,
                opset_version=opset,
                dynamo=True,
                verbose=False,
            )
        except Exception as error:
            raise TransformError(_explain(program, signature.name, lines, error)) from error
        assert model is not None
        _give_names(model, signature)
        model.save(path)
    if check:
        _check(program, signature, path)


def with_onnx_operators(program: ExportedProgram, signature: FunctionSignature) -> ExportedProgram:
    """Decomposes what ONNX lacks."""
    with torch.no_grad():
        decomposed: ExportedProgram = program.run_decompositions(onnx_decompositions())
        keep_scalars_exact(decomposed.graph_module)
    rename_outputs(decomposed, signature.output_names)
    return decomposed


def _import(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise TransformError(
            f"torchlayers: to_onnx: needs the package {package}. Install torchlayers[onnx]."
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Leaves out what torch.onnx and the packages below it say about themselves."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _give_names(model: Any, signature: FunctionSignature) -> None:
    """torch.onnx leaves the name of an output that is also an input of another operator."""
    for output, name in zip(model.model.graph.outputs, signature.output_names, strict=True):
        output.name = name


def _explain(
    program: ExportedProgram, name: str, lines: Mapping[str, str], error: Exception
) -> str:
    text = str(error)
    for node in program.graph.nodes:
        if node.op == "call_function" and str(node.target) in text:
            return (
                f"torchlayers: to_onnx: ONNX has no counterpart of {node.target}, which {name} "
                f"calls. {lines.get(str(node.target), '')}Write it with other operators, or use "
                "to_aot."
            )
    texts = [line for cause in _causes(error) for line in str(cause).splitlines() if line.strip()]
    return f"torchlayers: to_onnx: {name} can't be written as ONNX: {texts[-1] if texts else error}"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _check(program: ExportedProgram, signature: FunctionSignature, path: str) -> None:
    onnxruntime = _import("onnxruntime")
    try:
        settings = onnxruntime.SessionOptions()
        settings.log_severity_level = 4
        session = onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise TransformError(
            f"torchlayers: to_onnx: onnxruntime can't run the model of {signature.name}: "
            f"{str(error).strip().splitlines()[-1]}. check=False writes it nevertheless."
        ) from error
    for inputs in example_inputs(program):
        expected = program.module()(*inputs)
        used = {wanted.name for wanted in session.get_inputs()}
        feed = {
            name: tensor.detach().cpu().numpy()
            for name, tensor in zip(signature.input_names, inputs, strict=True)
            if name in used
        }
        got = [torch.from_numpy(array) for array in session.run(None, feed)]
        compare_all("to_onnx", signature.name, signature.output_names, expected, got)


def example_inputs(program: ExportedProgram) -> list[Sequence[Tensor]]:
    """Returns the inputs of the export, and, with dynamic sizes, inputs of other sizes."""
    examples: Any = program.example_inputs
    inputs = [tensor for tensor in examples[0] if isinstance(tensor, Tensor)]
    resized = _resized(program, inputs)
    return [inputs] if resized is None else [inputs, resized]


def _resized(program: ExportedProgram, inputs: Sequence[Tensor]) -> list[Tensor] | None:
    if not program.range_constraints:
        return None
    names = program.graph_signature.user_inputs
    fakes = {node.name: value(node) for node in program.graph.find_nodes(op="placeholder")}
    larger = {}
    for symbol, limits in program.range_constraints.items():
        hints = [
            tensor.shape[dim]
            for name, tensor in zip(names, inputs, strict=True)
            for dim, size in enumerate(fakes[str(name)].shape)
            if isinstance(size, torch.SymInt) and size.node.expr == symbol
        ]
        if not hints:
            return None
        larger[symbol] = hints[0] + 1 if hints[0] + 1 <= limits.upper else hints[0]
    resized = []
    for name, tensor in zip(names, inputs, strict=True):
        for dim, size in enumerate(fakes[str(name)].shape):
            if isinstance(size, torch.SymInt):
                wanted = int(size.node.expr.subs(larger))
                times = -(-wanted // tensor.shape[dim])
                tensor = torch.cat([tensor] * times, dim).narrow(dim, 0, wanted)
        resized.append(tensor.contiguous())
    return resized
