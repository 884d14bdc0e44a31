"""Cotangent rules from Python, for custom operators made with torch.library."""

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
from tests.helpers import ambient
from torchlayers.errors import RuleError

# Custom operators have no batching rules: vmap runs them one by one, and says so.
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")

LIBRARY = "torchlayers_vjp_rules"


# What each operator computes, in torch's own operators, stands in FUNCTIONS.
OPERATORS = define(LIBRARY)
custom, cube, weighed = OPERATORS.custom, OPERATORS.cube, OPERATORS.weighed
sine_and_cosine, product_of_list = OPERATORS.sine_and_cosine, OPERATORS.product_of_list
powers, value_and_argmax = OPERATORS.powers, OPERATORS.value_and_argmax


@custom("scaled")
def scaled(x: Tensor, factor: float, shift: Tensor | None = None) -> Tensor:
    return x * factor + (0 if shift is None else shift)


SEEN = []


@tl.extend.vjp_rule(cube)
def cube_vjp(g, primals, result):
    return 3 * primals[0] ** 2 * g


@tl.extend.vjp_rule(weighed)
def weighed_vjp(g, primals, result, *, scale):
    SEEN.append(scale)
    x, y = primals
    return scale * g * y, scale * g * x


@tl.extend.vjp_rule(sine_and_cosine)
def sine_and_cosine_vjp(cotangents, primals, results):
    SEEN.append(tuple(g is not None for g in cotangents))
    sine, cosine = results
    by_sine, by_cosine = cotangents
    terms = [by_sine * cosine] if by_sine is not None else []
    terms += [-by_cosine * sine] if by_cosine is not None else []
    return (sum(terms),)


@tl.extend.vjp_rule(torch.ops.torchlayers_vjp_rules.product_of_list)
def product_of_list_vjp(g, primals, result):
    xs, power = primals
    return [power * result / x * g for x in xs], None


@tl.extend.vjp_rule(powers)
def powers_vjp(cotangents, primals, results):
    SEEN.append(tuple(g is not None for g in cotangents))
    (x,) = primals
    factors = 1, 2 * x, 3 * x**2
    return sum(g * f for g, f in zip(cotangents, factors, strict=True) if g is not None)


@tl.extend.vjp_rule(value_and_argmax)
def value_and_argmax_vjp(cotangents, primals, results):
    g, none = cotangents
    assert none is None
    return torch.zeros_like(primals[0]).scatter(0, results[1][None], g[None])


@tl.extend.vjp_rule(scaled)
def scaled_vjp(g, primals, result):
    _, factor, shift = primals
    return g * factor, None, None if shift is None else g


@cube.register_vmap
def cube_vmap(info, in_dims, x):
    return cube(x), in_dims[0]


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


for op, rule in {
    cube: lambda p, t: (cube(*p), 3 * p[0] ** 2 * t[0]),
    sine_and_cosine: lambda p, t: (
        (r := sine_and_cosine(*p)),
        (t[0] * r[1], -t[0] * r[0]),
    ),
    powers: lambda p, t: (powers(*p), [t[0], 2 * p[0] * t[0], 3 * p[0] ** 2 * t[0]]),
    scaled: lambda p, t: (scaled(*p), t[0] * p[1]),
}.items():
    tl.extend.jvp_rule(op)(rule)


X = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
Y = torch.tensor([1.5, 0.7, -0.2], dtype=torch.float64)
XS = torch.stack([X, Y])

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
    "a result without gradient": (
        lambda x: value_and_argmax(x)[0] * x,
        lambda x: x.max() * x,
    ),
    "a number and nothing": (lambda x: scaled(x, 2.0), lambda x: x * 2),
    "an optional operand": (lambda x: scaled(x, 2.0, x * x), lambda x: x * 2 + x * x),
    "an operator of operators": (lambda x: cube(cube(x)), lambda x: x**9),
    "an operator on a view": (lambda x: cube(x[1:]) * x[:2], lambda x: x[1:] ** 3 * x[:2]),
    "a result that is written to": (lambda x: cube(x).mul_(2) * 1, None),
}
REFUSED = {name: fs[0] for name, fs in FUNCTIONS.items() if fs[1] is None}
FUNCTIONS = {name: fs for name, fs in FUNCTIONS.items() if name not in REFUSED}
WITH_TANGENT = [  # operators that have a rule of tangents, too
    *("one result", "several results", "both results", "a list of results"),
    *("one of a list of results", "a number and nothing", "an operator of operators"),
]


def total(f):
    return lambda x: (f(x) * torch.linspace(1, 2, 3, dtype=x.dtype)[: f(x).shape[0]]).sum()


