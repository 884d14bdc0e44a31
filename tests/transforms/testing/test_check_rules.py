"""torchlayers.testing.check_rules: passes on right rules, and fails on planted faults."""

import re
import subprocess
import sys

import pytest
import torch

import torchlayers as tl
from tests.transforms.testing.layers import (
    Derivatives,
    Dual,
    Interval,
    Laplacian,
    aten,
    bounds_hold,
    derivative,
    laplacian,
    random_bounds,
    random_derivatives,
    random_tangent,
    tangent,
    with_rule,
)
from torchlayers.testing import RuleReport, check_rule, check_rules
from torchlayers.transforms.testing.operator_calls import VARIANTS, Call
from torchlayers.transforms.testing.rule_check import NESTS

X = torch.ones(3, dtype=torch.float64)
# Operators that Dual has rules for, and whose rules call no others.
CLOSED = [aten.sin, aten.cos, aten.neg, aten.mul.Tensor, aten.add.Tensor]


def check(layer, *ops, **options):
    if issubclass(layer, Interval):
        given = {"agrees": bounds_hold, "parts": random_bounds}
    else:
        given = {"meaning": derivative, "parts": random_tangent}
    return check_rules(layer, **given, ops=ops or None, **options)


def failures_of(layer, *ops, **options):
    """The table of a check that fails, as rows of cells by nest and sample."""
    with pytest.raises(AssertionError) as raised:
        check(layer, *ops, **options)
    assert tl.current_stack() == ()
    return str(raised.value)


def rows(message):
    return [re.split(r"\s{2,}", line) for line in message.splitlines() if line.startswith("aten.")]


def test_right_rules_pass_in_all_nests():
    report = check(Dual, *CLOSED)
    assert isinstance(report, RuleReport)
    assert report.checked.keys() == {
        "aten.add.Tensor",
        "aten.cos.default",
        "aten.mul.Tensor",
        "aten.neg.default",
        "aten.sin.default",
    }
    # More than samples: subsets of arguments, variants and nests.
    assert min(report.checked.values()) >= len(NESTS) + len(VARIANTS)
    assert not report.without_sample and not report.failures
    assert re.fullmatch(r"5 operators in \d+ comparisons: all agree", repr(report))


def test_operators_with_several_results_pass():
    nests = [nest for nest in NESTS if nest != "itself"]  # Dual has no rule for gather
    check(Dual, aten.max.dim, aten.sum.dim_IntList, nests=nests)


def test_right_bounds_pass_in_all_nests():
    report = check(Interval)
    assert len(report.checked) == 3


LAPLACIAN = {
    "parts": random_derivatives,
    "pack": lambda tree: Derivatives(*tree),
    "unpack": lambda parts: (parts.rows, parts.laplacian),
    # Laplacian has no rules for the operators that its own rules call.
    "nests": ["vmap", "jvp", "grad", "compile"],
}


def test_operators_may_return_no_results():
    class Linear(Dual):
        pass

    @Linear.rule(aten.unbind.int)
    def unbind(layer, op, x, dim=0):
        pairs = zip(x.value.unbind(dim), x.parts.unbind(dim), strict=True)
        return tuple(layer.tensor(value, parts) for value, parts in pairs)

    samples = {aten.unbind.int: [(torch.ones(2, 3), 0), (torch.ones(0, 3), 0)]}
    report = check(Linear, aten.unbind.int, samples=samples, nests=[], variants=["empty"])
    assert report.checked == {"aten.unbind.int": 4}


def test_parts_that_are_no_pytree_are_packed():
    report = check_rules(Laplacian, laplacian, **LAPLACIAN)
    assert report.checked.keys() == {"aten.mul.Tensor", "aten.sin.default"}


