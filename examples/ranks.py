"""Shared by the examples over ranks: the ranks of torchrun, or this process alone."""

import contextlib
import os
from collections.abc import Iterator

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from examples.figures import check
from torchlayers.distributed.sent import Sent


@contextlib.contextmanager
def mesh_of_ranks() -> Iterator[DeviceMesh]:
    """All ranks, in one dimension; a process that was not started as a rank is the only one."""
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))["dp"]
    finally:
        dist.destroy_process_group()


def report(
    mesh: DeviceMesh,
    sent: Sent,
    figures: dict[str, float],
    expected: dict[str, tuple[float, float]],
) -> None:
    """The first rank prints what it sent, and the figures; any rank fails if its figures differ."""
    if mesh.get_local_rank() == 0:
        print(f"{mesh.size()} ranks; one sends {sent.bytes} bytes by {sent.names}")
        check(figures, expected)
    else:
        assert all(
            abs(figures[what] - value) <= within for what, (value, within) in expected.items()
        )
