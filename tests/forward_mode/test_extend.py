"""Rules from Python, for custom operators made with torch.library."""

import re
import textwrap
import threading

import expecttest
import pytest
import torch
import torch.func
from torch import Tensor

import torchlayers as tl
from tests.custom_operators import define
from torchlayers.errors import RuleError

# Custom operators have no batching rules: vmap runs them one by one, and says so.
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")

LIBRARY = "torchlayers_rules"


# What each operator computes, in torch's own operators, stands in PLAIN.
OPERATORS = define(LIBRARY)
custom, cube, weighed = OPERATORS.custom, OPERATORS.cube, OPERATORS.weighed
sine_and_cosine, product_of_list = OPERATORS.sine_and_cosine, OPERATORS.product_of_list
powers, value_and_argmax = OPERATORS.powers, OPERATORS.value_and_argmax


SEEN = []


@tl.extend.jvp_rule(cube)
def cube_jvp(primals, tangents):
    (x,), (t,) = primals, tangents
    return cube(x), 3 * x**2 * t


@tl.extend.jvp_rule(weighed)
def weighed_jvp(primals, tangents, *, scale):
    SEEN.append(tuple(t is not None for t in tangents))
    (x, y), (tx, ty) = primals, tangents
    terms = [tx * y] if tx is not None else []
    terms += [x * ty] if ty is not None else []
    return weighed(x, y, scale=scale), scale * sum(terms)


@tl.extend.jvp_rule(sine_and_cosine)
def sine_and_cosine_jvp(primals, tangents):
    (t,) = tangents
    sine, cosine = sine_and_cosine(*primals)
    return (sine, cosine), (t * cosine, -t * sine)


@tl.extend.jvp_rule(torch.ops.torchlayers_rules.product_of_list)
def product_of_list_jvp(primals, tangents):
    (xs, power), (ts, none) = primals, tangents
    assert none is None
    SEEN.append(tuple(t is not None for t in ts))
    y = product_of_list(xs, power)
    return y, sum(power * y / x * t for x, t in zip(xs, ts, strict=True) if t is not None)


@tl.extend.jvp_rule(powers)
def powers_jvp(primals, tangents):
    (x,), (t,) = primals, tangents
    return powers(x), [t, 2 * x * t, 3 * x**2 * t]


@tl.extend.jvp_rule(value_and_argmax)
def value_and_argmax_jvp(primals, tangents):
    (x,), (t,) = primals, tangents
    value, place = value_and_argmax(x)
    return (value, place), (t.gather(0, place[None])[0], None)


# torch's way without a batching rule does not know lists.
@product_of_list.register_vmap
def product_of_list_vmap(info, in_dims, xs, power):
    batches = [
        x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
        for x, dim in zip(xs, in_dims[0], strict=True)
    ]
    return product_of_list(batches, power), 0


@powers.register_vmap
def powers_vmap(info, in_dims, x):
    return powers(x), [in_dims[0]] * 3


X = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
T = torch.tensor([1.0, 0.3, -2.0], dtype=torch.float64)
Y = torch.tensor([1.5, 0.7, -0.2], dtype=torch.float64)
XS, TS = torch.stack([X, Y]), torch.stack([T, X])

# (with custom operators, in plain torch)
FUNCTIONS = {
    "one result": (lambda x: cube(x) * x, lambda x: x**3 * x),
    "constant operand": (lambda x: weighed(x, Y, scale=0.5), lambda x: 0.5 * x * Y),
    "constant first operand": (lambda x: weighed(Y, x, scale=0.5), lambda x: 0.5 * x * Y),
    "both operands": (lambda x: weighed(x.sin(), x, scale=2.0), lambda x: 2 * x.sin() * x),
    "several results": (
        lambda x: sine_and_cosine(x * 2)[0] + x * sine_and_cosine(x * 2)[1],
        lambda x: (x * 2).sin() + x * (x * 2).cos(),
    ),
    "a list of operands": (
        lambda x: product_of_list([x, Y, x + 2], 2),
        lambda x: (x * Y * (x + 2)) ** 2,
    ),
    "a list of results": (lambda x: sum(powers(x)), lambda x: x + x**2 + x**3),
    "a result without tangent": (lambda x: value_and_argmax(x)[0] * x, lambda x: x.max() * x),
    "operator of operators": (lambda x: cube(cube(x)), lambda x: x**9),
}


def pushed(tf, f, x, t):
    return tf.jvp(f, (x,), (t,))


NESTS = {
    "jvp": lambda tf, f: pushed(tf, f, X, T),
    "jvp(jvp)": lambda tf, f: pushed(tf, lambda x: pushed(tf, f, x, T), X, Y),
    "vmap(jvp)": lambda tf, f: tf.vmap(lambda x, t: pushed(tf, f, x, t))(XS, TS),
    "jvp(vmap)": lambda tf, f: pushed(tf, tf.vmap(f), XS, TS),
    "jacfwd": lambda tf, f: tf.jacfwd(f)(X),
    "jacfwd(jacfwd)": lambda tf, f: tf.jacfwd(tf.jacfwd(f))(X),
}