NESTS = {
    "grad": lambda tf, f: tf.grad(total(f))(X),
    "vjp": lambda tf, f: tf.vjp(f, X)[1](f(X) * 0 + 2),
    "jacrev": lambda tf, f: tf.jacrev(f)(X),
    "vmap(grad)": lambda tf, f: tf.vmap(tf.grad(total(f)))(XS),
    "grad(vmap)": lambda tf, f: tf.grad(lambda xs: tf.vmap(f)(xs).sin().sum())(XS),
    "grad(grad)": lambda tf, f: tf.grad(lambda x: (tf.grad(total(f))(x) * Y).sum())(X),
    "vjp(vjp)": lambda tf, f: tf.vjp(lambda x: tf.vjp(f, x)[1](f(X) * 0 + 2)[0], X)[1](Y),
    "jacrev(jacrev)": lambda tf, f: tf.jacrev(tf.jacrev(f))(X),
    "jvp(grad)": lambda tf, f: tf.jvp(tf.grad(total(f)), (X,), (Y,)),
}


def gives(f, plain, nest):
    before = ambient()
    found = nest(tl, f)
    assert ambient() == before
    torch.testing.assert_close(found, nest(torch.func, plain))


@pytest.mark.parametrize("nest", [n for n in NESTS if n != "jvp(grad)"])
@pytest.mark.parametrize(("f", "plain"), FUNCTIONS.values(), ids=FUNCTIONS.keys())
def test_a_rule_is_followed(f, plain, nest):
    gives(f, plain, NESTS[nest])


@pytest.mark.parametrize("name", WITH_TANGENT)
def test_a_rule_is_followed_inside_forward_mode(name):
    gives(*FUNCTIONS[name], NESTS["jvp(grad)"])


@pytest.mark.parametrize("f", REFUSED.values(), ids=REFUSED.keys())
def test_a_python_rule_reads_everything(f):
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        tl.grad(lambda x: f(x).sum())(X)
    assert tl.current_stack() == ()


def test_absent_cotangents_are_none():
    SEEN.clear()
    tl.grad(lambda x: sine_and_cosine(x)[0].sum())(X)
    tl.grad(lambda x: sine_and_cosine(x)[1].sum())(X)
    tl.grad(lambda x: torch.add(*sine_and_cosine(x)).sum())(X)
    tl.grad(lambda x: powers(x)[1].sum())(X)
    assert SEEN == [(True, False), (False, True), (True, True), (False, True, False)]


def test_keywords_are_passed():
    SEEN.clear()
    tl.grad(lambda x: weighed(x, Y, scale=0.25).sum())(X)
    assert SEEN == [0.25]


def test_a_rule_is_not_asked_where_nothing_is_differentiated():
    SEEN.clear()
    tl.grad(lambda x: (x + weighed(Y, Y, scale=1.0)).sum())(X)
    tl.grad(lambda x: (x + weighed(x, Y, scale=1.0).detach()).sum())(X)
    tl.grad(lambda x: (weighed(x, Y, scale=1.0) * 0, x.sum())[1])(X)
    weighed(X, Y, scale=1.0)
    assert SEEN == []


def test_a_rule_of_the_operator_itself_is_its_derivative():
    """Written with the operator, it is differentiated again."""

    @custom("negative_exponential")
    def exponential(x: Tensor) -> Tensor:
        return torch.from_numpy(2.718281828459045 ** -x.numpy())

    tl.extend.vjp_rule(exponential)(lambda g, primals, result: -g * exponential(*primals))

    def f(tf, op):
        return tf.grad(lambda x: tf.grad(lambda x: op(x).sum())(x).sum())(X)

    torch.testing.assert_close(f(tl, exponential), (-X).exp())
    third = tl.grad(lambda x: f_of(x, exponential))(X)
    torch.testing.assert_close(third, -(-X).exp())


def f_of(x, op):
    """The sum of second derivatives."""
    return tl.grad(lambda x: tl.grad(lambda x: op(x).sum())(x).sum())(x).sum()


def test_a_rule_is_followed_on_another_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(tl.grad(total(cube))(X)))
    thread.start()
    thread.join()
    torch.testing.assert_close(found, [torch.func.grad(total(lambda x: x**3))(X)])


def test_a_rule_is_traced_as_one():
    with tl.trace() as events:
        tl.grad(total(cube))(X)
    assert f"{LIBRARY}::cube" in [event.op for event in events if event.step == "rule"]


def test_the_decorator_gives_the_rule_back():
    torch.testing.assert_close(cube_vjp(Y, (X,), X**3), 3 * X**2 * Y)


