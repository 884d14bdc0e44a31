"""Laplacians and directional derivatives, by propagating derivatives forward through a function."""

from torchlayers.transforms.laplacian.api import hessian_diagonal as hessian_diagonal
from torchlayers.transforms.laplacian.api import laplacian as laplacian
