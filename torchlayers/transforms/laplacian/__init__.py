"""Laplacians and directional derivatives, by propagating derivatives forward through a function."""

from torchlayers.transforms.laplacian.api import hessian_diagonal as hessian_diagonal
from torchlayers.transforms.laplacian.api import laplacian as laplacian
from torchlayers.transforms.laplacian.directional import biharmonic as biharmonic
from torchlayers.transforms.laplacian.directional import (
    directional_derivatives as directional_derivatives,
)
