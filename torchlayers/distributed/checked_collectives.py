"""Checks before each of torch's functional collectives that all ranks call the same one."""

from typing import Any

import torch
from torch import Tensor

from torchlayers.core.device import has_data
from torchlayers.core.errors import TransformError
from torchlayers.core.operator_schema import schema_of
from torchlayers.core.torch_private import TorchDispatchMode
from torchlayers.distributed import consistency
from torchlayers.distributed.axes import Axis

_groups: Any = torch.distributed.distributed_c10d
_SPACES = ("_c10d_functional", "_c10d_functional_autograd")
# Operators that send nothing, or only between two ranks.
_OTHERS = (
    "wait_tensor",
    "wait_tensors",
    "_wrap_tensor_autograd",
    "isend",
    "irecv",
    "batch_p2p_ops",
)


class CheckedCollectivesMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that compares ranks before collectives of plain tensors. Collectives along named axes
    do so themselves."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.namespace in _SPACES:
            name = func.__name__.split(".")[0]
            if name not in _OTHERS:
                _compare(name, schema_of(func), args)
        return func(*args, **(kwargs or {}))


def _compare(name: str, schema: Any, args: tuple[Any, ...]) -> None:
    tensors: list[Tensor] = args[0] if isinstance(args[0], list) else [args[0]]
    if not tensors or any(type(x) is not Tensor or not has_data(x) for x in tensors):
        return  # while a graph is captured, or of a subclass with its own collectives
    group = args[-1]
    size = _groups._resolve_process_group(group).size()
    axis = Axis(group, size, (group,))
    is_all_to_all = name.startswith("all_to_all")
    facts = {"the collective": name}
    for i, x in enumerate(tensors):
        shape = ["any", *x.shape[1:]] if is_all_to_all else [*x.shape]
        facts[f"tensor {i}"] = f"{str(x.dtype).removeprefix('torch.')}{shape}"
    for argument, value in zip(schema.arguments[1:], args[1:], strict=False):
        if not is_all_to_all:
            facts[argument.name] = str(value)
    device = tensors[0].device.type
    consistency.check_ranks_agree(name, axis, device, facts)
    if is_all_to_all:
        _compare_parts(name, axis, device, args[2], args[1])


def _compare_parts(
    name: str, axis: Axis, device: str, sent: list[int], received: list[int]
) -> None:
    """Checks that what each rank sends to each other rank is what that rank expects to receive."""
    row = torch.tensor([[*sent, *received]], device=device)
    everybodys = consistency.gather_rows(name, row, axis).tolist()
    for i, counts_of_rank in enumerate(everybodys):
        for j, other in enumerate(everybodys):
            if counts_of_rank[j] != other[axis.size + i]:
                raise TransformError(
                    f"torchlayers: {name}: the ranks of {axis.name!r} differ: rank {i} sends "
                    f"{counts_of_rank[j]} rows to rank {j}, which expects {other[axis.size + i]}."
                )
