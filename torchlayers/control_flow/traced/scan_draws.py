"""What the steps of a recorded loop draw.

NOTE [Draws come first]
A derivative of a scan runs its steps once more, which would draw other numbers. So where a scan
that draws is differentiated it runs twice: once without a derivative, with what each step draws
among the ys, and then with these among the xs, where steps read them. What is drawn is constant to
derivatives, as it is to torch's. The numbers, and their order, are those of the loop in Python. Of
the first scan nothing but the draws is left where they don't depend on what is carried.
"""

from torch import Tensor

from torchlayers.control_flow.traced.closure_conversion import Called, unrecorded
from torchlayers.control_flow.traced.loop_steps import Steps
from torchlayers.control_flow.traced.scan_op import of_first_step, run_as_constants
from torchlayers.control_flow.traced.transformed import Tensors
from torchlayers.core.errors import DataDependentError
from torchlayers.random.recorded_draws import Outside, in_function_around


def drawn_first(steps: Steps, tensors: Tensors) -> tuple[Steps, list[Tensor]]:
    """Steps that take what they draw as further xs, and these.

    Args:
        tensors: the first carry, the xs, and what is captured.
    Raises:
        DataDependentError: what the steps draw can't be told to them.
    """
    func, given = steps.body, steps.given
    count = 0

    def noting(tensors: Tensors) -> list[Tensor]:
        nonlocal count
        outside = Outside()
        results = outside.call(func, tensors)
        count = len(outside.noted)
        return [*results[: steps.carried], *outside.noted]

    def told(tensors: Tensors) -> list[Tensor]:
        outside = Outside(tensors[given : given + count])
        return outside.call(func, [*tensors[:given], *tensors[given + count :]])

    with unrecorded():
        first = of_first_step(steps, tensors)
        noted = noting(first)[steps.carried :]
        with Called() as called:
            told([*first[:given], *noted, *first[given:]])
    if called.draws:
        raise DataDependentError("torchlayers: compile: a step draws where nobody sees it.")

    def draw() -> list[Tensor]:
        drawing = Steps(noting, steps.carried, steps.sliced)
        return run_as_constants(drawing, tensors)[steps.carried :]

    drawn = in_function_around(draw, count)
    return Steps(told, steps.carried, steps.sliced + count), drawn