@pytest.mark.parametrize("nest", NESTS.values(), ids=NESTS.keys())
@pytest.mark.parametrize(("f", "plain"), FUNCTIONS.values(), ids=FUNCTIONS.keys())
def test_a_rule_is_followed(f, plain, nest):
    torch.testing.assert_close(nest(tl, f), nest(torch.func, plain))
    assert tl.current_stack() == ()


@pytest.mark.parametrize(("f", "plain"), FUNCTIONS.values(), ids=FUNCTIONS.keys())
def test_linearize_follows_a_rule(f, plain):
    torch.testing.assert_close(tl.linearize(f, X)[1](T), pushed(torch.func, plain, X, T)[1])


cube.register_autograd(
    lambda ctx, g: 3 * ctx.saved_tensors[0] ** 2 * g,
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
)


def test_grad_of_jvp_differentiates_what_the_rule_computes():
    def tangent(tf, f):
        return lambda x: pushed(tf, f, x, T)[1].sum()

    expected = torch.func.grad(tangent(torch.func, lambda x: x**3))(X)
    torch.testing.assert_close(tl.grad(tangent(tl, cube))(X), expected)


def test_hvp_follows_the_rule_under_a_gradient():
    (product,) = tl.hvp(lambda x: (cube(x) * x).sum(), (X,), (T,))
    torch.testing.assert_close(product, 12 * X**2 * T)


def test_absent_tangents_are_none():
    SEEN.clear()
    tl.jvp(lambda x: weighed(x, Y, scale=1.0), (X,), (T,))
    tl.jvp(lambda x: weighed(Y, x, scale=1.0), (X,), (T,))
    tl.jvp(lambda x: product_of_list([Y, x, Y], 1), (X,), (T,))
    assert SEEN == [(True, False), (False, True), (False, True, False)]


def test_a_rule_is_not_asked_where_nothing_has_a_tangent():
    SEEN.clear()
    tl.jvp(lambda x: x + weighed(Y, Y, scale=1.0), (X,), (T,))
    assert SEEN == []


def test_a_rule_is_followed_on_another_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(pushed(tl, cube, X, T)))
    thread.start()
    thread.join()
    torch.testing.assert_close(found, [(X**3, 3 * X**2 * T)])


def test_a_rule_is_traced_as_one():
    with tl.trace() as events:
        tl.jvp(cube, (X,), (T,))
    assert f"{LIBRARY}::cube" in [event.op for event in events if event.step == "rule"]


def test_the_decorator_gives_the_rule_back():
    assert cube_jvp((X,), (T,))[1] is not None


def test_replace_takes_the_place_of_a_rule():
    @custom("replaced")
    def replaced(x: Tensor) -> Tensor:
        return x * 2

    tl.extend.jvp_rule(replaced)(lambda primals, tangents: (replaced(*primals), tangents[0] * 2))
    before = pushed(tl, replaced, X, T)[1]
    tl.extend.jvp_rule(replaced, replace=True)(
        lambda primals, tangents: (replaced(*primals), tangents[0] * 7)
    )
    torch.testing.assert_close((before, pushed(tl, replaced, X, T)[1]), (T * 2, T * 7))


def test_replace_serves_for_an_operator_without_a_rule():
    @custom("new")
    def new(x: Tensor) -> Tensor:
        return x * 2

    tl.extend.jvp_rule(new, replace=True)(lambda primals, tangents: (new(*primals), None))
    torch.testing.assert_close(pushed(tl, new, X, T), (X * 2, X * 0))


def test_a_rule_may_give_an_operand_or_its_tangent_as_it_is():
    """What is written to the results reaches neither."""

    @custom("same")
    def same(x: Tensor) -> Tensor:
        return x.clone()

    tl.extend.jvp_rule(same)(lambda primals, tangents: (same(*primals), tangents[0]))

    def f(x):
        y = x * 1
        same(y).mul_(3)
        return y

    torch.testing.assert_close(pushed(tl, f, X, T), (X, T))


def test_the_error_of_a_rule_passes():
    @custom("raising")
    def raising(x: Tensor) -> Tensor:
        return x.clone()

    @tl.extend.jvp_rule(raising)
    def rule(primals, tangents):
        raise ZeroDivisionError("of the rule")

    with pytest.raises(ZeroDivisionError, match="of the rule"):
        tl.vmap(lambda x: pushed(tl, raising, x, x))(XS)
    assert tl.current_stack() == ()


def said_by(rule, op, *primals):
    """What following the rule is refused with, less the place, which is this file's."""
    tl.extend.jvp_rule(op, replace=True)(rule)
    with pytest.raises(RuntimeError) as refused:
        tl.jvp(op, primals, primals)
    assert tl.current_stack() == ()
    said = re.sub(r" In test_extend\.py:\d+, `.*`\.$", "", str(refused.value))
    return textwrap.fill(said, 80)


