"""Saves compiled functions to files and loads them: AOTInductor packages, which also run in C++.

Besides the code, a package contains a line of JSON: its torch version, the shapes of the arguments,
and how its tensors map to the function's arguments and result.
"""

import copyreg
import hashlib
import json
import lzma
import os
import platform
import struct
import zipfile
import zlib
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from torchlayers.compiler.capture.recording import CapturedGraph
from torchlayers.compiler.capture.signature import TensorMetadata
from torchlayers.compiler.capture.state.python_writes import PythonWrites
from torchlayers.compiler.inductor import cache_directory
from torchlayers.compiler.loaded_package import Package
from torchlayers.compiler.passes.graph_queries import final_copies, operators
from torchlayers.core import pytree as tree
from torchlayers.core.device import CPU
from torchlayers.core.errors import TransformError
from torchlayers.core.operators import aten, higher_order
from torchlayers.core.private_names import lookup
from torchlayers.core.torch_private import torch_pytree
from torchlayers.core.torch_versions import is_no_compiler
from torchlayers.fx.callbacks import CALLBACK_OPS
from torchlayers.fx.nodes import emit, memory_of, value

_KEY = "torchlayers"
_DIGEST = "torchlayers_sha256"  # of the value under the other key


class PackageContent(NamedTuple):
    """The contents of a package: a graph, the sources of its inputs, the uses of its outputs."""

    name: str
    graph: GraphModule
    captured_graph: CapturedGraph
    leaves: list[Any]  # the leaves of (args, kwargs), with a TensorMetadata for each tensor
    spec: tree.TreeSpec


class _ExportedModule(nn.Module):
    """The graph with the captured tensors as buffers, for torch.export."""

    def __init__(self, content: PackageContent) -> None:
        super().__init__()
        self.graph = _unalias_loop_operands(content.graph)
        self.returned = [
            value for source, value in content.captured_graph.outputs if source == "captured"
        ]
        self.captured_names = [f"captured_{i}" for i in range(len(content.captured_graph.captured))]
        for name, tensor in zip(self.captured_names, content.captured_graph.captured, strict=True):
            self.register_buffer(name, tensor.detach().clone())

    def forward(self, *arguments: Tensor) -> tuple[Tensor, ...]:
        captured = [getattr(self, name) for name in self.captured_names]
        return (*self.graph(*arguments, *captured), *(captured[i].clone() for i in self.returned))


def save(content: PackageContent, path: str, options: dict[str, Any] | None) -> None:
    """See Lowered.save."""
    if not path.endswith(".pt2"):
        raise TransformError(f"torchlayers: save: the path must end in .pt2, got {path!r}.")
    effects = content.captured_graph.effects
    if any(effects if effects.writes.computed else effects._replace(writes=PythonWrites())):
        raise TransformError(
            f"torchlayers: save: {content.name} sets .data, .grad or requires_grad, stores "
            "a tensor or reads .grad, which a saved function can't do. Pass and return tensors "
            "instead."
        )
    if any(node.target in CALLBACK_OPS for node in operators(content.graph)):
        raise TransformError(
            f"torchlayers: save: {content.name} calls a pure_callback or io_callback, and a file "
            "holds no Python code. Define an operator with torch.library.custom_op."
        )
    examples = tuple(_empty(leaf) for leaf in content.leaves if isinstance(leaf, TensorMetadata))
    described = _described(content)
    settings = {
        "fallback_random": True,  # draw the same numbers as torch
        "aot_inductor.metadata": {_KEY: described, _DIGEST: _digest(described)},
        **(options or {}),
    }
    copyreg.pickle(type(_leaf_spec()), _copy_leaf)
    try:
        cache_directory.check_writable()
        with torch.no_grad():
            exported = torch.export.export(_ExportedModule(content), examples)
            lookup("torch._inductor.aoti_compile_and_package")(
                exported, package_path=path, inductor_configs=settings
            )
    except Exception as error:
        if (why := cache_directory.unusable_reason(error)) is not None:
            raise TransformError(
                f"torchlayers: save: {cache_directory.describe(why)}. Set TORCHINDUCTOR_CACHE_DIR "
                "to a directory that can be written to."
            ) from error
        if is_no_compiler(error):
            raise TransformError(
                "torchlayers: save: this machine has no C++ compiler, which AOTInductor needs."
            ) from error
        raise


def _copy_leaf(leaf: Any) -> Any:
    """Reduces a LeafSpec for copying: torch's exporter copies it, by a deprecated constructor."""
    return _leaf_spec, ()


def _leaf_spec() -> Any:
    return tree.flatten(0)[1]


def _digest(described: str) -> str:
    return hashlib.sha256(described.encode()).hexdigest()


def _unalias_loop_operands(graph: GraphModule) -> GraphModule:
    """Copies loop operands that share memory: torch.export requires separate memory for each."""
    for subgraph in graph.modules():
        assert isinstance(subgraph, GraphModule)
        for node in subgraph.graph.find_nodes(op="call_function", target=higher_order.scan):
            _copy_operands(node)
        for node in subgraph.graph.find_nodes(op="call_function", target=higher_order.while_loop):
            _copy_operands(node)
        subgraph.recompile()
    return graph


def _copy_operands(loop: Node) -> None:
    taken: set[Node] = set()

    def copy_operand(operand: Node) -> Node:
        if not isinstance(value(operand), Tensor):
            return operand
        if (memory := memory_of(operand)) in taken:
            return emit(loop, aten.clone.default, operand)
        taken.add(memory)
        return operand

    loop.args = torch.fx.node.map_arg(loop.args, copy_operand)


