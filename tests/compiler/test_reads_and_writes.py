"""Functions that read values of tensors and write to Python: loggers, training steps, schedules."""

import warnings

import pytest
import torch
from torch import Tensor

import torchlayers as tl

torch.manual_seed(0)
CALLS = [torch.randn(3, dtype=torch.float64) for _ in range(8)]


class Log:
    def __init__(self) -> None:
        self.total, self.best, self.step = 0.0, float("inf"), 0
        self.average = torch.zeros(3, dtype=torch.float64)
        self.history: list[float] = []


def appended(log, x):
    y = (x * x).sum()
    log.history.append(y.item())
    return y * x


def added_up(log, x):
    log.total += (x * x).sum().item()
    return x * 2


def beside_an_average(log, x):
    log.average = 0.9 * log.average + 0.1 * x.detach()
    log.step += 1
    if x.sum() > 0:
        return x.sin() + log.average.sum()
    return x.cos()


def smallest(log, x):
    loss = x.sum().item()
    if loss < log.best:
        log.best = loss
    return x * 2


def in_one_branch(log, x):
    if x.sum() > 0:
        log.average = log.average + x.detach()
        return log.average * x
    log.step += 1
    return x * log.step


def clipped(log, x):
    norm = x.norm()
    if norm > 1:
        x = x / norm
    log.history.append(norm.item())
    log.step += 1
    return x + log.step if torch.isfinite(norm) else x * 0


def counter_times_number(log, x):
    log.step += 1
    return x * log.step * x.max().item()


WEIGHTS = torch.tensor([[2.0, 3.0, 4.0], [5.0, 7.0, 9.0]], dtype=torch.float64).unbind()


def counter_used_twice_before_weights(log, x):
    log.step += 1
    y = x * log.step + x * log.step
    y = y * WEIGHTS[0]
    if y.sum() > 0:
        return y
    y = y * WEIGHTS[1]
    return y if y.sum() < -100 else y + 1


STEPS = [appended, added_up, beside_an_average, smallest, in_one_branch, clipped]
STEPS += [counter_times_number, counter_used_twice_before_weights]
NESTS = {
    "plain": lambda f: f,
    "grad": lambda f: tl.grad(lambda x: f(x).sum()),
    "jvp": lambda f: lambda x: tl.jvp(f, (x,), (x.cos(),))[1],
}


@pytest.mark.parametrize("nest", NESTS)
@pytest.mark.parametrize("step", STEPS)
def test_results_and_state_are_those_of_eager_calls(step, nest):
    expected, log = Log(), Log()
    eager = NESTS[nest](lambda x: step(expected, x))
    compiled = tl.compile(NESTS[nest](lambda x: step(log, x)), backend="replay")
    for x in CALLS:
        torch.testing.assert_close(compiled(x), eager(x))
        for name, value in vars(expected).items():
            assert type(vars(log)[name]) is type(value)
            torch.testing.assert_close(vars(log)[name], value)
    assert not compiled.report().as_it_is
    many = 4 if step is in_one_branch else 1  # for what each branch reads of the log
    assert len(compiled.report().signatures) <= many


def test_a_call_that_raises_leaves_the_log_of_an_eager_call():
    def f(log: Log, x: Tensor) -> Tensor:
        log.step += 1
        if x.sum() > 1:
            raise ValueError("too large")
        log.history.append(x.sum().item())
        return x * log.step

    expected, log = Log(), Log()
    compiled = tl.compile(lambda x: f(log, x), backend="replay")
    for x in CALLS:
        outcomes = []
        for call in (compiled, lambda x: f(expected, x)):
            try:
                outcomes.append(call(x))
            except ValueError as error:
                outcomes.append(str(error))
        assert type(outcomes[0]) is type(outcomes[1])
        if isinstance(outcomes[0], Tensor):
            torch.testing.assert_close(*outcomes)
        assert (log.step, log.history) == (expected.step, expected.history)


def test_layouts_that_change_in_place_before_and_after_reads():
    def f(x):
        y = (x * 2).t_().unsqueeze_(0)
        if y.sum() > 0:
            y.squeeze_(0)
            z = y @ x
        else:
            z = y * 1
        if z.sum() > 40:
            return y + 1, z
        y.mul_(2)
        return y, z

    compiled, x = tl.compile(f, backend="replay"), torch.linspace(0.5, 2, 6).reshape(2, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for scale in (1, -1, 10, -1, 1):
            torch.testing.assert_close(compiled(scale * x), f(scale * x))
