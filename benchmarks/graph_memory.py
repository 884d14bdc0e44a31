"""Bytes saved for backward, compared with AOTAutograd's partitioners on the same model.

``python -m benchmarks.graph_memory`` prints the table and writes it into docs/graph-fx.md.
"""

from collections.abc import Callable
from typing import Any

import torch
from functorch.compile import (
    aot_function,
    default_partition,
    make_boxed_func,
    min_cut_rematerialization_partition,
)
from torch import Tensor
from torch.fx import Node

from benchmarks import machine, page
from benchmarks.graph_models import Model, models
from torchlayers.graph import Gradient, differentiate

PARTITIONERS = {
    "min-compute": default_partition,
    "min-memory": min_cut_rematerialization_partition,
}


def ours(model: Model, save: str) -> Gradient:
    return differentiate(model.graph, argnums=model.argnums, save=save)


def bytes_of_partitioner(model: Model, partition: Callable[..., Any]) -> int:
    """The bytes of all inputs of AOTAutograd's backward graph except cotangents."""
    saved: list[int] = []

    def counted(joint: Any, inputs: Any, **options: Any) -> Any:
        forward, backward = partition(joint, inputs, **options)
        saved.append(sum(_size(node) for node in backward.graph.nodes if _is_saved(node)))
        return forward, backward

    compiler = lambda graph, _: make_boxed_func(graph.forward)  # noqa: E731
    compiled = aot_function(model.function, compiler, compiler, partition_fn=counted)
    parameters = [p.detach().clone().requires_grad_() for p in model.parameters]
    compiled(*model.inputs, *parameters, *[b.clone() for b in model.buffers])
    (total,) = saved
    return total


def _is_saved(node: Node) -> bool:
    return node.op == "placeholder" and not node.name.startswith("tangents")


def _size(node: Node) -> int:
    val = node.meta["val"]
    return val.numel() * val.element_size() if isinstance(val, Tensor) else 8


def table() -> str:
    rows = []
    for name, make in models().items():
        torch.manual_seed(0)
        model = make()
        sizes = []
        for save, partition in PARTITIONERS.items():
            sizes += [bytes_of_partitioner(model, partition), ours(model, save).saved_bytes]
        rows.append([name, *(f"{size:,}" for size in sizes)])
    columns = ("", "default partitioner", "min-compute", "min-cut partitioner", "min-memory")
    return page.table(columns, rows)


def main() -> None:
    torch.set_num_threads(1)
    text = f"{table()}\n\n({machine.describe()})"
    print(text)
    page.write("graph-fx.md", "memory", text)


if __name__ == "__main__":
    main()
