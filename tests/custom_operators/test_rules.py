"""Rules from Python, jvp and vjp, are applied whatever transforms are around them."""

import threading

import pytest
import torch
import torch.func
from torch import Tensor

import torchlayers as tl
from tests.custom_operators.modes import FORWARD, MODES, REVERSE, T, X, Y
from tests.custom_operators.operators import (
    LIBRARY,
    cube,
    custom,
    powers,
    product_of_list,
    scaled,
    sine_and_cosine,
    value_and_argmax,
    weighed,
)
from tests.support.calls import ambient
from tests.support.traced_steps import traced_steps

# weighed has no batching rule: vmap runs it sample by sample, with a warning.
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")

# (with custom operators, in plain torch)
FUNCTIONS = {
    "one result": (lambda x: cube(x) * x, lambda x: x**3 * x),
    "a constant operand": (lambda x: weighed(x, Y, scale=0.5), lambda x: 0.5 * x * Y),
    "a constant first operand": (lambda x: weighed(Y, x, scale=0.5), lambda x: 0.5 * x * Y),
    "both operands": (lambda x: weighed(x.sin(), x, scale=2.0), lambda x: 2 * x.sin() * x),
    "an operand twice": (lambda x: weighed(x, x, scale=2.0), lambda x: 2 * x * x),
    "several results": (
        lambda x: sine_and_cosine(x * 2)[0] + x * sine_and_cosine(x * 2)[1],
        lambda x: (x * 2).sin() + x * (x * 2).cos(),
    ),
    "both results": (
        lambda x: torch.add(*sine_and_cosine(x)) * x,
        lambda x: (x.sin() + x.cos()) * x,
    ),
    "a list of operands": (
        lambda x: product_of_list([x, Y, x + 2], 2),
        lambda x: (x * Y * (x + 2)) ** 2,
    ),
    "a list of results": (lambda x: sum(powers(x)), lambda x: x + x**2 + x**3),
    "one of a list of results": (lambda x: powers(x)[2] * x, lambda x: x**4),
    "a result without derivative": (
        lambda x: value_and_argmax(x)[0] * x,
        lambda x: x.max() * x,
    ),
    "a number and nothing": (lambda x: scaled(x, 2.0), lambda x: x * 2),
    "an optional operand": (lambda x: scaled(x, 2.0, x * x), lambda x: x * 2 + x * x),
    "an operator of operators": (lambda x: cube(cube(x)), lambda x: x**9),
    "an operator on a view": (lambda x: cube(x[1:]) * x[:2], lambda x: x[1:] ** 3 * x[:2]),
}
NESTS = FORWARD.nests | REVERSE.nests

functions = pytest.mark.parametrize(("f", "plain"), FUNCTIONS.values(), ids=FUNCTIONS.keys())
modes = pytest.mark.parametrize("mode", MODES, ids=[mode.name for mode in MODES])


@pytest.mark.parametrize("nest", NESTS.values(), ids=NESTS.keys())
@functions
def test_a_rule_is_followed(f, plain, nest):
    before = ambient()
    found = nest(tl, f)
    assert ambient() == before
    torch.testing.assert_close(found, nest(torch.func, plain))


@modes
def test_a_rule_is_not_asked_where_nothing_is_differentiated(mode):
    mode.seen.clear()
    mode.derivative(tl, lambda x: x + weighed(Y, Y, scale=1.0))
    weighed(X, Y, scale=1.0)
    assert mode.seen == []


@modes
def test_a_rule_is_followed_on_another_thread(mode):
    found = []
    thread = threading.Thread(target=lambda: found.append(mode.derivative(tl, cube)))
    thread.start()
    thread.join()
    torch.testing.assert_close(found, [mode.derivative(torch.func, lambda x: x**3)])


@modes
def test_a_rule_is_traced_as_one(mode):
    with traced_steps() as events:
        mode.derivative(tl, cube)
    assert f"{LIBRARY}::cube" in [event.op for event in events if event.step == "rule"]


@modes
def test_the_decorator_gives_the_rule_back(mode):
    @custom(f"decorated_{mode.name}")
    def decorated(x: Tensor) -> Tensor:
        return -x

    rule = mode.linear(decorated, -1)
    assert mode.rule(decorated)(rule) is rule


@modes
def test_replace_takes_the_place_of_a_rule(mode):
    @custom(f"replaced_{mode.name}")
    def replaced(x: Tensor) -> Tensor:
        return x * 2

    mode.rule(replaced)(mode.linear(replaced, 2))
    before = mode.derivative(tl, replaced)
    mode.rule(replaced, replace=True)(mode.linear(replaced, 7))
    torch.testing.assert_close((before, mode.derivative(tl, replaced)), (T * 2, T * 7))


@modes
def test_replace_serves_for_an_operator_without_a_rule(mode):
    @custom(f"new_{mode.name}")
    def new(x: Tensor) -> Tensor:
        return x * 2

    mode.rule(new, replace=True)(mode.linear(new, 3))
    torch.testing.assert_close(mode.derivative(tl, new), T * 3)


@modes
def test_zeros_may_be_left_out(mode):
    @custom(f"constant_{mode.name}")
    def constant(x: Tensor) -> Tensor:
        return x.sign()

    none = {
        "jvp": lambda primals, tangents: (constant(*primals), None),
        "vjp": lambda g, primals, result: (None,),
    }
    mode.rule(constant)(none[mode.name])
    torch.testing.assert_close(mode.derivative(tl, constant), T * 0)
    torch.testing.assert_close(mode.derivative(tl, lambda x: constant(x) + x), T)


def raising(mode):
    """An operator whose rule for this mode raises, while the other does not."""

    @custom(f"raising_{mode.name}")
    def raising(x: Tensor) -> Tensor:
        return x.clone()

    def rule(*args):
        raise ZeroDivisionError("of the rule")

    for each in MODES:
        each.rule(raising)(rule if each is mode else each.linear(raising, 1))
    return raising


RAISING = {mode.name: raising(mode) for mode in MODES}


@pytest.mark.parametrize(
    ("mode", "nest"),
    [(mode, nest) for mode in MODES for nest in mode.nests.values()],
    ids=[nest for mode in MODES for nest in mode.nests],
)
def test_the_error_of_a_rule_passes(mode, nest):
    before = ambient()
    with pytest.raises(ZeroDivisionError, match="of the rule"):
        nest(tl, lambda x: RAISING[mode.name](x.sin()))
    assert ambient() == before
    torch.testing.assert_close(mode.derivative(tl, torch.sin), X.cos() * T)
