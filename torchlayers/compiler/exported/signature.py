"""The signature of an exported function: names and shapes of tensors, structures of pytrees."""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule

from torchlayers.compiler.capture.input_names import identifier, with_paths
from torchlayers.compiler.capture.recording import CapturedGraph
from torchlayers.compiler.capture.signature import TensorMetadata
from torchlayers.compiler.passes.graph_queries import final_copies
from torchlayers.core import pytree
from torchlayers.core.errors import TransformError
from torchlayers.core.torch_private import torch_pytree


class FunctionSignature(NamedTuple):
    """The signature of an exported function.

    Attributes:
        name: of the function.
        leaves: the leaves of (args, kwargs): a TensorMetadata for each tensor, other values as they
            are.
        dynamic: for each leaf that is a tensor, by its position, the dimensions whose sizes may
            differ at calls.
        spec: the structure of (args, kwargs).
        outputs: for each leaf of the result its source: ["computed", i] is the i-th output of the
            program, ["argument", i] the i-th leaf of the arguments, ["constant", value].
        out_spec: the structure of the result.
        written: the leaves of the arguments to which the function writes.
        input_names, output_names: of the program's inputs and outputs.
    """

    name: str
    leaves: list[Any]
    dynamic: dict[int, list[int]]
    spec: pytree.TreeSpec
    outputs: list[list[Any]]
    out_spec: pytree.TreeSpec
    written: list[int]
    input_names: list[str]
    output_names: list[str]

    def to_json(self) -> str:
        """Describes the signature as a line of JSON.

        Raises:
            TransformError: an argument or a result can't be described.
        """
        try:
            return json.dumps(
                {
                    "name": self.name,
                    "torch": torch.__version__,
                    "leaves": [*map(self._leaf, range(len(self.leaves)))],
                    "spec": torch_pytree.treespec_dumps(self.spec),
                    "outputs": self.outputs,
                    "written": self.written,
                    "out_spec": torch_pytree.treespec_dumps(self.out_spec),
                    "input_names": self.input_names,
                    "output_names": self.output_names,
                }
            )
        except (TypeError, NotImplementedError) as error:
            raise TransformError(
                f"torchlayers: export: {self.name} takes or returns a value that can't be "
                f"serialized ({error}). Tensors, numbers, strings and None can be saved, in "
                "tuples, lists and dicts, and in classes registered as pytrees with a "
                "serialized_type_name."
            ) from error

    def _leaf(self, place: int) -> Any:
        leaf = self.leaves[place]
        if not isinstance(leaf, TensorMetadata):
            return ["constant", leaf]
        return {
            "shape": leaf.shape,
            "stride": leaf.stride,
            "dtype": str(leaf.dtype).removeprefix("torch."),
            "device": str(leaf.device),
            "dynamic": self.dynamic.get(place, []),
        }

    @staticmethod
    def from_json(text: str) -> "FunctionSignature":
        described = json.loads(text)
        leaves = [
            leaf[1]
            if isinstance(leaf, list)
            else TensorMetadata(
                tuple(leaf["shape"]),
                getattr(torch, leaf["dtype"]),
                torch.device(leaf["device"]),
                tuple(leaf["stride"]),
                requires_grad=False,
                layout=torch.strided,
            )
            for leaf in described["leaves"]
        ]
        dynamic = {
            place: leaf["dynamic"]
            for place, leaf in enumerate(described["leaves"])
            if isinstance(leaf, dict) and leaf["dynamic"]
        }
        return FunctionSignature(
            described["name"],
            leaves,
            dynamic,
            torch_pytree.treespec_loads(described["spec"]),
            described["outputs"],
            torch_pytree.treespec_loads(described["out_spec"]),
            described["written"],
            described["input_names"],
            described["output_names"],
        )


def function_signature(
    name: str,
    captured_graph: CapturedGraph,
    graph: GraphModule,
    leaves: list[Any],
    spec: pytree.TreeSpec,
    dynamic: Sequence[Sequence[int]],
) -> FunctionSignature:
    """Returns the signature of a captured function: ``graph`` is its simplified graph."""
    tensors = [i for i, leaf in enumerate(leaves) if isinstance(leaf, TensorMetadata)]
    # Of the captured graph: a pass may name inputs anew.
    placeholders = [node.name for node in captured_graph.graph.graph.find_nodes(op="placeholder")]
    outputs: list[list[Any]] = []
    output_names: list[str] = []
    for (source, value), path in zip(
        captured_graph.outputs, _paths(captured_graph.out_spec), strict=True
    ):
        if source == "constant":
            outputs.append([source, value])
            continue
        outputs.append([source, value] if source == "argument" else ["computed", len(output_names)])
        output_names.append(identifier("result" + path))
    inputs = {*final_copies(graph).values()}
    return FunctionSignature(
        name,
        leaves,
        {tensors[i]: sorted(dims) for i, dims in enumerate(dynamic) if dims},
        spec,
        outputs,
        captured_graph.out_spec,
        [tensors[i] for i in sorted(inputs) if i < len(tensors)],
        placeholders[: len(tensors)],
        _unique(output_names, placeholders),
    )


def _paths(spec: pytree.TreeSpec) -> list[str]:
    places = pytree.unflatten([*range(spec.num_leaves)], spec)
    return [pytree.keystr(path) for path, _ in with_paths(places)]


def _unique(names: Sequence[str], taken: Sequence[str]) -> list[str]:
    used, unique = {*taken}, []
    for name in names:
        candidate, count = name, 0
        while candidate in used:
            count += 1
            candidate = f"{name}_{count}"
        used.add(candidate)
        unique.append(candidate)
    return unique


def example_of(like: TensorMetadata) -> Tensor:
    """Returns a tensor of these sizes, without values."""
    if like.stride is None:
        raise TransformError(
            f"torchlayers: export: an argument has the layout {like.layout}; only strided tensors "
            "can be exported."
        )
    return torch.empty_strided(like.shape, like.stride, dtype=like.dtype, device=like.device)
