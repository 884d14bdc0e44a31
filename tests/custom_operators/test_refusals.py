"""Invalid rules from Python, and the error messages for them."""

import re
import textwrap
from pathlib import Path

import expecttest
import pytest
import torch

import torchlayers as tl
from tests.custom_operators.modes import MODES, X, Y
from tests.custom_operators.operators import cube, many, one, two
from tests.support.calls import ambient
from torchlayers.errors import RuleError

# The location in the user's code, which is in this file.
PLACE = re.compile(rf" In {re.escape(Path(__file__).name)}:\d+, `.*`\.$")


def said_of(op):
    """The error of registering a rule for the operator, which is the same in both modes."""
    said = set()
    for mode in MODES:
        with pytest.raises(RuleError) as refused:
            mode.rule(op)
        said.add(str(refused.value).replace(f"{mode.name}_rule", "..._rule"))
    assert tl.current_stack() == ()
    return "\n\n".join(textwrap.fill(each, 80) for each in sorted(said))


def said_by(follow, primals):
    """The error of applying a rule."""
    before = ambient()
    with pytest.raises(RuntimeError) as refused:
        follow(*primals)
    assert ambient() == before
    return textwrap.fill(PLACE.sub("", str(refused.value)), 80)


def said_of_jvp(rule, op, *primals):
    tl.extend.jvp_rule(op, replace=True)(rule)
    return said_by(lambda *primals: tl.jvp(op, primals, primals), primals)


def said_of_vjp(rule, op, *primals):
    tl.extend.vjp_rule(op, replace=True)(rule)

    def f(*primals):
        results = op(*primals)
        return sum(y.sum() for y in results) if isinstance(results, tuple | list) else results.sum()

    return said_by(tl.grad(f, argnums=tuple(range(len(primals)))), primals)


class TestRefusedOperators(expecttest.TestCase):
    def test_non_operator_is_rejected(self):
        self.assertExpectedInline(
            said_of(torch.sin),
            """\
torchlayers: ..._rule takes an operator (torch.ops.mylib.name, or the result of
torch.library.custom_op), got builtin_function_or_method.""",
        )

    def test_an_operator_with_several_overloads(self):
        self.assertExpectedInline(
            said_of(torch.ops.aten.sin),
            """\
torchlayers: ..._rule: aten.sin has several overloads: default, out, int, float,
complex, Scalar. Name one: torch.ops.aten.sin.default.""",
        )

    def test_an_operator_that_writes(self):
        self.assertExpectedInline(
            said_of(torch.ops.aten.sin_.default),
            """\
torchlayers: ..._rule: aten.sin_.default writes to its arguments. Register the
rule for the out-of-place operator.

torchlayers: ..._rule: aten.sin_.default writes to its arguments. Register the
rule for the out-of-place operator: an in-place operator uses the rule of its
out-of-place form.""",
        )

    def test_an_operator_with_a_rule_of_ours(self):
        self.assertExpectedInline(
            said_of(torch.ops.aten.sin.default),
            """\
torchlayers: ..._rule: aten.sin.default already has a rule. Pass replace=True to
replace it.""",
        )

    def test_an_operator_with_a_rule_from_python(self):
        self.assertExpectedInline(
            said_of(cube),
            """\
torchlayers: ..._rule: torchlayers_rules.cube.default already has a rule. Pass
replace=True to replace it.""",
        )

    def test_an_operator_that_returns_a_view_has_no_rule_of_cotangents(self):
        with pytest.raises(RuleError) as refused:
            tl.extend.vjp_rule(torch.ops.aten.t.default)
        self.assertExpectedInline(
            textwrap.fill(str(refused.value), 80),
            """\
torchlayers: vjp_rule: aten.t.default returns a view of an argument, which only
autograd can track. Register the rule for an operator that returns a new tensor.""",
        )


