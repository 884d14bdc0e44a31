"""The rules of sparsity detection, by family of operators. Importing it registers them."""

from torchlayers.transforms.sparse.detection.rules import (
    along,
    convolution,
    copies,
    grid_samplers,
    indexing,
    linear_algebra,
    pointwise,
    products,
    structural,
)

__all__ = [
    "along",
    "convolution",
    "copies",
    "grid_samplers",
    "indexing",
    "linear_algebra",
    "pointwise",
    "products",
    "structural",
]
