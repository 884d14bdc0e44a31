"""Compares the results of two implementations of one computation, up to rounding."""

from collections.abc import Callable, Container, Sequence
from typing import Any

import torch
from torch import Tensor

from torchlayers.core.device import RandomState, has_data
from torchlayers.fx.nodes import span

Run = Callable[[list[Tensor]], Sequence[Any]]
Draws = Sequence[torch.Generator] | None  # the result of graph_queries.draws_from

# The error allowed for sums in another order, in units of rounding of the largest entry.
_UNITS = {torch.float64: 2**14, torch.float32: 2**14, torch.bfloat16: 2**4, torch.float16: 2**5}


class CallSnapshot:
    """Saves a call's written inputs and generator states, so that the call can be repeated."""

    def __init__(self, tensors: Sequence[Tensor], written: Sequence[int], draws: Draws) -> None:
        self.tensors = [*tensors]
        self.written = {i: tensors[i].detach().clone() for i in written}
        self.draws = draws
        self.random = random_state(draws)

    def restored_inputs(self) -> list[Tensor]:
        """Returns the inputs, with copies of those that are written, and rewinds the generators."""
        self.rewind()
        return [
            self.written[i].clone() if i in self.written else tensor
            for i, tensor in enumerate(self.tensors)
        ]

    def rewind(self) -> None:
        if self.random is not None:
            self.random.restore()

    def undo(self) -> None:
        """Restores the inputs that were written since, and rewinds the generators."""
        self.rewind()
        with torch.no_grad():
            for i, value in self.written.items():
                self.tensors[i].copy_(value)


def random_state(draws: Draws) -> RandomState | None:
    return None if draws is None else RandomState(draws)


def run_and_compare(
    before: CallSnapshot,
    reference: Run,
    run: Run,
    half: torch.dtype | None,
    written_too: bool = True,
    uninitialized: Container[int] = (),
) -> tuple[Sequence[Any], str | None]:
    """Returns run's results, and how they differ from the reference's beyond rounding, or None.

    Both start from the same inputs and generator states; the writes and draws of ``run`` stay in
    effect. With ``written_too``, the written inputs are compared as well. ``half`` and
    ``uninitialized`` are passed to first_difference.
    """
    places = [*before.written] if written_too else []
    with torch.no_grad():
        inputs = before.restored_inputs()
        expected = [*reference([*inputs]), *(inputs[i] for i in places)]
        after = random_state(before.draws)
    before.rewind()
    try:
        results = run([*before.tensors])
    except Exception as error:  # the reference raised none
        return [], f"result is missing: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
    if after is not None and not after.is_now():
        return results, "result was computed with a different number of random draws"
    with torch.no_grad():
        actual = [*results, *(before.tensors[i] for i in places)]
        problem = first_difference(expected, actual, half, uninitialized=uninitialized)
        if problem is not None:
            allowed = sensitivity(reference, before.restored_inputs(), places, expected)
            problem = first_difference(expected, actual, half, allowed, uninitialized=uninitialized)
            if after is not None:
                after.restore()
    return results, problem


def first_difference(
    expected: Sequence[Any],
    actual: Sequence[Any],
    half: torch.dtype | None,
    allowed: Sequence[float] | None = None,
    what: str = "result",
    uninitialized: Container[int] = (),
) -> str | None:
    """Describes the first difference: ``result 0 is off by 2 where its largest entry is 1``.

    ``half`` is the result of graph_queries.half_precision: the tolerance for results of any dtype
    is at least that dtype's. The values of results in ``uninitialized`` are not compared.
    """
    for i, (one, other) in enumerate(zip(expected, actual, strict=True)):
        if isinstance(one, Tensor) != isinstance(other, Tensor):
            return f"{what} {i} is {'missing' if isinstance(one, Tensor) else 'unexpected'}"
        if not isinstance(one, Tensor):
            if one != other:
                return f"{what} {i} is {other} instead of {one}"
        else:
            if i in uninitialized:
                problem = metadata_difference(one, other)
            else:
                problem = difference(one, other, half, allowed[i] if allowed else 0.0)
            if problem is not None:
                return f"{what} {i} {problem}"
    return None


