"""Operators that copy elements to several places, such as padding, and their transposes."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchlayers.core.operators import aten
from torchlayers.transforms.sparse.detection.index_sets import IndexSets
from torchlayers.transforms.sparse.detection.layer import Call, rule
from torchlayers.transforms.sparse.detection.rules.indexing import accumulated, positions
from torchlayers.transforms.sparse.detection.rules.structural import (
    everything,
    places_are_known,
    plain,
)


@rule(aten.max_unpool2d, aten.max_unpool3d)
def max_unpool(call: Call) -> IndexSets | None:
    if not places_are_known(call):
        return everything(call)
    index, sets = plain(call["indices"]), call.sets("self")
    ndim = len(call["output_size"])
    plane = call.shape[-ndim:].numel()
    flat = index.reshape(-1, index.shape[-ndim:].numel())
    targets = flat + torch.arange(flat.shape[0]).unsqueeze(1) * plane
    return accumulated(call, targets.reshape(index.shape), sets, None)


@rule(aten.embedding_dense_backward)
def embedding_dense_backward(call: Call) -> IndexSets | None:
    places, sets = call.known("indices"), call.sets("grad_output")
    if places is None or sets is None:
        return everything(call)
    if call["padding_idx"] >= 0:
        sets = sets.without((places == call["padding_idx"]).unsqueeze(-1))
    return accumulated(call, positions(call.shape)[places], sets, None)


@rule(aten.unfold_backward)
def unfold_backward(call: Call) -> IndexSets | None:
    targets = positions(call.shape).unfold(call["dim"], call["size"], call["step"])
    return accumulated(call, targets, call.sets("grad_in"), None)


def _padded(call: Call) -> IndexSets | None:
    """Copies of elements, chosen by the operator run on the ids as numbers of float64."""
    (sets,) = call.parts()
    keywords: dict[str, Any] = {}
    args = [sets.ids.double() if x is call["self"] else x for name, x in call.arguments.items()]
    return IndexSets(call.op(*args, **keywords).round().long(), sets.table)


rule(
    aten.reflection_pad1d,
    aten.reflection_pad2d,
    aten.reflection_pad3d,
    aten.replication_pad1d,
    aten.replication_pad2d,
    aten.replication_pad3d,
    aten.im2col,
    aten.upsample_nearest1d,
    aten.upsample_nearest2d,
    aten.upsample_nearest3d,
    aten._upsample_nearest_exact1d,
    aten._upsample_nearest_exact2d,
    aten._upsample_nearest_exact3d,
)(_padded)


def _adjoint_of(forward: Callable[..., Tensor], *names: str) -> Callable[[Call], Any]:
    """The rule of the transpose of an operator that copies elements."""

    def define(call: Call) -> IndexSets | None:
        numbers = positions(call.shape).double()
        given = [call[name] for name in names]
        targets = forward(numbers, *given)
        sets = call.sets("grad_output") or call.sets("self")
        if sets is None:
            return None
        # Where the forward operator pads with zeros, nothing is added.
        if forward == aten.im2col:
            targets = forward(numbers + 1, *given) - 1
            sets = sets.without(targets.reshape(sets.shape) < 0)
            targets = targets.clamp_min(0)
        return accumulated(call, targets.round().long().reshape(sets.shape), sets, None)

    return define


for _name in ("reflection_pad", "replication_pad"):
    for _dims in ("1d", "2d", "3d"):
        _forward = functools.partial(getattr(aten, _name + _dims))
        rule(getattr(aten, f"{_name}{_dims}_backward"))(_adjoint_of(_forward, "padding"))


@rule(aten.col2im)
def col2im(call: Call) -> IndexSets | None:
    sets = call.sets("self")
    assert sets is not None
    options = [call[name] for name in ("kernel_size", "dilation", "padding", "stride")]
    targets = aten.im2col(positions(call.shape).double() + 1, *options).round().long() - 1
    sets = sets.without(targets < 0)
    return accumulated(call, targets.clamp_min(0), sets, None)