def _empty(like: TensorMetadata) -> Tensor:
    if like.stride is None:
        raise TransformError(
            f"torchlayers: save: an argument has the layout {like.layout}; only strided tensors "
            "can be saved."
        )
    return torch.empty_strided(like.shape, like.stride, dtype=like.dtype, device=like.device)


def _described(content: PackageContent) -> str:
    captured_graph = content.captured_graph
    computed, captured = captured_graph.computed, 0
    outputs: list[list[Any]] = []
    for source, which in captured_graph.outputs:
        if source == "captured":
            outputs.append(["computed", computed + captured])
            captured += 1
        else:
            outputs.append([source, which])
    try:
        return json.dumps(
            {
                "name": content.name,
                "torch": torch.__version__,
                "leaves": [
                    {
                        "shape": leaf.shape,
                        "stride": leaf.stride,
                        "dtype": str(leaf.dtype).removeprefix("torch."),
                        "device": str(leaf.device),
                    }
                    if isinstance(leaf, TensorMetadata)
                    else ["constant", leaf]
                    for leaf in content.leaves
                ],
                "spec": torch_pytree.treespec_dumps(content.spec),
                "outputs": outputs,
                "written": _written(content),
                "out_spec": torch_pytree.treespec_dumps(captured_graph.out_spec),
            }
        )
    except (TypeError, NotImplementedError) as error:
        raise TransformError(
            f"torchlayers: save: {content.name} takes or returns a value that can't be serialized ("
            f"{error}). Tensors, numbers, strings and None can be saved, in tuples, lists and "
            "dicts, and in classes registered as pytrees with a serialized_type_name."
        ) from error


def _written(content: PackageContent) -> list[int]:
    """The indices of the argument leaves that the function writes to."""
    tensors = [i for i, leaf in enumerate(content.leaves) if isinstance(leaf, TensorMetadata)]
    inputs = {*final_copies(content.graph).values()}
    return [tensors[i] for i in sorted(inputs) if i < len(tensors)]


def load(path: str | os.PathLike[str]) -> Package:
    """Loads a function saved by ``compile(f).lower(*args).save(path)``.

    A package is native code: loading one runs whatever is in it. Load only files you trust.

    Args:
        path: the file.
    Returns:
        A :class:`Package`, called with arguments like those it was saved for, without those named
        in static_argnums.
    Raises:
        FileNotFoundError: there is no such file.
        TransformError: the file was not saved by torchlayers, is damaged, or was compiled for
            another torch version or processor.
    Example:
        >>> torchlayers.load("missing.pt2")
        Traceback (most recent call last):
        FileNotFoundError: torchlayers: load: there is no file 'missing.pt2'.
    """
    path = os.fspath(path)
    if not os.path.exists(path):
        raise FileNotFoundError(f"torchlayers: load: there is no file {path!r}.")
    _check_whole(path)
    try:
        metadata = lookup("torch._C._aoti.AOTIModelPackageLoader").load_metadata_from_package(
            path, "model"
        )  # runs nothing
        described = json.loads(metadata[_KEY])
        made_for = described["torch"]
    except (RuntimeError, KeyError, ValueError, TypeError) as error:
        raise TransformError(
            f"torchlayers: load: {path!r} was not saved by torchlayers."
        ) from error
    if made_for != torch.__version__:
        raise TransformError(
            f"torchlayers: load: {path!r} was compiled for torch {made_for}, and this is "
            f"{torch.__version__}. Save it again with this torch."
        )
    if metadata.get(_DIGEST) != _digest(metadata[_KEY]):
        raise TransformError(
            f"torchlayers: load: {path!r} is damaged: its description of arguments and results "
            "differs from what was saved. Copy it or save it again."
        )
    _check_processor(path, metadata)
    try:
        loader = lookup("torch._C._aoti.AOTIModelPackageLoader")(path, "model", False, 1, -1)
    except RuntimeError as error:
        raise TransformError(
            f"torchlayers: load: {path!r} is damaged: the code in it can't be loaded "
            f"({str(error).partition(chr(10))[0]}). Copy it or save it again."
        ) from error
    return Package(described, loader)


def _check_whole(path: str) -> None:
    """Raises an error if the file is damaged: running damaged code would crash the process."""
    try:
        with zipfile.ZipFile(path) as package:
            damaged = package.testzip()
    except IsADirectoryError as error:
        raise TransformError(
            f"torchlayers: load: {path!r} is a directory. Pass the file that save wrote."
        ) from error
    except PermissionError:
        raise
    except (
        *(zipfile.BadZipFile, zlib.error, struct.error, lzma.LZMAError, EOFError, OSError),
        *(NotImplementedError, RuntimeError, ValueError, OverflowError),
    ) as error:
        raise TransformError(
            f"torchlayers: load: {path!r} was not saved by torchlayers, or is damaged."
        ) from error
    if damaged is not None:
        raise TransformError(
            f"torchlayers: load: {path!r} is damaged: its member {damaged!r} fails its checksum. "
            "Copy it or save it again."
        )


def _check_processor(path: str, metadata: dict[str, str]) -> None:
    if metadata.get("AOTI_DEVICE_KEY") != CPU.type:
        return  # AOTInductor queries the driver
    here = {
        word
        for isa in lookup("torch._inductor.cpu_vec_isa.valid_vec_isa_list")()
        for word in str(isa).upper().split()
    }
    wanted = set(metadata.get("AOTI_CPU_ISA", "").upper().split())
    machine = metadata.get("AOTI_MACHINE")
    if machine != platform.machine() or not wanted <= here:
        raise TransformError(
            f"torchlayers: load: {path!r} was compiled for {machine} with "
            f"{' '.join(sorted(wanted))}, and this processor is {platform.machine()} with "
            f"{' '.join(sorted(here))}. Save it again on a processor like this one."
        )
