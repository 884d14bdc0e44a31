"""Errors that say which method or rule of a Layer is wrong."""

import pytest
import torch

import torchlayers as tl
from torchlayers.errors import RuleError

X = torch.ones(3)


class Counted(tl.Layer):
    def inputs(self, x):
        return (self.tensor(x, 1),), {}

    def outputs(self, result):
        return result.parts


@pytest.mark.parametrize("pair", ["x", "(x,)", "(x, {})", "((x,), x)", "((x,), {}, 1)"])
def test_inputs_that_are_no_pair(pair):
    class Broken(Counted):
        def inputs(self, x):
            return eval(pair, {"x": self.tensor(x, 1)})

    with pytest.raises(RuleError, match=r"Broken\.inputs must return a pair \(args, kwargs\)"):
        Broken()(torch.sin)(X)


def test_a_rule_that_returns_none():
    class Broken(Counted):
        pass

    @Broken.rule("pointwise")
    def forgot_return(layer, op, *args, **kwargs):
        layer.tensor(op(args[0].value), 2)

    with pytest.raises(RuleError, match=r"rule forgot_return for aten.sin.default returned None"):
        Broken()(torch.sin)(X)


def test_outputs_that_meet_a_constant_of_a_rule():
    class Broken(Counted):
        pass

    @Broken.rule("pointwise")
    def forgot_tensor(layer, op, *args, **kwargs):
        return op(args[0].value)

    with pytest.raises(
        RuleError, match=r"rule forgot_tensor for aten.sin.default returned a plain"
    ):
        Broken()(torch.sin)(X)


def test_outputs_that_meet_a_constant_of_the_function():
    with pytest.raises(RuleError, match="result does not depend on what inputs returned"):
        Counted()(lambda x: torch.ones(2))(X)


def test_other_errors_of_outputs_pass():
    class Broken(Counted):
        def outputs(self, result):
            return self.missing

    with pytest.raises(AttributeError, match="missing"):
        Broken()(lambda x: torch.ones(2))(X)
