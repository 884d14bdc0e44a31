"""Distributed computation: named axes and their collectives, under every transform.

A collective runs along an axis: the samples of ``vmap(..., axis_name="batch")``, or the ranks of a
mesh dimension. An axis is given by name, bound by the vmap or a ``with mesh:`` block, or as a
one-dimensional DeviceMesh.
"""

from torchlayers.distributed import sent as sent
from torchlayers.distributed.axes import checking as checking
from torchlayers.distributed.collectives import all_gather as all_gather
from torchlayers.distributed.collectives import all_to_all as all_to_all
from torchlayers.distributed.collectives import pmax as pmax
from torchlayers.distributed.collectives import pmean as pmean
from torchlayers.distributed.collectives import pmin as pmin
from torchlayers.distributed.collectives import ppermute as ppermute
from torchlayers.distributed.collectives import psum as psum
from torchlayers.distributed.collectives import psum_invariant as psum_invariant
from torchlayers.distributed.collectives import psum_scatter as psum_scatter
from torchlayers.distributed.collectives import pvary as pvary
from torchlayers.distributed.dtensor_calls import distribute_tensor as distribute_tensor
from torchlayers.distributed.positions import axis_index as axis_index
from torchlayers.distributed.positions import axis_size as axis_size
from torchlayers.distributed.traffic import counting as counting

__all__ = [
    "all_gather",
    "all_to_all",
    "axis_index",
    "axis_size",
    "checking",
    "counting",
    "distribute_tensor",
    "pmax",
    "pmean",
    "pmin",
    "ppermute",
    "psum",
    "psum_invariant",
    "psum_scatter",
    "pvary",
]
