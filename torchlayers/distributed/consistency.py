"""Checks in one small collective that all ranks are about to do the same."""

import hashlib
import json

import torch
from torch import Tensor

from torchlayers.core.errors import TransformError, message_of
from torchlayers.core.operators import c10d_functional
from torchlayers.core.torch_private import dispatch_modes, torch_c
from torchlayers.distributed.axes import Axis

FAILURE = "failure"  # the name of a fact: why this rank can't begin
_SHOWN = 4  # how many differing facts the error lists


def check_ranks_agree(api: str, axis: Axis, device: str, facts: dict[str, str]) -> None:
    """Raises on every rank of the axis unless all of them have the same facts.

    Args:
        api: the name of the call in the error.
        axis: the axis of ranks.
        device: the type of device that the ranks' tensors are on.
        facts: values that have to be equal on all ranks, by their names in the error.
    Raises:
        TransformError: they differ; the error lists the values by rank.
    """
    text = json.dumps(facts).encode()
    digest = hashlib.blake2b(text, digest_size=16).digest()
    numbers = [int.from_bytes(half, "little", signed=True) for half in (digest[:8], digest[8:])]
    with (  # no layer, mode or capture sees the comparison
        torch.DisableTorchFunction(),
        torch_c._DisableFuncTorch(),
        dispatch_modes._disable_current_modes(),
    ):
        everybodys = gather_rows(
            api, torch.tensor([[len(text), *numbers]], device=device), axis
        ).tolist()
        if all(on_rank == everybodys[0] for on_rank in everybodys):
            return
        longest = max(length for length, *_ in everybodys)
        padded = torch.tensor([[*text, *[0] * (longest - len(text))]], dtype=torch.uint8)
        texts = gather_rows(api, padded.to(device), axis).tolist()
    by_rank = [
        json.loads(bytes(on_rank[:length]))
        for on_rank, (length, *_) in zip(texts, everybodys, strict=True)
    ]
    for rank, on_rank in enumerate(by_rank):
        if FAILURE in on_rank:
            raise TransformError(
                f"torchlayers: {api}: rank {rank} of {axis.name!r} can't begin: {on_rank[FAILURE]}"
            )
    names = dict.fromkeys(name for on_rank in by_rank for name in on_rank)
    different = [
        name
        for name in names
        if any(on_rank.get(name) != by_rank[0].get(name) for on_rank in by_rank)
    ]
    raise TransformError(
        f"torchlayers: {api}: the ranks of {axis.name!r} differ. "
        + " ".join(f"{name}: {_by_rank(by_rank, name)}." for name in different[:_SHOWN])
        + (f" So do {len(different) - _SHOWN} more." if len(different) > _SHOWN else "")
        + " All of them have to make the same calls, with arguments of the same shapes."
    )


def gather_rows(api: str, row: Tensor, axis: Axis) -> Tensor:
    """Gathers the rows of all ranks."""
    try:
        pending = c10d_functional.all_gather_into_tensor(row, axis.size, axis.keys[-1])
        gathered: Tensor = c10d_functional.wait_tensor(pending)
    except RuntimeError as error:  # a rank that is dead or late
        raise type(error)(
            f"torchlayers: {api}: comparing the ranks failed: {message_of(error)}"
        ) from error
    return gathered


def _by_rank(by_rank: list[dict[str, str]], name: str) -> str:
    """Returns a fact's values in words: ``4 on rank 0 and 5 on ranks 1, 2``."""
    ranks: dict[str, list[int]] = {}
    for rank, on_rank in enumerate(by_rank):
        ranks.setdefault(on_rank.get(name, "none"), []).append(rank)
    return " and ".join(
        f"{value} on rank{'s' if len(places) > 1 else ''} {', '.join(map(str, places))}"
        for value, places in ranks.items()
    )