class TestRefusedTangents(expecttest.TestCase):
    def test_rule_that_does_not_return_a_pair_is_rejected(self):
        said = said_of_jvp(lambda primals, tangents: one(*primals), one, X)
        self.assertExpectedInline(
            said,
            """\
torchlayers: the jvp rule of torchlayers_rules::one must return (results,
tangents).""",
        )

    def test_a_result_of_another_type(self):
        said = said_of_jvp(lambda primals, tangents: ("x", None), one, X)
        self.assertExpectedInline(
            said,
            """\
torchlayers: the jvp rule of torchlayers_rules::one returned str as result 0,
which is a Tensor.""",
        )

    def test_too_few_results(self):
        said = said_of_jvp(lambda primals, tangents: (two(*primals)[:1], tangents), two, X, Y)
        self.assertExpectedInline(
            said, """torchlayers: the jvp rule of torchlayers_rules::two must return 2 results."""
        )

    def test_one_result_for_several(self):
        said = said_of_jvp(lambda primals, tangents: (primals[0], tangents), two, X, Y)
        self.assertExpectedInline(
            said, """torchlayers: the jvp rule of torchlayers_rules::two must return 2 results."""
        )

    def test_one_tangent_for_several_results(self):
        said = said_of_jvp(lambda primals, tangents: (two(*primals), tangents[0]), two, X, Y)
        self.assertExpectedInline(
            said,
            """\
torchlayers: the jvp rule of torchlayers_rules::two must return a tangent, or
None, for each of its 2 results.""",
        )

    def test_a_tangent_that_is_no_tensor(self):
        said = said_of_jvp(lambda primals, tangents: (one(*primals), 1.0), one, X)
        self.assertExpectedInline(
            said,
            """\
torchlayers: the jvp rule of torchlayers_rules::one gave result 0 a tangent that
is not a tensor.""",
        )

    def test_a_second_tangent_that_is_no_tensor(self):
        said = said_of_jvp(lambda primals, tangents: (two(*primals), (None, "t")), two, X, Y)
        self.assertExpectedInline(
            said,
            """\
torchlayers: the jvp rule of torchlayers_rules::two gave result 1 a tangent that
is not a tensor.""",
        )

    def test_a_tangent_of_another_shape(self):
        said = said_of_jvp(lambda primals, tangents: (one(*primals), tangents[0][:2]), one, X)
        self.assertExpectedInline(
            said,
            """\
torchlayers: the jvp rule of torchlayers_rules::one gave result 0 of shape [3] a
tangent of shape [2]: the shapes must be equal.""",
        )

    def test_a_list_of_tangents_of_another_length(self):
        said = said_of_jvp(lambda primals, tangents: (many(*primals), [X, X, X]), many, X)
        self.assertExpectedInline(
            said,
            """\
torchlayers: the jvp rule of torchlayers_rules::many gave result 0, a list of 2
tensors, 3 tangents: there must be as many tangents as tensors.""",
        )

    def test_a_tangent_of_another_shape_in_a_list(self):
        said = said_of_jvp(lambda primals, tangents: (many(*primals), [X, X[:2]]), many, X)
        self.assertExpectedInline(
            said,
            """\
torchlayers: the jvp rule of torchlayers_rules::many gave result 0 of shape [3]
a tangent of shape [2]: the shapes must be equal.""",
        )


class TestRefusedCotangents(expecttest.TestCase):
    def test_one_gradient_for_several_arguments(self):
        said = said_of_vjp(lambda g, primals, results: primals[0], two, X, Y)
        self.assertExpectedInline(
            said,
            """\
torchlayers: the vjp rule of torchlayers_rules::two must return a tuple with a
gradient, or None, for each of its 2 positional arguments.""",
        )

    def test_too_few_gradients(self):
        said = said_of_vjp(lambda g, primals, results: (primals[0],), two, X, Y)
        self.assertExpectedInline(
            said,
            """\
torchlayers: the vjp rule of torchlayers_rules::two must return a tuple with a
gradient, or None, for each of its 2 positional arguments.""",
        )

    def test_too_many_gradients(self):
        said = said_of_vjp(lambda g, primals, result: (g, g), one, X)
        self.assertExpectedInline(
            said,
            """\
torchlayers: the vjp rule of torchlayers_rules::one must return a tuple with a
gradient, or None, for each of its 1 positional arguments.""",
        )

    def test_a_gradient_that_is_no_tensor(self):
        said = said_of_vjp(lambda g, primals, result: 1.0, one, X)
        self.assertExpectedInline(
            said,
            """\
torchlayers: the vjp rule of torchlayers_rules::one gave argument 0 a gradient
of type float, not a tensor.""",
        )

    def test_a_second_gradient_that_is_no_tensor(self):
        said = said_of_vjp(lambda g, primals, results: (None, "t"), two, X, Y)
        self.assertExpectedInline(
            said,
            """\
torchlayers: the vjp rule of torchlayers_rules::two gave argument 1 a gradient
of type str, not a tensor.""",
        )

    def test_a_gradient_of_another_shape(self):
        said = said_of_vjp(lambda g, primals, result: g[:2], one, X)
        self.assertExpectedInline(
            said,
            """\
torchlayers: the vjp rule of torchlayers_rules::one gave argument 0 of shape [3]
a gradient of shape [2]: the shapes must be equal.""",
        )

    def test_a_gradient_that_would_broadcast(self):
        said = said_of_vjp(lambda g, primals, result: g.sum(), one, X)
        self.assertExpectedInline(
            said,
            """\
torchlayers: the vjp rule of torchlayers_rules::one gave argument 0 of shape [3]
a gradient of shape []: the shapes must be equal.""",
        )