def test_wrong_second_derivative_of_a_laplacian_fails():
    @with_rule(Laplacian, aten.sin)
    def wrong(layer, op, x):
        rows = x.value.cos() * x.parts.rows
        return layer.tensor(x.value.sin(), Derivatives(rows, x.value.cos() * x.parts.laplacian))

    with pytest.raises(AssertionError) as raised:
        check_rule(wrong, aten.sin, laplacian, **LAPLACIAN)
    found = rows(str(raised.value))
    assert all(expected.startswith("parts[1]") for *_, expected, _ in found)


def test_an_instance_with_arguments_is_copied():
    class Scaled(Dual):
        def __init__(self, scale):
            self.scale = scale

    @Scaled.rule(aten.neg)
    def neg(layer, op, x):
        return layer.tensor(-x.value, -x.parts * layer.scale)

    def scaled(f, values, tangents):
        return derivative(f, values, tangents) * 2

    check_rule(Scaled(2), aten.neg, scaled, parts=random_tangent, nests=["vmap"])
    with pytest.raises(AssertionError, match=r"aten\.neg\.default"):
        check_rule(Scaled(3), aten.neg, scaled, parts=random_tangent, nests=[])


def test_rule_wrong_by_a_factor_fails_with_expected_and_got():
    @with_rule(Dual, aten.neg)
    def wrong(layer, op, x):
        return layer.tensor(-x.value, -2 * x.parts)

    message = failures_of(wrong, aten.neg)
    assert message.startswith("torchlayers: check_rules: the rules of Dual:\n")
    operator, sample, nest, expected, got = rows(message)[0]
    assert (operator, nest) == ("aten.neg.default", "alone")
    assert re.fullmatch(r"#0: \(float64\[\d+, \d+\]\)", sample)
    number = float(expected.split(": ")[1])
    assert re.match(r"parts at \(\d+, \d+\): ", expected)
    assert float(got) == pytest.approx(2 * number, rel=1e-4)


def test_rule_with_a_wrong_value_fails():
    @with_rule(Dual, aten.neg)
    def wrong(layer, op, x):
        return layer.tensor(x.value, -x.parts)

    assert rows(failures_of(wrong, aten.neg))[0][3].startswith("value at ")
    check(wrong, aten.neg, compare_values=False, nests=["vmap", "jvp", "grad", "compile"])


def test_rule_that_ignores_alpha_fails_where_there_is_one():
    @with_rule(Dual, aten.add.Tensor)
    def wrong(layer, op, x, y, *, alpha=1):
        return layer.tensor(torch.add(x.value, y.value, alpha=alpha), tangent(x) + tangent(y))

    found = [sample for _, sample, *_ in rows(failures_of(wrong, aten.add.Tensor))]
    assert found and not any("alpha=1)" in sample for sample in found)


def test_rule_wrong_for_constants_fails():
    @with_rule(Dual, aten.mul.Tensor)
    def wrong(layer, op, x, y):
        return layer.tensor(x.value * y.value, x.parts * y.value + x.value * y.parts)

    found = rows(failures_of(wrong, aten.mul.Tensor))
    assert found[0][1].startswith("#0, tensor 0 alone: (float64[")
    assert found[0][3] == "no error" and re.match(r"(Type|Rule)Error: ", found[0][4])
    assert found[1][1].startswith("#0, tensor 1 alone: ")


def test_rule_wrong_for_non_contiguous_tensors_fails():
    @with_rule(Dual, aten.neg)
    def wrong(layer, op, x):
        parts = torch.as_strided(x.parts, x.parts.shape, torch.empty(x.parts.shape).stride())
        return layer.tensor(-x.value, -parts)

    found = rows(failures_of(wrong, aten.neg, nests=[]))
    assert found and all("non-contiguous" in sample for _, sample, *_ in found)


