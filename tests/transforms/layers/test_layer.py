"""torchlayers.Layer: entering, rules, decompositions, nests, errors."""

import functools
import gc
import threading
import weakref

import pytest
import torch
from torch.utils.checkpoint import checkpoint as torch_checkpoint

import torchlayers as tl
from tests.transforms.layers.interval import Interval, aten

LOWER = torch.tensor([1.0, -2.0, 0.5])
UPPER = torch.tensor([2.0, -1.0, 3.0])
bounds = Interval()


def same(results, expected):
    for result, wanted in zip(results, expected, strict=True):
        torch.testing.assert_close(result, torch.as_tensor(wanted))


def squared(x):
    return x * x


class Square(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        return 2 * ctx.saved_tensors[0] * g


class Watch(tl.Layer):
    """Lists the operators that it sees."""

    def __init__(self):
        self.seen = []

    def process(self, op, args, kwargs):
        self.seen.append(op)
        return super().process(op, args, kwargs)


class TestTransform:
    def test_rules_compute_the_parts(self):
        same(bounds(squared)(LOWER, UPPER), ([1.0, 1.0, 0.25], [4.0, 4.0, 9.0]))

    def test_constant_is_lifted(self):
        same(bounds(lambda x: x * torch.tensor(-1.0))(LOWER, UPPER), (-UPPER, -LOWER))

    def test_number_does_not_promote(self):
        lower, _ = bounds(lambda x: 2.0 * x)(LOWER, UPPER)
        assert lower.dtype == torch.float32

    def test_writes_are_replaced_before_rules_see_them(self):
        def writing(x):
            y = x.clone()
            y.mul_(2.0)
            y[0] = x[1]
            return y

        lower, upper = bounds(writing)(LOWER, UPPER)
        same((lower, upper), ([-2.0, -4.0, 1.0], [-1.0, -2.0, 6.0]))

    def test_writes_to_arguments_stay_inside(self):
        before = LOWER.clone()
        same(bounds(lambda x: x.mul_(2.0))(LOWER, UPPER), (2 * before, 2 * UPPER))
        assert torch.equal(LOWER, before)

    def test_result_is_a_pytree(self):
        result = bounds(lambda x: {"a": x * x, "b": [x.sum()]})(LOWER, UPPER)
        assert set(result) == {"a", "b"}
        same(result["b"][0], (LOWER.sum(), UPPER.sum()))

    def test_composite_operator_is_decomposed(self):
        same(bounds(lambda x: x.flatten().moveaxis(0, -1))(LOWER, UPPER), (LOWER, UPPER))

    def test_function_keeps_its_name(self):
        assert bounds(squared).__name__ == "squared"

    def test_python_branches_on_the_value(self):
        result = bounds(lambda x: x * 2.0 if x.sum() > 0 else x)(LOWER, UPPER)
        same(result, (2 * LOWER, 2 * UPPER))

    def test_cond_branches_on_the_value(self):
        result = bounds(lambda x: tl.cond(x.sum() > 0, squared, torch.exp, x))(LOWER, UPPER)
        same(result, bounds(squared)(LOWER, UPPER))


class TestNests:
    def test_in_grad(self):
        slope = tl.grad(lambda lower: bounds(lambda x: (x * x).sum())(lower, UPPER)[0])(LOWER)
        same((slope,), (torch.tensor([2.0, 0.0, 1.0]),))

    def test_around_grad(self):
        slopes = bounds(tl.grad(lambda x: (x * x).sum()))(LOWER, UPPER)
        same(slopes, (2 * LOWER, 2 * UPPER))

    def test_in_vmap(self):
        result = tl.vmap(bounds(squared))(LOWER.expand(2, 3), UPPER.expand(2, 3))
        same(result, [side.expand(2, 3) for side in bounds(squared)(LOWER, UPPER)])

    def test_around_vmap(self):
        same(bounds(tl.vmap(squared))(LOWER, UPPER), bounds(squared)(LOWER, UPPER))

    def test_in_jvp(self):
        tangents = tl.jvp(bounds(torch.exp), (LOWER, UPPER), (LOWER, UPPER))[1]
        same(tangents, (LOWER.exp() * LOWER, UPPER.exp() * UPPER))

    def test_in_itself(self):
        # Bounds of the bounds of x + y, where both are uncertain.
        def outer(x):
            lower, upper = bounds(lambda y: y + x)(LOWER, UPPER)
            return lower, upper

        (low, _), (_, high) = bounds(outer)(LOWER, UPPER)
        same((low, high), (LOWER * 2, UPPER * 2))

    @pytest.mark.parametrize(
        "inner",
        [lambda x: (x > 0) * x, lambda x: torch.ones(3) * x, lambda x: torch.zeros(3)],
        ids=["constant of a rule", "factory", "no tensor of the layer"],
    )
    def test_constants_in_itself(self, inner):
        class Own(tl.Layer):
            def inputs(self, x):
                return (self.tensor(x),), {}

        Own.rule("constant")(lambda layer, op, *args: layer.send_down(op, args, {}))
        Own.rule("any")(lambda layer, op, *args: layer.tensor(layer.send_down(op, args, {})))
        nested = Own()(lambda x: Own()(inner)(x) + x)(LOWER)
        same((nested,), (inner(LOWER) + LOWER,))

    def test_in_functionalize(self):
        result = tl.functionalize(lambda x: bounds(lambda y: torch.ones(3) * y)(x, x))(LOWER)
        same(result, (LOWER, LOWER))

    def test_around_functionalize(self):
        result = bounds(tl.functionalize(lambda x: x.clone().mul_(2.0)))(LOWER, UPPER)
        same(result, (2 * LOWER, 2 * UPPER))

    def test_checkpoint_inside(self):
        slope = tl.grad(lambda x: bounds(lambda y: tl.checkpoint(squared)(y).sum())(x, x)[0])
        same((slope(UPPER),), (2 * UPPER,))

    def test_torch_checkpoint_inside(self):
        inside = functools.partial(torch_checkpoint, squared, use_reentrant=False)
        slope = tl.grad(lambda x: bounds(lambda y: inside(y).sum())(x, x)[0])
        same((slope(UPPER),), (2 * UPPER,))

    def test_torch_checkpoint_of_a_function_inside(self):
        inside = functools.partial(torch_checkpoint, Square.apply, use_reentrant=False)
        slope = tl.grad(lambda x: bounds(lambda y: inside(y).sum())(x, x)[0])
        same((slope(UPPER),), (2 * UPPER,))

    def test_in_torch_compile_it_runs_as_it_is(self):
        compiled = torch.compile(
            lambda lower, upper: bounds(squared)(lower, upper), backend="eager"
        )
        same(compiled(LOWER, UPPER), bounds(squared)(LOWER, UPPER))

    def test_compiled(self):
        compiled = tl.compile(bounds(squared))
        same(compiled(LOWER, UPPER), bounds(squared)(LOWER, UPPER))
        same(compiled(LOWER, UPPER + 1), bounds(squared)(LOWER, UPPER + 1))


class TestFunctions:
    def test_forward_is_run(self):
        same(bounds(Square.apply)(LOWER, UPPER), bounds(squared)(LOWER, UPPER))

    def test_own_rule(self):
        class Own(Interval):
            pass

        @Own.rule(Square)
        def square(layer, op, x):
            lower, upper = (part * part for part in x.parts)
            return layer.tensor(x.value**2, (lower, upper))

        same(Own()(Square.apply)(LOWER, UPPER), (LOWER**2, UPPER**2))

    def test_without_tensor_of_the_layer_it_stays_whole(self):
        x = torch.tensor(3.0, requires_grad=True)
        with Watch() as watch:
            y = Square.apply(x)
        assert type(y.grad_fn).__name__ == "SquareBackward"
        assert Square in watch.seen


class TestWithBlock:
    def test_apply(self):
        with Interval() as layer:
            x = layer.tensor(LOWER, (LOWER, UPPER))
            y = layer.apply(squared, x)
        same(y.parts, bounds(squared)(LOWER, UPPER))
        same((y.value,), (LOWER * LOWER,))

    def test_overridden_process_sees_every_operator(self):
        with Watch() as watch:
            torch.ones(2).mul_(2)
        assert watch.seen == [aten.ones.default, aten.mul_.Tensor]

    @pytest.mark.parametrize("is_kept", [False, True])
    def test_recomputation_after_its_block(self, is_kept):
        kept = Watch()

        def inside(x):
            with kept if is_kept else Watch():
                return tl.checkpoint(squared)(x).sum()

        same((tl.grad(inside)(UPPER),), (2 * UPPER,))

    def test_tensors_from_outside_stay_plain(self):
        with Watch():
            y = torch.ones(2) * 2
        assert type(y) is torch.Tensor
        assert torch.equal(y + 1, torch.full((2,), 3.0))

    def test_stack_shows_it(self):
        with Interval() as layer:
            (entry,) = tl.current_stack()
            assert (entry.kind, entry.level, layer.level) == ("interval", 1, 1)
        assert tl.current_stack() == ()

    def test_layer_may_be_entered_again_later(self):
        layer = Interval()
        for _ in range(2):
            with layer:
                assert layer.level == 1

    def test_exception_leaves_the_layer(self):
        with pytest.raises(ZeroDivisionError), Interval():
            raise ZeroDivisionError
        assert tl.current_stack() == ()

    def test_random_operator_draws_constants(self):
        torch.manual_seed(0)
        with Interval() as layer:
            x = layer.tensor(LOWER, (LOWER, UPPER))
            noise = layer.apply(torch.rand_like, x)
        torch.manual_seed(0)
        assert torch.equal(noise, torch.rand_like(LOWER))


class TestRules:
    def test_most_specific_rule_is_used(self):
        class Own(tl.Layer):
            pass

        def rule(layer, op, x, *args, **kwargs):
            return op(x.value, *args, **kwargs)

        def other(layer, op, x, *args, **kwargs):
            return rule(layer, op, x, *args, **kwargs)

        Own.rule("pointwise")(other)
        Own.rule(aten.neg)(rule)
        assert Own._rules.find(aten.neg.default) is rule
        assert Own._rules.find(aten.sin.default) is other
        Own.rule(aten.neg.default)(other)
        assert Own._rules.find(aten.neg.default) is other
        assert Own._rules.find(aten.sum.default) is None

    def test_subclass_inherits_rules_added_later(self):
        class Base(tl.Layer):
            pass

        class Own(Base):
            pass

        assert Own._rules.find(aten.neg.default) is None
        rule = Base.rule(aten.neg)(lambda layer, op, x: op(x.value))
        assert Own._rules.find(aten.neg.default) is rule

    def test_copy_of_a_view_has_the_views_rule(self):
        assert Interval._rules.find(aten.select_copy.int) is Interval._rules.find(aten.select.int)

    def test_any_is_for_what_has_no_other_rule(self):
        class Own(Interval):
            pass

        Own.rule("any")(lambda layer, op, x, *args: layer.tensor(op(x.value, *args), x.parts))
        same(Own()(torch.erf)(LOWER, UPPER), (LOWER, UPPER))
        same(Own()(lambda x: x * 2.0)(LOWER, UPPER), (2 * LOWER, 2 * UPPER))
        assert Own().has_rule(aten.erf.default)
        assert not Own().has_rule(aten.erf_.default)

    def test_not_implemented_decomposes(self):
        class Own(Interval):
            pass

        Own.rule(aten.silu)(lambda layer, op, x: NotImplemented)
        with pytest.raises(tl.errors.RuleError, match=r"no rule for aten\.neg"):
            Own()(torch.nn.functional.silu)(LOWER, UPPER)

    @pytest.mark.parametrize("key", [aten.linear.default, aten.linear])
    def test_composite_operator_with_a_rule_arrives_whole(self, key):
        class Names(tl.Layer):
            pass

        @Names.rule(key)
        def affine(layer, op, x, weight, bias=None):
            shapes = x.parts, *weight.shape, None if bias is None else tuple(bias.shape)
            return layer.tensor(op(x.value, weight.value), shapes)

        weight = torch.ones(2, 3)
        with Names() as layer:
            x = layer.tensor(LOWER, "x")
            assert layer.apply(torch.nn.functional.linear, x, weight).parts == ("x", 2, 3, None)
            found = layer.apply(torch.nn.functional.linear, x, weight, torch.ones(2))
            assert found.parts == ("x", 2, 3, (2,))

    def test_composite_operator_whose_rule_returns_not_implemented_is_decomposed(self):
        class Own(Interval):
            pass

        Own.rule(aten.linear)(lambda layer, op, *args: NotImplemented)

        @Own.rule(aten.mm)
        def mm(layer, op, x, y):
            return layer.tensor(op(x.value, y.value), tuple(part @ y.value for part in x.parts))

        def function(x):
            y = x.clone()
            y.mul_(2.0)
            return torch.nn.functional.linear(y, torch.ones(2, 3))

        ends = torch.stack([2 * LOWER.sum(), 2 * UPPER.sum()])
        same(Own()(function)(LOWER, UPPER), ends[:, None].expand(2, 2))

    @pytest.mark.parametrize(
        ("key", "message"),
        [
            (aten.mul_.Tensor, "writes to its arguments"),
            (aten.flatten, "is composite"),
            ("smooth", "no tag is named 'smooth'.* pointwise"),
            (torch.sin, "takes operators"),
        ],
    )
    def test_invalid_keys(self, key, message):
        with pytest.raises(tl.errors.RuleError, match=message):
            Interval.rule(key)(lambda layer, op, x: x)


class TestErrors:
    def test_operator_without_rule(self):
        with pytest.raises(tl.errors.RuleError) as error:
            bounds(torch.sin)(LOWER, UPPER)
        text = str(error.value)
        assert text.startswith("torchlayers: interval (level 1) has no rule for aten.sin.default")
        assert "@Interval.rule(torch.ops.aten.sin.default)" in text
        assert "In test_layer.py" in text
        assert tl.current_stack() == ()

    def test_write_outside_apply(self):
        with Interval() as layer:
            x = layer.tensor(LOWER, (LOWER, UPPER))
            with pytest.raises(tl.errors.RuleError, match=r"writes to a tensor.*layer\.apply"):
                x.mul_(2)

    def test_rule_that_uses_the_tensor_itself(self):
        class Own(Interval):
            pass

        Own.rule(aten.neg)(lambda layer, op, x: -x)
        with pytest.raises(RuntimeError, match="`value` and the `parts`"):
            Own()(torch.neg)(LOWER, UPPER)
        with pytest.raises(RuntimeError, match=r"a tensor of own \(level 2\) was used in vmap"):
            tl.vmap(Own()(torch.neg))(LOWER, UPPER)

    @pytest.mark.parametrize("use", [torch.sin, tl.vmap(torch.sin), tl.grad(torch.sum), bounds])
    def test_tensor_that_escaped(self, use):
        with Interval() as layer:
            x = layer.tensor(LOWER, (LOWER, UPPER))
        with pytest.raises(RuntimeError, match="a tensor of a layer that has ended"):
            use(squared)(x, x) if use is bounds else use(x)

    def test_value_and_parts_may_be_read_after_the_end(self):
        with Interval() as layer:
            x = layer.tensor(LOWER, (LOWER, UPPER))
        assert torch.equal(x.value, LOWER)
        assert "parts=" in repr(x)

    def test_tensor_of_another_thread(self):
        errors = []

        def use(x):
            try:
                torch.sin(x)
            except RuntimeError as error:
                errors.append(str(error))

        with Interval() as layer:
            x = layer.tensor(LOWER, (LOWER, UPPER))
            thread = threading.Thread(target=use, args=(x,))
            thread.start()
            thread.join()
        assert "below its layer, or on another thread" in errors[0]

    def test_not_active(self):
        with pytest.raises(tl.errors.TransformError, match="is not active"):
            Interval().tensor(LOWER)
        with pytest.raises(tl.errors.TransformError, match="is not active"):
            Interval().apply(squared, LOWER)

    def test_active_already(self):
        with Interval() as layer, pytest.raises(tl.errors.TransformError, match="active already"):
            layer.__enter__()

    def test_name_of_a_transform(self):
        with pytest.raises(tl.errors.TransformError, match="can't be named 'vmap'"):

            class Vmap(tl.Layer):
                pass

    def test_wrong_number_of_results(self):
        class Own(Interval):
            pass

        Own.rule(aten.sort)(lambda layer, op, x, *args: x.value)
        with pytest.raises(RuntimeError, match="must return 2 results"):
            Own()(lambda x: x.sort()[0])(LOWER, UPPER)


def test_layer_that_holds_its_tensors_is_freed():
    class Tape(Watch):
        pass

    layer = Tape()
    with layer:
        layer.kept = layer.tensor(LOWER)
    gone = weakref.ref(layer)
    del layer
    gc.collect()
    assert gone() is None


class Doubled(tl.Layer):
    """parts are twice the value."""


@Doubled.rule(aten.sum.dim_IntList)
def sum_of_the_last(layer, op, x, dims, keepdim=False):
    dims[0] = -1
    return layer.tensor(layer.send_down(op, (x, dims, keepdim), {}), x.parts)


@Doubled.rule(aten.sub.Tensor)
def sub_without_alpha(layer, op, x, y, **kwargs):
    assert kwargs == {"alpha": 2}
    return layer.tensor(layer.send_down(op, (x, y), {}), layer.send_down(op, (x, y), kwargs))


def test_send_down_calls_what_it_gets():
    """It is quicker for the arguments that the rule got; changed ones are seen."""
    x = torch.tensor([[1.0, 2.0], [3.0, 5.0]])
    with Doubled() as layer:
        total = layer.tensor(x).sum(0)
        difference = torch.sub(layer.tensor(x), 1.0, alpha=2)
        assert torch.equal(total.value, x.sum(-1))
        assert torch.equal(difference.value, x - 1)
        assert torch.equal(difference.parts, x - 2)


def test_a_rule_that_is_replaced_is_no_longer_called():
    class Named(tl.Layer):
        """parts are a name."""

    def register(name):
        @Named.rule(aten.exp)
        def rule(layer, op, x):
            return layer.tensor(x.value, name)

    for name in ("first", "second"):
        register(name)
        with Named() as layer:
            assert layer.tensor(torch.ones(2)).exp().parts == name


def test_custom_operator_runs_its_function_inside():
    @torch.library.custom_op("torchlayers_test_layer::square", mutates_args=())
    def square(x: torch.Tensor) -> torch.Tensor:
        return x * x

    same(bounds(square)(LOWER, UPPER), bounds(squared)(LOWER, UPPER))


class TestLocation:
    def test_line_of_the_operator_and_not_of_process(self):
        class Lines(tl.Layer):
            def __init__(self):
                self.lines = []

            def process(self, op, args, kwargs):
                self.lines.append(self.location())
                return super().process(op, args, kwargs)

        with Lines() as layer:
            torch.ones(2)
        assert "`torch.ones(2)`" in layer.lines[0]

    def test_type_error_in_a_rule_names_the_rule(self):
        class Own(Interval):
            pass

        Own.rule(aten.add.Tensor)(lambda layer, op, x: x)
        with pytest.raises(tl.errors.RuleError, match=r"the rule for aten\.add\.Tensor raised"):
            Own()(lambda x: x + x)(LOWER, UPPER)


def written_at_largest(x):
    y = x.clone()
    y[x.argmax()] = x[x.argmin()]
    return y * x


@pytest.mark.parametrize("transform", [tl.functionalize, tl.laplacian])
def test_an_index_that_differs_between_samples(transform):
    f = written_at_largest
    found = tl.vmap(transform(f))(torch.stack([LOWER, UPPER]))
    torch.testing.assert_close(found, torch.stack([transform(f)(LOWER), transform(f)(UPPER)]))