def test_replace_takes_the_place_of_a_rule():
    @custom("replaced")
    def replaced(x: Tensor) -> Tensor:
        return x * 2

    tl.extend.vjp_rule(replaced)(lambda g, primals, result: g * 2)
    before = tl.grad(lambda x: replaced(x).sum())(X)
    tl.extend.vjp_rule(replaced, replace=True)(lambda g, primals, result: g * 7)
    after = tl.grad(lambda x: replaced(x).sum())(X)
    torch.testing.assert_close((before, after), (X * 0 + 2, X * 0 + 7))


def test_replace_serves_for_an_operator_without_a_rule():
    @custom("new")
    def new(x: Tensor) -> Tensor:
        return x * 2

    tl.extend.vjp_rule(new, replace=True)(lambda g, primals, result: (None,))
    torch.testing.assert_close(tl.grad(lambda x: (new(x) + x).sum())(X), torch.ones_like(X))


def test_replace_takes_the_place_of_a_rule_of_ours():
    try:
        tl.extend.vjp_rule(torch.ops.aten.erfc.default, replace=True)(lambda g, primals, result: g)
        torch.testing.assert_close(tl.grad(lambda x: x.erfc().sum())(X), torch.ones_like(X))
    finally:
        tl._C.switch_vjp_rule("aten::erfc", "", True)
    torch.testing.assert_close(
        tl.grad(lambda x: x.erfc().sum())(X), torch.func.grad(lambda x: x.erfc().sum())(X)
    )


def test_a_rule_goes_before_autograd_and_plain_autograd_has_its_own():
    @custom("registered")
    def registered(x: Tensor) -> Tensor:
        return x * 2

    registered.register_autograd(lambda ctx, g: g * 2)
    tl.extend.vjp_rule(registered)(lambda g, primals, result: g * 5)
    assert tl.grad(lambda x: registered(x).sum())(X).equal(X * 0 + 5)
    x = X.clone().requires_grad_()
    registered(x).sum().backward()
    assert x.grad.equal(X * 0 + 2)


def test_a_rule_may_give_its_cotangent_as_it_is():
    """What is added to one gradient does not reach another."""

    @custom("same")
    def same(x: Tensor) -> Tensor:
        return x.clone()

    tl.extend.vjp_rule(same)(lambda g, primals, result: g)
    g = Y.clone()
    _, vjp_fn = tl.vjp(lambda x: same(x) + same(x) * 2, X)
    torch.testing.assert_close(vjp_fn(g)[0], 3 * Y)
    assert g.equal(Y)


@custom("raising")
def raising(x: Tensor) -> Tensor:
    return x.clone()


@tl.extend.vjp_rule(raising)
def raising_vjp(g, primals, result):
    raise ZeroDivisionError("of the rule")


tl.extend.jvp_rule(raising)(lambda primals, tangents: (raising(*primals), tangents[0]))


@pytest.mark.parametrize("nest", NESTS.values(), ids=NESTS.keys())
def test_the_error_of_a_rule_passes(nest):
    before = ambient()
    with pytest.raises(ZeroDivisionError, match="of the rule"):
        nest(tl, lambda x: raising(x.sin()))
    assert ambient() == before
    torch.testing.assert_close(tl.grad(lambda x: x.sin().sum())(X), X.cos())


def test_the_error_of_a_rule_passes_through_the_engine():
    def f(x):
        y = raising(x.sin())
        y.register_hook(lambda g: g)
        return y.sum()

    before = ambient()
    with pytest.raises(ZeroDivisionError, match="of the rule"):
        tl.grad(f)(X)
    assert ambient() == before


def said_by(rule, op, *primals):
    """What following the rule is refused with, less the place, which is this file's."""
    tl.extend.vjp_rule(op, replace=True)(rule)
    before = ambient()

    def f(*primals):
        results = op(*primals)
        return sum(y.sum() for y in results) if isinstance(results, tuple | list) else results.sum()

    with pytest.raises(RuntimeError) as refused:
        tl.grad(f, argnums=tuple(range(len(primals))))(*primals)
    assert ambient() == before
    said = re.sub(r" In test_extend\.py:\d+, `.*`\.$", "", str(refused.value))
    return textwrap.fill(said, 80)


def said_of(op):
    with pytest.raises(RuleError) as refused:
        tl.extend.vjp_rule(op)
    assert tl.current_stack() == ()
    return textwrap.fill(str(refused.value), 80)


@custom("one")
def one(x: Tensor) -> Tensor:
    return x * 2