@pytest.mark.parametrize(
    ("variant", "is_wrong"),
    [
        ("zeros", lambda x: x == 0),
        ("infinities", torch.isinf),
        ("nan", torch.isnan),
        ("ties", lambda x: (x == x.flatten()[:1].sum()) & (x == 0.5)),
    ],
)
def test_rule_wrong_at_special_values_fails(variant, is_wrong):
    @with_rule(Dual, aten.neg)
    def wrong(layer, op, x):
        return layer.tensor(-x.value, torch.where(is_wrong(x.value), 7.0, -x.parts))

    found = rows(failures_of(wrong, aten.neg, nests=[]))
    assert found and all(f", {variant}" in sample for _, sample, *_ in found)


@pytest.mark.parametrize(
    ("variant", "is_wrong"),
    [("empty", lambda x: x.numel() == 0), ("0-dim", lambda x: x.dim() == 0)],
)
def test_rule_wrong_for_special_shapes_fails(variant, is_wrong):
    @with_rule(Dual, aten.cos)
    def wrong(layer, op, x):
        if is_wrong(x.value):
            raise ValueError("no such shape")
        return layer.tensor(x.value.cos(), -x.parts * x.value.sin())

    found = rows(failures_of(wrong, aten.cos, nests=[], limit=1))
    assert found and all(f", {variant}" in sample for _, sample, *_ in found)
    assert all(got == "ValueError: no such shape" for *_, got in found)


def test_rule_wrong_under_vmap_fails():
    @with_rule(Dual, aten.neg)
    def wrong(layer, op, x):
        is_batched = torch._C._functorch.is_batchedtensor(x.parts)
        return layer.tensor(-x.value, x.parts if is_batched else -x.parts)

    found = rows(failures_of(wrong, aten.neg))
    assert {nest for _, _, nest, *_ in found} == {"vmap"}


def test_rule_that_cuts_derivatives_fails_in_jvp_and_grad():
    @with_rule(Dual, aten.sin)
    def wrong(layer, op, x):
        return layer.tensor(x.value.sin(), x.parts * x.value.detach().cos())

    found = rows(failures_of(wrong, aten.sin))
    assert {"jvp", "grad"} <= {nest for _, _, nest, *_ in found} <= {"jvp", "grad", "itself"}
    assert "the tangent of parts" in next(row for row in found if row[2] == "jvp")[3]


def test_rule_wrong_in_the_layer_itself_fails():
    @with_rule(Dual, aten.neg)
    def wrong(layer, op, x):
        is_inner = len(tl.current_stack()) > 0  # below this layer is another one
        return layer.tensor(-x.value, x.parts if is_inner else -x.parts)

    found = rows(failures_of(wrong, aten.neg, nests=["itself", "compile"]))
    assert {nest for _, _, nest, *_ in found} == {"itself"}


def test_rule_that_reads_data_fails_under_vmap():
    @with_rule(Dual, aten.neg)
    def wrong(layer, op, x):
        return layer.tensor(-x.value, -x.parts + 0 * x.value.sum().item())

    found = rows(failures_of(wrong, aten.neg, nests=["vmap", "compile"], variants=[]))
    assert {nest for _, _, nest, *_ in found} == {"vmap"}


def test_results_of_another_structure_fail():
    @with_rule(Dual, aten.neg)
    def wrong(layer, op, x):
        return layer.tensor(-x.value, (-x.parts,))

    found = rows(failures_of(wrong, aten.neg, variants=[], limit=1))
    assert found[0][3] == "parts: the structure of the meaning"
    assert found[0][4] == "Tensor and tuple of 1 differ"


def test_results_of_another_shape_or_dtype_fail():
    @with_rule(Dual, aten.neg)
    def wrong(layer, op, x):
        return layer.tensor(-x.value, -x.parts.float())

    assert rows(failures_of(wrong, aten.neg, variants=[], limit=1))[0][3].startswith(
        "parts: float64["
    )


def test_bounds_in_the_wrong_order_fail():
    @with_rule(Interval, aten.neg)
    def wrong(layer, op, x):
        lower, upper = x.parts
        return layer.tensor(-x.value, (-lower, -upper))

    found = rows(failures_of(wrong, aten.neg))[0]
    assert found[3:] == ["agreement", "a value outside its bounds at weight 0.0"]