def said_of(op):
    with pytest.raises(RuleError) as refused:
        tl.extend.jvp_rule(op)
    assert tl.current_stack() == ()
    return textwrap.fill(str(refused.value), 80)


@custom("one")
def one(x: Tensor) -> Tensor:
    return x * 2


@custom("two")
def two(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x * y, x + y


@custom("many")
def many(x: Tensor) -> list[Tensor]:
    return [x * 2, x * 3]


class TestRefusals(expecttest.TestCase):
    def test_what_is_no_operator(self):
        self.assertExpectedInline(
            said_of(torch.sin),
            """\
torchlayers: jvp_rule takes an operator (torch.ops.mylib.name, or what
torch.library.custom_op made), got builtin_function_or_method.""",
        )

    def test_an_operator_with_several_overloads(self):
        self.assertExpectedInline(
            said_of(torch.ops.aten.sin),
            """\
torchlayers: jvp_rule: aten.sin has the overloads default, out, int, float,
complex, Scalar. Name one: torch.ops.aten.sin.default.""",
        )

    def test_an_operator_that_writes(self):
        self.assertExpectedInline(
            said_of(torch.ops.aten.sin_.default),
            """\
torchlayers: jvp_rule: aten.sin_.default writes to its arguments. Give the
operator without side effects a rule: an in-place operator follows that of its
namesake.""",
        )

    def test_an_operator_with_a_rule_of_ours(self):
        self.assertExpectedInline(
            said_of(torch.ops.aten.sin.default),
            """\
torchlayers: jvp_rule: aten.sin.default has a rule already. Pass replace=True to
take its place.""",
        )

    def test_an_operator_with_a_rule_from_python(self):
        self.assertExpectedInline(
            said_of(cube),
            """\
torchlayers: jvp_rule: torchlayers_rules.cube.default has a rule already. Pass
replace=True to take its place.""",
        )

    def test_a_rule_that_returns_no_pair(self):
        said = said_by(lambda primals, tangents: one(*primals), one, X)
        self.assertExpectedInline(
            said,
            """\
torchlayers: the jvp rule of torchlayers_rules::one must return (results,
tangents).""",
        )

    def test_a_result_of_another_type(self):
        said = said_by(lambda primals, tangents: ("x", None), one, X)
        self.assertExpectedInline(
            said,
            """\
torchlayers: the jvp rule of torchlayers_rules::one returned str as result 0,
which is a Tensor.""",
        )

    def test_too_few_results(self):
        said = said_by(lambda primals, tangents: (two(*primals)[:1], tangents), two, X, Y)
        self.assertExpectedInline(
            said, """torchlayers: the jvp rule of torchlayers_rules::two must return 2 results."""
        )

    def test_one_result_for_several(self):
        said = said_by(lambda primals, tangents: (primals[0], tangents), two, X, Y)
        self.assertExpectedInline(
            said, """torchlayers: the jvp rule of torchlayers_rules::two must return 2 results."""
        )

    def test_one_tangent_for_several_results(self):
        said = said_by(lambda primals, tangents: (two(*primals), tangents[0]), two, X, Y)
        self.assertExpectedInline(
            said,
            """\
torchlayers: the jvp rule of torchlayers_rules::two must return a tangent, or
None, for each of its 2 results.""",
        )

    def test_a_tangent_that_is_no_tensor(self):
        said = said_by(lambda primals, tangents: (one(*primals), 1.0), one, X)
        self.assertExpectedInline(
            said,
            """\
torchlayers: the jvp rule of torchlayers_rules::one gave result 0 no tensor for
a tangent.""",
        )

    def test_a_second_tangent_that_is_no_tensor(self):
        said = said_by(lambda primals, tangents: (two(*primals), (None, "t")), two, X, Y)
        self.assertExpectedInline(
            said,
            """\
torchlayers: the jvp rule of torchlayers_rules::two gave result 1 no tensor for
a tangent.""",
        )

    def test_a_tangent_of_another_shape(self):
        said = said_by(lambda primals, tangents: (one(*primals), tangents[0][:2]), one, X)
        self.assertExpectedInline(
            said,
            """\
torchlayers: the jvp rule of torchlayers_rules::one gave result 0 of shape [3] a
tangent of shape [2]: they must be the same.""",
        )

    def test_a_list_of_tangents_of_another_length(self):
        said = said_by(lambda primals, tangents: (many(*primals), [X, X, X]), many, X)
        self.assertExpectedInline(
            said,
            """\
torchlayers: the jvp rule of torchlayers_rules::many gave result 0, a list of 2
tensors, 3 tangents: they must be as many.""",
        )

    def test_a_tangent_of_another_shape_in_a_list(self):
        said = said_by(lambda primals, tangents: (many(*primals), [X, X[:2]]), many, X)
        self.assertExpectedInline(
            said,
            """\
torchlayers: the jvp rule of torchlayers_rules::many gave result 0 of shape [3]
a tangent of shape [2]: they must be the same.""",
        )