@custom("two")
def two(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x * y, x + y


@custom("of_list")
def of_list(xs: list[Tensor]) -> Tensor:
    return xs[0] * xs[1]


class TestRefusals(expecttest.TestCase):
    def test_what_is_no_operator(self):
        self.assertExpectedInline(
            said_of(torch.sin),
            """\
torchlayers: vjp_rule takes an operator (torch.ops.mylib.name, or what
torch.library.custom_op made), got builtin_function_or_method.""",
        )

    def test_an_operator_with_several_overloads(self):
        self.assertExpectedInline(
            said_of(torch.ops.aten.sin),
            """\
torchlayers: vjp_rule: aten.sin has the overloads default, out, int, float,
complex, Scalar. Name one: torch.ops.aten.sin.default.""",
        )

    def test_an_operator_that_writes(self):
        self.assertExpectedInline(
            said_of(torch.ops.aten.sin_.default),
            """\
torchlayers: vjp_rule: aten.sin_.default writes to its arguments. Give the
operator without side effects a rule.""",
        )

    def test_an_operator_that_returns_a_view(self):
        self.assertExpectedInline(
            said_of(torch.ops.aten.t.default),
            """\
torchlayers: vjp_rule: aten.t.default returns a view of an argument, which is
autograd's to follow. Give a rule to an operator that returns a new tensor.""",
        )

    def test_an_operator_with_a_rule_of_ours(self):
        self.assertExpectedInline(
            said_of(torch.ops.aten.sin.default),
            """\
torchlayers: vjp_rule: aten.sin.default has a rule already. Pass replace=True to
take its place.""",
        )

    def test_an_operator_with_a_rule_from_python(self):
        self.assertExpectedInline(
            said_of(cube),
            """\
torchlayers: vjp_rule: torchlayers_vjp_rules.cube.default has a rule already.
Pass replace=True to take its place.""",
        )

    def test_one_gradient_for_several_arguments(self):
        said = said_by(lambda g, primals, results: primals[0], two, X, Y)
        self.assertExpectedInline(
            said,
            """\
torchlayers: the vjp rule of torchlayers_vjp_rules::two must return a tuple with
a gradient, or None, for each of its 2 positional arguments.""",
        )

    def test_too_few_gradients(self):
        said = said_by(lambda g, primals, results: (primals[0],), two, X, Y)
        self.assertExpectedInline(
            said,
            """\
torchlayers: the vjp rule of torchlayers_vjp_rules::two must return a tuple with
a gradient, or None, for each of its 2 positional arguments.""",
        )

    def test_too_many_gradients(self):
        said = said_by(lambda g, primals, result: (g, g), one, X)
        self.assertExpectedInline(
            said,
            """\
torchlayers: the vjp rule of torchlayers_vjp_rules::one must return a tuple with
a gradient, or None, for each of its 1 positional arguments.""",
        )

    def test_a_gradient_that_is_no_tensor(self):
        said = said_by(lambda g, primals, result: 1.0, one, X)
        self.assertExpectedInline(
            said,
            """\
torchlayers: the vjp rule of torchlayers_vjp_rules::one gave argument 0 no
tensor for a gradient, but float.""",
        )

    def test_a_second_gradient_that_is_no_tensor(self):
        said = said_by(lambda g, primals, results: (None, "t"), two, X, Y)
        self.assertExpectedInline(
            said,
            """\
torchlayers: the vjp rule of torchlayers_vjp_rules::two gave argument 1 no
tensor for a gradient, but str.""",
        )

    def test_a_gradient_of_another_shape(self):
        said = said_by(lambda g, primals, result: g[:2], one, X)
        self.assertExpectedInline(
            said,
            """\
torchlayers: the vjp rule of torchlayers_vjp_rules::one gave argument 0 of shape
[3] a gradient of shape [2]: they must be the same.""",
        )

    def test_a_gradient_that_would_broadcast(self):
        said = said_by(lambda g, primals, result: g.sum(), one, X)
        self.assertExpectedInline(
            said,
            """\
torchlayers: the vjp rule of torchlayers_vjp_rules::one gave argument 0 of shape
[3] a gradient of shape []: they must be the same.""",
        )


@pytest.mark.parametrize(
    "gradients",
    [lambda g: ([g],), lambda g: ([g, g, g],), lambda g: (g,), lambda g: ([g, "t"],)],
    ids=["too few", "too many", "no list", "no tensor"],
)
def test_gradients_of_a_list_that_are_not_as_many_are_refused(gradients):
    tl.extend.vjp_rule(of_list, replace=True)(lambda g, primals, result: gradients(g))
    before = ambient()
    with pytest.raises(RuntimeError, match=r"^torchlayers: the vjp rule of .*::of_list"):
        tl.grad(lambda x, y: of_list([x, y]).sum(), argnums=(0, 1))(X, Y)
    assert ambient() == before
