"""The line of the user's code that an error inside a function names."""

import inspect
from pathlib import Path

import pytest

import torchlayers as tl
from tests.errors.programs import BATCH, ONE


def reads_a_number(x):
    y = x.sum()
    return y.item()


def reads_a_number_deeper(x):
    return sum(map(reads_a_number, [x, x]))


def reads_a_number_in_torchs_own_python(x):
    return f"{x.sum():.2f}"


def writes_to_what_it_captured(x):
    return x.sum() + ONE.add_(1)


@pytest.mark.parametrize(
    ("transform", "function", "place"),
    [
        (tl.vmap, reads_a_number, reads_a_number),
        (tl.vmap, reads_a_number_deeper, reads_a_number),
        (tl.vmap, reads_a_number_in_torchs_own_python, reads_a_number_in_torchs_own_python),
        (tl.grad, writes_to_what_it_captured, writes_to_what_it_captured),
        (tl.grad, tl.vmap(tl.grad(writes_to_what_it_captured)), writes_to_what_it_captured),
    ],
)
def test_an_error_inside_the_function_names_the_users_line(transform, function, place):
    with pytest.raises(RuntimeError) as error:
        transform(function)(BATCH)
    lines, first = inspect.getsourcelines(place)
    line = first + len(lines) - 1
    assert str(error.value).endswith(f" In {Path(__file__).name}:{line}, `{lines[-1].strip()}`.")
