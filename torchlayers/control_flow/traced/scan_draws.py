"""Random draws in the steps of a captured loop.

NOTE [Draws come first]
The derivative of a scan runs its steps again, which would draw other numbers. So a scan that draws
and is differentiated runs twice: first without a derivative, returning each step's draws among the
ys, and then with these draws among the xs, where the steps read them. Draws are constants to
derivatives, as in torch. The numbers and their order are those of the loop in Python. If the draws
don't depend on the carry, nothing else remains of the first scan.
"""

from torch import Tensor

from torchlayers.control_flow.traced.closure_conversion import capture_paused
from torchlayers.control_flow.traced.loop import TracedScan
from torchlayers.control_flow.traced.operator_log import OperatorLog
from torchlayers.control_flow.traced.scan_op import of_first_step, run_as_constants
from torchlayers.control_flow.traced.transformed import Tensors
from torchlayers.core.errors import DataDependentError
from torchlayers.random.recorded_draws import DrawRecorder, draw_in_enclosing_function


def hoist_draws(steps: TracedScan, tensors: Tensors) -> tuple[TracedScan, list[Tensor]]:
    """Returns steps that take their draws as additional xs, and these draws.

    Args:
        steps: the steps.
        tensors: the initial carry, the xs, and the captured tensors.
    Raises:
        DataDependentError: the steps draw in a way that can't be replayed from inputs.
    """
    func, uncaptured = steps.body, steps.uncaptured
    count = 0

    def noting(tensors: Tensors) -> list[Tensor]:
        nonlocal count
        outside = DrawRecorder()
        results = outside.call(func, tensors)
        count = len(outside.noted)
        return [*results[: steps.carried], *outside.noted]

    def with_draws(tensors: Tensors) -> list[Tensor]:
        outside = DrawRecorder(tensors[uncaptured : uncaptured + count])
        return outside.call(func, [*tensors[:uncaptured], *tensors[uncaptured + count :]])

    with capture_paused():
        first = of_first_step(steps, tensors)
        noted = noting(first)[steps.carried :]
        with OperatorLog() as called:
            with_draws([*first[:uncaptured], *noted, *first[uncaptured:]])
    if called.draws:
        raise DataDependentError(
            "torchlayers: compile: a loop step draws random numbers in a way that can't be "
            "recorded."
        )

    def draw() -> list[Tensor]:
        drawing = TracedScan(noting, steps.carried, steps.sliced)
        return run_as_constants(drawing, tensors)[steps.carried :]

    drawn = draw_in_enclosing_function(draw, count)
    return TracedScan(with_draws, steps.carried, steps.sliced + count), drawn
