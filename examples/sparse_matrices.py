"""Shared by the examples of sparse derivatives: SciPy's matrices, and the dense way beside."""

import time
from collections.abc import Callable
from typing import Any

import scipy.sparse
import torch
from torch import Tensor

from torchlayers import tree


def to_scipy(matrix: Tensor) -> Any:
    """The same matrix for SciPy's solvers."""
    matrix = matrix.detach()
    indices = tuple(matrix.indices().numpy())
    return scipy.sparse.csc_matrix((matrix.values().numpy(), indices), tuple(matrix.shape))


def beside_dense(sparse: Callable[..., Any], dense: Callable[..., Any], *args: Any) -> float:
    """Prints how much longer the dense derivative takes, and returns their largest difference."""
    sparse(*args)  # detects the pattern and colours it
    seconds, results = [], []
    for function in (sparse, dense):
        start = time.perf_counter()
        results.append(function(*args))
        seconds.append(time.perf_counter() - start)
    ours, theirs = map(tree.leaves, results)
    sizes = " and ".join(f"{a.shape[0]:,} x {a.shape[1]:,}" for a in ours)
    print(f"{sizes}: the dense derivative takes {seconds[1] / seconds[0]:.0f} times as long")
    differences = [
        (a.to_dense() - b.reshape(a.shape)).abs().max() for a, b in zip(ours, theirs, strict=True)
    ]
    return torch.stack(differences).max().item()
