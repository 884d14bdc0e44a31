"""Rows of the table of pairs: collectives over ranks, which processes of a group compute together.

All ranks have the same input and result, so the derivatives are those of the function without
ranks: ``pvary`` says that each uses the input by itself, ``psum_invariant`` that they share a sum.
"""

import torch
import torch.distributed as dist

from tests.pairs.rows.own import body
from tests.pairs.rows.table import row
from torchlayers.distributed import (
    all_gather,
    all_to_all,
    axis_index,
    pmax,
    ppermute,
    psum,
    psum_invariant,
    psum_scatter,
    pvary,
)

AXIS = "ranks"


def _size():
    return dist.get_world_size() if dist.is_initialized() else 1


def _shares():
    """A factor for each rank; they sum up to one."""
    numbers = torch.arange(1.0, _size() + 1, dtype=torch.float64)
    return numbers / numbers.sum()


def _share():
    return _shares().index_select(0, axis_index(AXIS).reshape(1)).reshape(())


def _together(y):
    return psum_invariant(y * _share(), AXIS)


@row("sums over ranks", lambda x: body(x) + body(x.cos()).exp(), over_ranks=True)
def _(x):
    own = pvary(x, AXIS)
    total = psum(body(own.cos()) * _share(), AXIS)
    return _together(body(own) + total.exp())


def _gathered(x):
    return (_shares()[:, None] * x).sin().sum(0) + x * x.amax()


@row("gathering over ranks", _gathered, over_ranks=True)
def _(x):
    own = pvary(x, AXIS)
    parts = all_gather(own * _share(), AXIS)
    return _together(parts.sin().sum(0) + own * pmax(own, AXIS).amax())


def _exchanged(x):
    following = _shares().roll(1)
    sent = (_shares() * following).sum() * x.sin()
    return sent + (_shares() ** 2).sum() * x.exp() + x.sum()


@row("exchanges between ranks", _exchanged, over_ranks=True)
def _(x):
    own, size = pvary(x, AXIS), _size()
    sent = ppermute(own.sin() * _share(), AXIS, [(i, (i + 1) % size) for i in range(size)])
    scattered = psum_scatter(_shares()[:, None] * own.exp() * _share(), AXIS)
    swapped = all_to_all(own.expand(size, 4) / size, AXIS, 0, 0)
    return _together(sent + scattered + swapped.sum())