def test_gradient_of_bounds_is_compared_with_finite_differences():
    @with_rule(Interval, aten.exp)
    def wrong(layer, op, x):
        lower, upper = x.parts
        return layer.tensor(x.value.exp(), (lower.exp(), upper.detach().exp()))

    found = rows(failures_of(wrong, aten.exp, variants=[], nests=["jvp", "grad", "vmap"]))
    assert {nest for _, _, nest, *_ in found} == {"jvp", "grad"}
    pushed, pulled = (next(row for row in found if row[2] == nest) for nest in ("jvp", "grad"))
    assert re.match(
        r"the tangent of parts\[1\] at \(\d+\), along a direction of input 2: ", pushed[3]
    )
    assert pulled[3].startswith("the cotangent of input 2, times a direction: ")


def test_a_predicate_may_raise():
    def refuses(f, values, parts, results):
        assert len(results) == 2, "one result"

    with pytest.raises(AssertionError, match=r"agreement +one result"):
        check_rule(Interval, aten.neg, agrees=refuses, parts=random_bounds, variants=[], limit=1)


def test_meaning_that_raises_is_a_failure():
    def raises(f, values, parts):
        raise NotImplementedError("not this one")

    with pytest.raises(AssertionError, match="the meaning raises NotImplementedError: not this"):
        check_rule(Dual, aten.neg, raises, parts=random_tangent, variants=[], limit=1)


