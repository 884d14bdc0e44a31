"""Decompositions of torch.distributed's in-place collectives into functional ones and a copy.

The in-place collectives write to tensors without declaring it in their schemas, and their kernels
access memory directly, so a transform would not see the writes. Those in which ranks play different
roles (send to one rank, or gather on one) can't be differentiated on each rank separately, and
raise an error.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchlayers.core.operators import c10d_functional
from torchlayers.core.private_names import lookup

Results = tuple[Any, Any]


def _functional(name: str, *args: Any) -> Any:
    lookup("torch.distributed._functional_collectives")  # defines the operators
    result = getattr(c10d_functional, name)(*args)
    if isinstance(result, Tensor):
        return c10d_functional.wait_tensor(result)
    return [c10d_functional.wait_tensor(tensor) for tensor in result]


def _group(boxed: Any) -> Any:
    """Returns the group's name, which the functional collectives take."""
    from torch.distributed import ProcessGroup

    return boxed if isinstance(boxed, str) else ProcessGroup.unbox(boxed).group_name


def _reduction(op: int) -> str:
    """Returns the name of the ReduceOp with this number."""
    from torch.distributed import ReduceOp

    name: str = ReduceOp.RedOpType(op).name
    if name == "PREMUL_SUM":
        raise NotImplementedError(
            "torchlayers: a reduction with ReduceOp.PREMUL_SUM can't run inside a transform. "
            "Multiply, and reduce with ReduceOp.SUM."
        )
    return name.lower()


def _make_finished_work() -> Any:
    """Returns the result of an asynchronous call that has already finished."""
    return lookup("torch._C._distributed_c10d.FakeWork")().boxed()


def _rows(x: Tensor) -> Tensor:
    return x.contiguous() if x.dim() else x.reshape(1)


def rank_in_group(group: Any) -> int:
    """Returns this process's rank in a process group, given as an object or by name."""
    import torch.distributed as dist

    resolve: Any = vars(dist.distributed_c10d)["_resolve_process_group"]
    if isinstance(group, str):
        return dist.get_rank(resolve(group))
    return dist.get_rank(
        group if isinstance(group, dist.ProcessGroup) else dist.ProcessGroup.unbox(group)
    )


def all_reduce(xs: Sequence[Tensor], group: Any, op: int, *rest: Any) -> Results:
    for x in xs:
        x.copy_(_functional("all_reduce", x, _reduction(op), _group(group)))
    return xs, _make_finished_work()


def all_reduce_coalesced(xs: Sequence[Tensor], group: Any, op: int, *rest: Any) -> Any:
    _copy(xs, _functional("all_reduce_coalesced", list(xs), _reduction(op), _group(group)))
    return _make_finished_work()


def broadcast(xs: Sequence[Tensor], group: Any, root: int, *rest: Any) -> Results:
    for x in xs:
        x.copy_(_functional("broadcast", x, root, _group(group)))
    return xs, _make_finished_work()


def all_gather(
    outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], group: Any, *rest: Any
) -> Results:
    for parts, x in zip(outputs, inputs, strict=True):
        rows = x.unsqueeze(0).contiguous()
        _copy(parts, _functional("all_gather_into_tensor", rows, len(parts), _group(group)))
    return outputs, _make_finished_work()


def all_gather_into(output: Tensor, x: Tensor, group: Any, *rest: Any) -> Results:
    rows = _rows(x)
    size = output.numel() // max(x.numel(), 1)
    _fill(output, _functional("all_gather_into_tensor", rows, size, _group(group)))
    return output, _make_finished_work()


def all_gather_into_each(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], group: Any, *rest: Any
) -> Any:
    for output, x in zip(outputs, inputs, strict=True):
        all_gather_into(output, x, group)
    return _make_finished_work()


def reduce_scatter(
    outputs: Sequence[Tensor], inputs: Sequence[Sequence[Tensor]], group: Any, op: int, *rest: Any
) -> Results:
    for output, parts in zip(outputs, inputs, strict=True):
        whole = torch.stack(list(parts))
        reduction = _reduction(op)
        part = _functional("reduce_scatter_tensor", whole, reduction, len(parts), _group(group))
        output.copy_(part.squeeze(0))
    return outputs, _make_finished_work()


def reduce_scatter_into(output: Tensor, x: Tensor, group: Any, op: int, *rest: Any) -> Results:
    size = x.numel() // max(output.numel(), 1)
    rows = x.reshape(size, -1)
    _fill(
        output,
        _functional("reduce_scatter_tensor", rows, _reduction(op), size, _group(group)),
    )
    return output, _make_finished_work()


