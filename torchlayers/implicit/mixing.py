"""Fixed points and roots by earlier values alone: Anderson's mixing and Broyden's method.

They are undifferentiated here, and on single real vectors.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchlayers.implicit.convergence import Carry, relative_change
from torchlayers.implicit.krylov import DENSE_LIMIT, jacobian_of
from torchlayers.implicit.solution import Outcome, count_iterations
from torchlayers.transforms.jvp import jvp

OnVector = Callable[[Tensor], Tensor]


def anderson(
    f: OnVector, x: Tensor, tolerance: float, eps: float, limit: int, history: int
) -> Outcome:
    """Anderson's mixing (1965) of the last values of f: the combination whose changes cancel best.

    In the form of Walker and Ni (2011), with differences as rows: a least-squares problem in
    ``history`` unknowns, regularized as much as rounding would do it.
    """
    rows = torch.zeros((history, x.shape[0]), dtype=x.dtype, device=x.device)
    eye = torch.eye(history, dtype=x.dtype, device=x.device)

    def body(i: Any, carry: Carry) -> Carry:
        x, _, before, g_before, changes, values, is_first = carry
        fx = f(x)
        g = fx - x
        # The first row would be the difference from no point at all.
        row = torch.where(is_first, 0.0, g - g_before)
        moved = torch.where(is_first, 0.0, fx - before)
        changes, values = torch.cat([changes[1:], row[None]]), torch.cat([values[1:], moved[None]])
        sizes = torch.linalg.vector_norm(changes, dim=1)
        sizes = torch.where(sizes == 0, 1.0, sizes)
        unit = changes / sizes[:, None]
        gram = unit @ unit.mT + 10 * eps * eye
        weights = torch.linalg.solve_ex(gram, unit @ g)[0] / sizes
        new = fx - weights @ values
        return new, relative_change(fx, x), fx, g, changes, values, torch.zeros_like(is_first)

    first = torch.ones((), dtype=torch.bool, device=x.device)
    start = (x, x.new_full((), torch.inf), x, x, rows, rows, first)
    return _until_small(body, start, tolerance, limit)


def broyden(
    f: OnVector, x: Tensor, tolerance: float, eps: float, limit: int, history: int
) -> Outcome:
    """Broyden's first method (1965) for f(x) = 0: the inverse of the Jacobian at the start, with an
    update of rank one in each iteration.

    For more than DENSE_LIMIT unknowns it starts from a multiple of the identity. The updates are
    two lists of rows; when they are full, they are started anew. The residual is the step, relative
    to 1 + norm(x).
    """
    n = x.shape[0]
    fx = f(x)
    if n <= DENSE_LIMIT:
        inverse, failed = torch.linalg.inv_ex(jacobian_of(f, x))
        is_regular = (failed == 0) & inverse.isfinite().all()
        inverse = torch.where(is_regular, inverse, -torch.eye(n, dtype=x.dtype, device=x.device))
    else:
        inverse = _secant_scale(f, x, fx)
    rows = torch.zeros((history, n), dtype=x.dtype, device=x.device)
    index = torch.arange(history, device=x.device)

    def first(v: Tensor) -> Tensor:
        result: Tensor = inverse @ v if n <= DENSE_LIMIT else inverse * v
        return result

    def body(i: Any, carry: Carry) -> Carry:
        x, _, fx, left, right, count = carry
        # H v = H0 v + sum_i left_i (right_i . v)
        step = -(first(fx) + (right @ fx) @ left)
        moved = x + step
        new = f(moved)
        y = new - fx
        hy = first(y) + (right @ y) @ left
        transposed = _transposed(inverse, step) + (left @ step) @ right
        scale = torch.dot(step, hy)
        is_new = (index == count)[:, None]
        is_safe = scale.abs() > eps * torch.linalg.vector_norm(step) * torch.linalg.vector_norm(hy)
        divisor = torch.where(is_safe, scale, 1.0)
        left = torch.where(is_new & is_safe, (step - hy) / divisor, left)
        right = torch.where(is_new & is_safe, transposed, right)
        count = count + is_safe.to(count.dtype)
        is_full = count >= history
        left, right = torch.where(is_full, 0.0, left), torch.where(is_full, 0.0, right)
        return moved, relative_change(moved, x), new, left, right, torch.where(is_full, 0, count)

    start = (x, x.new_full((), torch.inf), fx, rows, rows, torch.zeros_like(index[0]))
    return _until_small(body, start, tolerance, limit)


def _transposed(inverse: Tensor, v: Tensor) -> Tensor:
    result: Tensor = v @ inverse if inverse.dim() == 2 else inverse * v
    return result


def _secant_scale(f: OnVector, x: Tensor, fx: Tensor) -> Tensor:
    """The multiple of the identity that is closest to the inverse Jacobian along f(x)."""
    size = torch.linalg.vector_norm(fx)
    v = fx / torch.where(size == 0, 1.0, size)
    jv = jvp(f, (x,), (v,))[1]
    bend = torch.dot(jv, jv)
    scale: Tensor = torch.where(bend == 0, -1.0, torch.dot(v, jv) / bend)
    return torch.where(scale == 0, -1.0, scale)


def _until_small(
    body: Callable[[Any, Carry], Carry], start: Carry, tolerance: float, limit: int
) -> Outcome:
    last, iterations = count_iterations(lambda carry: carry[1] > tolerance, body, start, limit)
    return Outcome(last[0], iterations, last[1])
