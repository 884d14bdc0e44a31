"""debug.check: which samples fail, with their values and the line."""

import re

import pytest
import torch

import torchlayers as tl
from torchlayers import debug
from torchlayers.errors import CheckError, TransformError

X = torch.tensor([[1.0, 2.0], [-3.0, 4.0], [5.0, -6.0], [2.0, -9.0]])
GOOD = X.abs()


def f(x):
    debug.check(x.sum() > 0, "the sum of {x} at {n}", x=x, n=3, first=x[0])
    return x.sin().sum()


def as_it_is(function):
    return function


RUNS = {
    "eager": as_it_is,
    "replay": lambda function: tl.compile(function, backend="replay"),
}
SAMPLES = (
    r"^torchlayers: debug\.check: 2 of 4 samples failed: sample 2: the sum of \[ 5\., -6\.\] at 3, "
    r"first = 5\.; sample 3: the sum of \[ 2\., -9\.\] at 3, first = 2\. In test_check\.py:\d+, "
    r"`debug\.check\(x\.sum\(\) > 0, .*\)`\.$"
)


@pytest.mark.parametrize("run", ["eager", "replay"])
@pytest.mark.parametrize(
    "transform",
    [
        tl.vmap,
        lambda f: tl.vmap(tl.grad(f)),
        lambda f: tl.vmap(tl.hessian(f)),
        lambda f: tl.grad(lambda x: tl.vmap(f)(x).sum()),
        torch.func.vmap,
        lambda f: tl.vmap(lambda x: tl.jet(f, (x,), ((x,),))),
    ],
)
def test_samples_that_fail_are_named(transform, run):
    check_samples(transform, RUNS[run])


def test_inductors_code_names_the_samples():
    check_samples(tl.vmap, tl.compile)


def check_samples(transform, run):
    function = run(transform(f))
    right = transform(lambda x: x.sin().sum())(GOOD)
    torch.testing.assert_close(function(GOOD), right)
    with pytest.raises(CheckError, match=SAMPLES):
        function(X)
    assert tl.current_stack() == ()
    torch.testing.assert_close(function(GOOD), right)


def test_nested_samples_have_an_index_for_each_vmap():
    def positive(x):
        debug.check(x > -5, "small", x=x)
        return x

    with pytest.raises(CheckError, match=r"2 of 8 samples failed: sample \(1, 2\): small, x = -6"):
        tl.vmap(tl.vmap(positive), 1)(X)


def test_without_a_batch_all_elements_have_to_hold():
    assert f(X[0]) > 0
    with pytest.raises(CheckError, match=r"debug\.check: the sum of \[ 5\., -6\.\] at 3"):
        f(X[2])
    with pytest.raises(CheckError, match=r"debug\.check: sign\. In test_check"):
        debug.check(X > 0, "sign")
    with pytest.raises(AssertionError, match="no number"):
        debug.check(False, "no {kind}", kind="number")
    debug.check(True, "yes")


@pytest.mark.parametrize("run", ["eager", "replay"])
def test_samples_that_do_not_take_a_branch_are_not_checked(run):
    def halved(state):
        count, x = state
        debug.check(x < 4, "step {count}", count=count)
        return count + 1, x / 2

    def function(x):
        y = tl.cond(x.sum() > 0, f, torch.sum, x)
        return y, tl.while_loop(lambda s: (s[0] < 4) & (s[1] < 9), halved, (torch.tensor(0), x[1]))

    both = RUNS[run](tl.vmap(function))
    both(torch.tensor([[1.0, 2.0], [-3.0, 1.0], [1.0, 10.0]]))
    with pytest.raises(CheckError, match=r"1 of 1 samples|sample 1: step 0"):
        both(torch.tensor([[1.0, 2.0], [1.0, 5.0], [1.0, 10.0]]))


def test_five_samples_are_listed():
    def small(x):
        debug.check(x < 5, "large", x=x)
        return x

    with pytest.raises(CheckError, match="15 of 20 samples failed") as caught:
        tl.vmap(small)(torch.arange(20))
    assert len(re.findall(r"large, x = \d+; ", str(caught.value))) == 5
    assert "x = 10" not in str(caught.value)


def test_mistakes_are_refused():
    with pytest.raises(TransformError, match=r"predicate must be a bool or .* of torch\.int64"):
        debug.check(torch.tensor(3), "three")
    with pytest.raises(KeyError, match="z"):
        debug.check(True, "{z}")