def reduce_scatter_into_each(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], group: Any, op: int, *rest: Any
) -> Any:
    for output, x in zip(outputs, inputs, strict=True):
        reduce_scatter_into(output, x, group, op)
    return _make_finished_work()


def all_to_all(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], group: Any, *rest: Any
) -> Results:
    received = [x.numel() for x in outputs]
    sent = [x.numel() for x in inputs]
    flat = torch.cat([x.reshape(-1) for x in inputs])
    whole = _functional("all_to_all_single", flat, received, sent, _group(group))
    for output, part in zip(outputs, whole.split(received), strict=True):
        _fill(output, part)
    return outputs, _make_finished_work()


def all_to_all_base(
    output: Tensor,
    x: Tensor,
    group: Any,
    received: Sequence[int],
    sent: Sequence[int],
    *rest: Any,
) -> Any:
    size = _size(group)
    received = list(received) or [output.size(0) // size] * size
    sent = list(sent) or [x.size(0) // size] * size
    rows = x.contiguous()
    output.copy_(_functional("all_to_all_single", rows, received, sent, _group(group)))
    return _make_finished_work()


def _size(boxed: Any) -> int:
    from torch.distributed import ProcessGroup

    return ProcessGroup.unbox(boxed).size()


def _copy(targets: Sequence[Tensor], values: Sequence[Tensor] | Tensor) -> None:
    for target, value in zip(targets, values, strict=True):
        target.copy_(value)


def _fill(target: Tensor, value: Tensor) -> None:
    target.copy_(value.reshape(target.shape))


def in_place(functional: str) -> Callable[..., Tensor]:
    """Returns a functional collective that writes its result to its first argument."""

    def write(x: Tensor, *args: Any) -> Tensor:
        return x.copy_(_functional(functional, x, *args))

    return write


def in_place_list(xs: Sequence[Tensor], *args: Any) -> Sequence[Tensor]:
    _copy(xs, _functional("all_reduce_coalesced", list(xs), *args))
    return xs


def out(functional: str) -> Callable[..., Tensor]:
    """Returns a functional collective that writes its result to `out`."""

    def write(x: Tensor, *args: Any, out: Tensor) -> Tensor:
        return out.copy_(_functional(functional, x, *args))

    return write


def refused(called: str, instead: str) -> Callable[..., Any]:
    """Returns a function that raises an error, which says what to call instead."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(
            f"torchlayers: torch.distributed.{called} can't run on tensors inside a transform: "
            f"ranks play different roles in it, and its derivative would be lost. Call {instead} "
            "of torch.distributed._functional_collectives instead, or detach() the tensor if no "
            "derivative is wanted."
        )

    return refuse


DECOMPOSITIONS: dict[str, Callable[..., Any]] = {
    "c10d::allreduce_": all_reduce,
    "c10d::allreduce_coalesced_": all_reduce_coalesced,
    "c10d::broadcast_": broadcast,
    "c10d::allgather_": all_gather,
    "c10d::_allgather_base_": all_gather_into,
    "c10d::allgather_into_tensor_coalesced_": all_gather_into_each,
    "c10d::reduce_scatter_": reduce_scatter,
    "c10d::_reduce_scatter_base_": reduce_scatter_into,
    "c10d::reduce_scatter_tensor_coalesced_": reduce_scatter_into_each,
    "c10d::alltoall_": all_to_all,
    "c10d::alltoall_base_": all_to_all_base,
    "c10d::allgather_coalesced_": refused("all_gather_coalesced", "all_gather_single_coalesced"),
    "c10d::reduce_": refused("reduce", "all_reduce"),
    "c10d::gather_": refused("gather", "all_gather_single"),
    "c10d::scatter_": refused("scatter", "broadcast, and take a part,"),
    "c10d::send": refused("send", "permute_tensor or all_to_all_single"),
    "c10d::recv_": refused("recv", "permute_tensor or all_to_all_single"),
    "c10d::recv_any_source_": refused("recv", "permute_tensor or all_to_all_single"),
    "_c10d_functional::all_reduce_": in_place("all_reduce"),
    "_c10d_functional::broadcast_": in_place("broadcast"),
    "_c10d_functional::all_reduce_coalesced_": in_place_list,
    "_c10d_functional::all_gather_into_tensor_out": out("all_gather_into_tensor"),
    "_c10d_functional::reduce_scatter_tensor_out": out("reduce_scatter_tensor"),
    "_c10d_functional::isend": refused("isend", "permute_tensor or all_to_all_single"),
    "_c10d_functional::irecv": refused("irecv", "permute_tensor or all_to_all_single"),
    "_c10d_functional::batch_p2p_ops": refused(
        "batch_isend_irecv", "permute_tensor or all_to_all_single"
    ),
}