def test_a_rule_without_a_sample_is_reported_unless_given_or_skipped():
    @torch.library.custom_op("torchlayers_testing::double", mutates_args=())
    def double(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    double.register_fake(torch.empty_like)

    class Linear(tl.Layer):
        pass

    @Linear.rule(double)
    def rule(layer, op, x):
        return layer.tensor(op(x.value), op(x.parts))

    def means(f, values, tangents):
        return f(*tangents)

    options = {"meaning": means, "parts": random_tangent, "variants": [], "nests": []}
    op = torch.ops.torchlayers_testing.double.default
    with pytest.raises(AssertionError, match=r"no sample: torchlayers_testing\.double\.default\n"):
        check_rules(Linear, **options)
    given = [(torch.ones(3),), (torch.ones(2, 2),)]
    assert check_rules(Linear, samples={op: given}, **options).checked == {str(op): 2}
    report = check_rules(Linear, skip={op: "has no kernel"}, **options)
    assert report.checked == {} and report.skipped == {str(op): "has no kernel"}
    assert "skipped: torchlayers_testing.double.default: has no kernel" in repr(report)


def test_samples_of_other_operators_than_those_asked_for_are_left_out():
    samples = {aten.neg.default: [(X,)], aten.cos.default: [(X,)]}
    assert check(Dual, aten.neg, samples=samples, nests=[]).checked.keys() == {"aten.neg.default"}


def test_autograd_functions_are_checked_on_given_samples():
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x**3

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_forward(*inputs)

        @staticmethod
        def jvp(ctx, t):
            return 3 * ctx.saved_tensors[0] ** 2 * t

    class Wrong(Dual):
        pass

    @Wrong.rule(Cube)
    def rule(layer, op, x):
        return layer.tensor(x.value**3, x.parts)

    samples = {Cube: [(torch.ones(3, dtype=torch.float64) * 2,)]}
    found = failures_of(Wrong, Cube, samples=samples, nests=[], variants=[])
    assert re.search(r"^Cube +given #0: \(float64\[3\]\) +alone", found, re.MULTILINE)


@pytest.mark.sweep
def test_an_operator_without_rule_is_decomposed_and_checked():
    report = check(
        Dual,
        aten.square,
        variants=[],
        nests=["vmap"],
        samples={aten.square.default: [(torch.ones(3, dtype=torch.float64),)]},
    )
    assert report.checked == {"aten.square.default": 2}


@pytest.mark.full
def test_operators_of_tags_are_found():
    class Tagged(tl.Layer):
        pass

    @Tagged.rule("view")
    def rule(layer, op, x, *args, **kwargs):
        return layer.tensor(op(x.value, *args, **kwargs), op(x.parts, *args, **kwargs))

    with pytest.raises(AssertionError) as raised:
        check_rules(Tagged, derivative, parts=random_tangent, variants=[], nests=[], limit=2)
    # Views of several results need another rule.
    assert "aten.split" in str(raised.value) or "aten.unbind" in str(raised.value)
    assert "aten.expand" not in str(raised.value)


@pytest.mark.sweep
def test_operators_that_gradients_call_are_found():
    class Backward(tl.Layer):
        pass

    @Backward.rule(aten.threshold_backward)
    def rule(layer, op, g, x, threshold):
        return layer.tensor(op(g.value, x.value, threshold), 1)

    with pytest.raises(AssertionError) as raised:
        check_rules(Backward, lambda *_: 2, parts=lambda *_: 0, variants=[], nests=[], limit=1)
    found = rows(str(raised.value))[0]
    assert found[0] == "aten.threshold_backward.default" and found[3:] == ["parts: 2", "1"]


@pytest.mark.parametrize("name", ["_softmax", "threshold_backward"])
def test_operators_that_trust_shapes_keep_them(name):
    given = {"threshold_backward": (X, X, 0.0), "_softmax": (X, 0, False)}
    call = Call(getattr(aten, name).default, given[name], {})
    assert not [*call.variants(["empty", "0-dim"])]
    assert len([*call.variants(["nan", "non-contiguous"])]) == 2
    assert len([*Call(aten.sin.default, (X,), {}).variants(["empty", "0-dim"])]) == 2


def test_the_table_shows_a_few_failures_of_each_operator():
    @with_rule(Dual, aten.neg, aten.cos)
    def wrong(layer, op, x):
        return layer.tensor(op(x.value), None)

    with pytest.raises(AssertionError) as raised:
        check(wrong, aten.neg, aten.cos)
    report, message = raised.value.report, str(raised.value)
    names = [row[0] for row in rows(message)]
    assert names == ["aten.cos.default"] * 3 + ["aten.neg.default"] * 3
    assert len(report.failures) > 6
    assert f"and {len(report.failures) - 6} more, in error.report.failures" in message


def test_samples_are_the_same_at_each_call_and_random_state_is_untouched():
    before = torch.get_rng_state()
    first, second = (check(Dual, aten.mul.Tensor, nests=[]) for _ in range(2))
    assert first == second
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, tl.errors.TransformError, "give either meaning or agrees"),
        (
            {"meaning": derivative, "agrees": bounds_hold},
            tl.errors.TransformError,
            "give either meaning or agrees",
        ),
        (
            {"meaning": derivative, "nests": ["pmap"]},
            tl.errors.TransformError,
            "nests has 'pmap'. There are vmap, jvp, grad, itself, compile.",
        ),
        (
            {"meaning": derivative, "variants": ["one"]},
            tl.errors.TransformError,
            "variants has 'one'. There are zeros,",
        ),
        ({"meaning": derivative, "ops": []}, tl.errors.RuleError, "ops is empty"),
    ],
)
def test_invalid_arguments_are_refused(options, error, message):
    with pytest.raises(error, match=re.escape(message)):
        check_rules(Dual, parts=random_tangent, **options)


def test_a_layer_without_rules_is_refused():
    class Empty(tl.Layer):
        pass

    with pytest.raises(tl.errors.RuleError, match="Empty has no rules: there is nothing to check"):
        check_rules(Empty, derivative, parts=random_tangent)


def test_op_db_is_not_imported_with_the_module():
    program = (
        "import sys, torchlayers; assert 'torchlayers.testing' not in sys.modules\n"
        "import torchlayers.testing\n"
        "assert not any('_internal.common_methods' in name for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
