"""Solutions inside layers written in Python (jet, laplacian), by steps of Newton's method.

NOTE [A solution in a layer of one's own]
Such a layer has no rule for the Functions of this room, and would take their results for constants.
But a Newton step from a solution returns the solution, with derivatives that are right to the first
order, whatever those of its start are; after two steps they are right to the third, after four to
the 15th. The steps are ordinary operators, for which the layer has rules. For a linear system, one
step is exact.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from torchlayers.core.errors import TransformError, location
from torchlayers.implicit.convergence import Vectors
from torchlayers.implicit.krylov import DENSE_LIMIT
from torchlayers.transforms.jvp import jvp
from torchlayers.transforms.vmap import vmap

STEPS = 4


def refined(
    api: str, f: Callable[[Sequence[Tensor]], list[Tensor]], x: Sequence[Tensor], steps: int
) -> list[Tensor]:
    """Returns the root x of f after Newton steps that are made of differentiable operators.

    Raises:
        TransformError: there are too many unknowns for a matrix.
    """
    form = Vectors(x)
    v = form.join(x)
    if v.numel() > DENSE_LIMIT:
        raise TransformError(
            f"torchlayers: {api}: inside a layer written in Python (jet, laplacian, a Layer of "
            f"yours) it solves for up to {DENSE_LIMIT} unknowns, got {v.numel()}.{location()} Use "
            "vmap for a batch of systems, or nest jvp and grad instead of the layer."
        )

    def on_vector(v: Tensor) -> Tensor:
        return form.join(f(form.split(v)))

    basis = torch.eye(v.numel(), dtype=v.dtype, device=v.device)
    for _ in range(steps):
        start = v

        def column(t: Tensor, start: Tensor = start) -> Tensor:
            pushed: Tensor = jvp(on_vector, (start,), (t,))[1]
            return pushed

        v = v - torch.linalg.solve(vmap(column, out_dims=1)(basis), on_vector(v))
    return form.split(v)
