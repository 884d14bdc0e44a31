"""Transposes of operators that copy elements to several places: they add elements up."""

import torch
from torch.autograd.graph import saved_tensors_hooks

from torchlayers.core import pytree
from torchlayers.core.operators import aten
from torchlayers.transforms.layers.rule_table import facts
from torchlayers.transforms.sparse.detection.index_sets import IndexSets, union
from torchlayers.transforms.sparse.detection.layer import Call, rule
from torchlayers.transforms.sparse.detection.rules.indexing import accumulated, positions
from torchlayers.transforms.sparse.detection.rules.structural import (
    everything,
    places_are_known,
    plain,
)
from torchlayers.transforms.sparse.detection.rules.windows import (
    back_through_windows,
    windows_of,
)


@rule("scatter")
def scattered(call: Call) -> IndexSets | None:
    """Each element goes where the transpose, a gather, has it from: run on the positions."""
    if not places_are_known(call):
        is_window = facts(call.op)["along"] == "transposed windows"
        return into_windows(call) if is_window else everything(call)
    x = call.args[0]
    sets = call.sets(x)
    if sets is None:
        return None
    numbers = 1 + positions(call.shape).double()
    with torch.enable_grad(), saved_tensors_hooks(_same, _same):
        start = torch.zeros(x.shape, dtype=torch.float64, requires_grad=True)
        rest, named = pytree.map_tensors(plain, (call.args[1:], call.kwargs))
        (places,) = torch.autograd.grad(call.op(start, *rest, **named), start, numbers)
    targets = places.long() - 1  # -1 of elements that are added to none
    return accumulated(call, targets.clamp_min(0), sets.without(targets < 0), None)


@rule("transposed window")
def into_windows(call: Call) -> IndexSets | None:
    """The gradient of a pooling or interpolation: each element goes anywhere in its window."""
    parts = []
    if "indices" in call.arguments and not call.layer.is_local:
        marks = call.parts("self", "indices")
        if any(part.shape != call.shape for part in marks):
            parts = [call.layer.marked(everything(call))]
        else:
            parts = [call.layer.marked(part) for part in marks]
    if (sets := call.sets(call.args[0])) is not None:
        by_dim = windows_of(call, call.shape, sets.shape)
        parts.append(back_through_windows(sets, by_dim, call.shape))
    return union(parts, call.shape) if parts else None


def _same(x: torch.Tensor) -> torch.Tensor:
    return x


@rule(aten.embedding_dense_backward)
def embedding_dense_backward(call: Call) -> IndexSets | None:
    places, sets = call.known("indices"), call.sets("grad_output")
    if places is None or sets is None:
        return everything(call)
    if call["padding_idx"] >= 0:
        sets = sets.without((places == call["padding_idx"]).unsqueeze(-1))
    return accumulated(call, positions(call.shape)[places], sets, None)
