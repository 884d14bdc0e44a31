"""The rules of sparsity detection, by family of operators. Importing it registers them."""

from torchlayers.transforms.sparse.detection.rules import (
    convolution,
    copies,
    indexing,
    interpolation,
    linear_algebra,
    pointwise,
    pooling,
    products,
    reductions,
    structural,
)

__all__ = [
    "convolution",
    "copies",
    "indexing",
    "interpolation",
    "linear_algebra",
    "pointwise",
    "pooling",
    "products",
    "reductions",
    "structural",
]