def metadata_difference(expected: Tensor, actual: Tensor) -> str | None:
    """Describes how two tensors differ in shape, dtype or layout, or returns None."""
    if (expected.shape, expected.dtype) != (actual.shape, actual.dtype):
        wanted = f"{tuple(expected.shape)}, {expected.dtype}"
        return f"is {tuple(actual.shape)}, {actual.dtype} instead of {wanted}"
    if expected.layout != actual.layout:
        return f"is {actual.layout} instead of {expected.layout}"
    return None


def difference(
    expected: Tensor, actual: Tensor, half: torch.dtype | None = None, allowed: float = 0.0
) -> str | None:
    """Describes how two tensors differ by more than rounding plus ``allowed``, or returns None."""
    if (problem := metadata_difference(expected, actual)) is not None:
        return problem
    expected, actual = _dense(expected), _dense(actual)
    if not has_data(expected):
        return None
    if not (expected.is_floating_point() or expected.is_complex()):
        count = 0 if allowed else int((expected != actual).sum())
        return f"differs in {count} of {expected.numel()} entries" if count else None
    exact, expected, actual = expected.dtype, _wide(expected), _wide(actual)
    finite = expected.isfinite()
    same = (expected == actual) | (expected.isnan() & actual.isnan())
    if not bool((same | (finite & actual.isfinite())).all()):
        return "has different infinities or nans"
    scale = float(expected[finite].abs().max()) if bool(finite.any()) else 0.0
    real = exact.to_real() if exact.is_complex else exact
    rounding = max(_rounding(dtype) for dtype in (real, half) if dtype is not None)
    bound = rounding * scale + allowed
    apart = torch.where(same, torch.zeros_like(expected), expected - actual).abs()
    if bool((apart <= bound).all()):
        return None
    return f"is off by {float(apart.max()):.3g} where its largest entry is {scale:.3g}"


def sensitivity(
    run: Run, inputs: Sequence[Tensor], written: Sequence[int], outputs: Sequence[Any]
) -> list[float]:
    """Bounds how far each output moves if every input is perturbed by some units of rounding.

    A sum that cancels, which would be zero without rounding, has no other scale: the gradient of a
    bias before a batch norm is one. ``outputs`` are the results of ``run``, followed by the inputs
    that it writes to.
    """
    bounds = [0.0] * len(outputs)
    for period in _PERIODS:
        moved = [
            _perturbed(x, period, i) if x.is_floating_point() else x for i, x in enumerate(inputs)
        ]
        results = [*run([*moved]), *(moved[i] for i in written)]
        bounds = [*map(max, bounds, map(_moved, outputs, results))]
    return bounds


# The signs of two perturbations: of one alone, an output may happen to be independent.
_PERIODS = (1, 3)


def _perturbed(tensor: Tensor, period: int, first: int) -> Tensor:
    """Perturbs every element by some units of rounding, and keeps the memory layout.

    The sign changes after each ``period`` elements in memory. It starts differently from input to
    input: if all moved alike, a quotient of two would not.
    """
    if tensor.layout is not torch.strided or tensor.numel() == 0:
        return tensor
    memory = tensor.as_strided([span(tensor)], [1])
    places = (torch.arange(len(memory), device=tensor.device) + first) // period
    signs = 1.0 - 2.0 * (places % 2).to(torch.float64)
    # In single precision, 1 + eps would be 1 for elements of double precision.
    factors = 1 + 4 * torch.finfo(tensor.dtype).eps * signs
    nudged = memory * factors.to(tensor.dtype)
    return nudged.as_strided(tensor.shape, tensor.stride())


def _moved(one: Any, other: Any) -> float:
    if not isinstance(one, Tensor) or one.numel() == 0:
        return 0.0
    one, other = _dense(one), _dense(other)
    if not (one.is_floating_point() or one.is_complex()):
        return 0.0 if torch.equal(one, other) else float("inf")
    return 64 * float((_wide(other) - _wide(one)).abs().nan_to_num().max())


def _dense(tensor: Tensor) -> Tensor:
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def _rounding(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps * _UNITS.get(dtype, 2**4)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
