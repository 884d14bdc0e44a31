"""The rules of sparsity detection, by family of operators. Importing it registers them."""

from torchlayers.transforms.sparse.detection.rules import (
    linear_algebra,
    pointwise,
    products,
    reductions,
    structural,
    windows,
)

__all__ = ["linear_algebra", "pointwise", "products", "reductions", "structural", "windows"]
