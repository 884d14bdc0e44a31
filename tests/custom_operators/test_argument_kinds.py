"""Custom operators with arguments and results of every kind, at every layer.

Each gives the right result or an error that names the operator: see the table in
docs/custom-operators.md.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import torchlayers as tl
from tests.support.argument_kinds import (
    CLASS,
    DATA,
    HIDDEN,
    SEEN,
    WRITTEN,
    documented_kinds,
    kinds_of_torch,
    tensors_in,
)

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")

LIBRARY = torch.library.Library("torchlayers_kinds", "FRAGMENT")
X = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
ONES = torch.ones_like(X)


def define(
    signature: str, kernel: Callable[..., Any], key: str = "CompositeExplicitAutograd"
) -> Any:
    """Defines an operator that lives as long as the process."""
    name = f"op{define.count}"
    define.count += 1
    LIBRARY.define(name + signature)
    LIBRARY.impl(name, kernel, key)
    return getattr(torch.ops.torchlayers_kinds, name).default


define.count = 0

# What each transform of an elementwise function of x gives at X, from its value f(X) and its
# derivative, slope.
TRANSFORMS = {
    "grad": lambda f, value, slope: (tl.grad(lambda x: f(x).sum())(X), slope),
    "jvp": lambda f, value, slope: (tl.jvp(f, (X,), (2 * ONES,))[1], 2 * slope),
    "vmap": lambda f, value, slope: (tl.vmap(f)(X), value),
    "functionalize": lambda f, value, slope: (tl.functionalize(f)(X), value),
    "vmap(grad)": lambda f, value, slope: (tl.vmap(tl.grad(f))(X), slope),
    "grad(vmap)": lambda f, value, slope: (tl.grad(lambda x: tl.vmap(f)(x).sum())(X), slope),
    "jvp(vmap)": lambda f, value, slope: (tl.jvp(tl.vmap(f), (X,), (ONES,))[1], slope),
    "vmap(jvp)": lambda f, value, slope: (
        tl.vmap(lambda x: tl.jvp(f, (x,), (torch.ones_like(x),))[1])(X),
        slope,
    ),
    "vjp(functionalize)": lambda f, value, slope: (
        tl.vjp(tl.functionalize(f), X)[1](ONES)[0],
        slope,
    ),
}
transforms = pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
REVERSE = [TRANSFORMS[name] for name in TRANSFORMS if "grad" in name or "vjp" in name]
FORWARD = [TRANSFORMS[name] for name in TRANSFORMS if "jvp" in name]


def check(transform, f, value, slope):
    found, expected = transform(f, value, slope)
    torch.testing.assert_close(found, expected)
    assert tl.current_stack() == ()


# Data arguments


def doubling_with(kind: str) -> Any:
    """op(x, k) = 2 x, which records the k it received; it has rules for everything."""
    got = []
    op = define(
        f"(Tensor x, {CLASS if kind == 'class' else kind} k) -> Tensor",
        lambda x, k: (got.append(k), 2 * x)[1],
    )
    torch.library.register_autograd(
        op, lambda ctx, g: (2 * g, None), setup_context=lambda ctx, inputs, output: None
    )
    torch.library.register_vmap(op, lambda info, in_dims, x, k: (op(x, k), in_dims[0]))

    @tl.extend.jvp_rule(op)
    def rule(primals, tangents):
        return op(*primals), None if tangents[0] is None else 2 * tangents[0]

    op.got = got
    return op


@pytest.fixture(scope="module")
def doubling():
    made = {}
    return lambda kind: made.setdefault(kind, made.get(kind) or doubling_with(kind))


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.UntypedStorage):
        return a.data_ptr() == b.data_ptr()
    if isinstance(a, torch.Generator):
        return a.get_state().equal(b.get_state())
    return type(a) is torch.ScriptObject or a == b


@transforms
@pytest.mark.parametrize("kind", DATA)
def test_data_arguments_are_passed_on_unchanged(doubling, kind, transform):
    op = doubling(kind)
    op.got.clear()
    check(transform, lambda x: op(x, DATA[kind]), 2 * X, 2 * ONES)
    assert op.got
    assert all(same(got, DATA[kind]) for got in op.got)


# Tensors that the dispatcher sees


def sum_of_squares(*values: Any) -> Tensor:
    return sum((t * t for value in values for t in tensors_in(value)), torch.zeros(()))


def squares_with_rules(kind: str) -> Any:
    op = define(f"({kind} k) -> Tensor", sum_of_squares)
    is_list = "[]" in kind

    def keep(ctx, inputs, output):
        ctx.places = [t is not None for t in inputs[0]] if is_list else None
        ctx.save_for_backward(*tensors_in(inputs[0]))

    def backward(ctx, g):
        gradients = [2 * t * g for t in ctx.saved_tensors]
        if not is_list:
            return gradients[0]
        return [gradients.pop(0) if there else None for there in ctx.places]

    torch.library.register_autograd(op, backward, setup_context=keep)

    @torch.library.register_vmap(op)
    def batched(info, in_dims, k):
        moved = [t.movedim(d, 0) for t, d in zip(tensors_in(k), dims_of(in_dims[0]), strict=True)]
        return op(moved if is_list else moved[0]), 0

    @tl.extend.jvp_rule(op)
    def rule(primals, tangents):
        pairs = zip(tensors_in(primals[0]), tensors_in(tangents[0]), strict=True)
        return op(*primals), sum(2 * t * d for t, d in pairs)

    return op


def dims_of(in_dims: Any) -> list[int]:
    given = in_dims if isinstance(in_dims, list | tuple) else [in_dims]
    return [dim for dim in given if dim is not None]


def expected_squares(pack) -> tuple[Tensor, Tensor]:
    """The value and derivative of the sum of squares of the tensors in pack(X)."""
    factors = [t.item() for t in tensors_in(pack(torch.tensor(1.0)))]
    total = sum(factor**2 for factor in factors)
    return total * X**2, 2 * total * X


@pytest.fixture(scope="module")
def squares():
    made = {}
    return lambda kind: made.setdefault(kind, made.get(kind) or squares_with_rules(kind))


@transforms
@pytest.mark.parametrize("kind", SEEN)
def test_visible_tensors_are_transformed(squares, kind, transform):
    op, pack = squares(kind), SEEN[kind]
    f = lambda x: op(pack(x))  # noqa: E731
    is_told_none = transform in REVERSE and transform is not TRANSFORMS["grad(vmap)"]
    if kind == "Tensor?[]" and is_told_none:
        # torch.library's autograd does not look inside a list that holds None.
        with pytest.raises(NotImplementedError, match="no derivative is registered for these"):
            transform(f, None, X)
        return
    check(transform, f, *expected_squares(pack))


# NOTE [Operators without a derivative]


@transforms
@pytest.mark.parametrize("kind", SEEN)
def test_composite_kernel_without_derivative_is_decomposed(kind, transform):
    op, pack = define(f"({kind} k) -> Tensor", sum_of_squares), SEEN[kind]
    check(transform, lambda x: op(pack(x)), *expected_squares(pack))


@pytest.mark.parametrize("transform", ["grad", "jvp", "vjp(functionalize)"])
@pytest.mark.parametrize("kind", SEEN)
def test_backend_kernel_without_derivative_is_rejected_by_name(kind, transform):
    op, pack = define(f"({kind} k) -> Tensor", sum_of_squares, "CPU"), SEEN[kind]
    message = r"torchlayers: .* can't differentiate torchlayers_kinds::op\d+: no derivative"
    with pytest.raises(NotImplementedError, match=message):
        TRANSFORMS[transform](lambda x: op(pack(x)), None, X)


@pytest.mark.parametrize("transform", ["grad", "jvp"])
def test_backend_kernel_with_constant_inputs_or_integer_results_is_accepted(transform):
    doubled = define("(Tensor x) -> Tensor", lambda x: x * 2, "CPU")
    order = define("(Tensor x) -> Tensor", lambda x: x.argsort(), "CPU")
    check(TRANSFORMS[transform], lambda x: x * doubled(X), None, 2 * X)
    check(TRANSFORMS[transform], lambda x: x * doubled(x.detach()), None, 2 * X)
    check(TRANSFORMS[transform], lambda x: x * order(x), None, torch.arange(3).double())


# Tensors that the dispatcher does not see


@pytest.fixture(scope="module")
def hidden():
    made = {}

    def find(signature, key="CompositeExplicitAutograd"):
        if (signature, key) not in made:
            made[signature, key] = define(signature, sum_of_squares, key)
        return made[signature, key]

    return find


@transforms
@pytest.mark.parametrize("kind", HIDDEN)
def test_hidden_tensors_alone_are_transformed(hidden, kind, transform):
    op, pack = hidden(f"({kind} k) -> Tensor"), HIDDEN[kind]
    check(transform, lambda x: op(pack(x)), *expected_squares(pack))


@transforms
@pytest.mark.parametrize("kind", HIDDEN)
def test_composite_operator_with_hidden_and_visible_tensors_is_decomposed(hidden, kind, transform):
    op, pack = hidden(f"(Tensor y, {kind} k) -> Tensor", "CompositeImplicitAutograd"), HIDDEN[kind]
    value, slope = expected_squares(pack)
    check(transform, lambda x: op(x, pack(x)), value + X**2, slope + 2 * X)


@pytest.mark.parametrize("transform", ["grad", "jvp", "vmap", "functionalize"])
@pytest.mark.parametrize("kind", HIDDEN)
def test_hidden_and_visible_tensors_together_are_rejected_by_name(hidden, kind, transform):
    op, pack = hidden(f"(Tensor y, {kind} k) -> Tensor"), HIDDEN[kind]
    message = rf"torchlayers: {transform} \(level 1\) can't run torchlayers_kinds::op\d+: .* 'k' "
    with pytest.raises(NotImplementedError, match=message):
        TRANSFORMS[transform](lambda x: op(x, pack(x)), None, X)
    assert tl.current_stack() == ()


@transforms
@pytest.mark.parametrize("kind", HIDDEN)
def test_constant_hidden_tensors_are_accepted(kind, transform):
    op = define(f"(Tensor y, {kind} k) -> Tensor", lambda y, k: y * sum_of_squares(k))
    constants = HIDDEN[kind](torch.tensor(3.0))
    factor = sum_of_squares(constants).double()
    no_gradient = [None] * len(constants) if kind == "Tensor[]?" else None
    torch.library.register_autograd(
        op,
        lambda ctx, g: (g * factor, no_gradient),
        setup_context=lambda ctx, inputs, output: None,
    )
    f = lambda x: op(x, constants)  # noqa: E731
    # torch's loop over the samples does not accept lists, so vmap decomposes the kernel.
    is_looked_into = transform is TRANSFORMS["jvp(vmap)"] and kind in ("Tensor[]?", "Tensor?[]?")
    if transform in FORWARD and not is_looked_into:
        with pytest.raises(RuntimeError, match="is registered for reverse mode only"):
            transform(f, None, X)
        return
    check(transform, f, factor * X, factor * ONES)


def test_hidden_tensors_reach_a_registered_batching_rule():
    op = define("(Dict(str, Tensor) d) -> Tensor", sum_of_squares)
    seen = []

    @torch.library.register_vmap(op)
    def batched(info, in_dims, d):
        seen.append((info.batch_size, in_dims[0]["a"], d["a"].shape))
        return op({"a": d["a"]}), in_dims[0]["a"]

    torch.testing.assert_close(tl.vmap(lambda x: op({"a": x}))(X), X**2)
    assert seen == [(3, 0, (3,))]


@pytest.mark.parametrize("register", [tl.extend.jvp_rule, tl.extend.vjp_rule])
@pytest.mark.parametrize(
    "signature", ["(Dict(str, Tensor) d) -> Tensor", "(Tensor x) -> Dict(str, Tensor)"]
)
def test_rule_for_an_operator_with_hidden_tensors_is_rejected(register, signature):
    with pytest.raises(tl.errors.RuleError, match="does not look"):
        register(define(signature, sum_of_squares))


# Arguments that are written to


def double_in_place(*values: Any) -> None:
    for tensor in tensors_in(list(values)):
        tensor.mul_(2)


@transforms
@pytest.mark.parametrize("kind", WRITTEN)
def test_writes_of_a_composite_operator_are_transformed(kind, transform):
    op = define(f"({kind} k) -> ()", double_in_place, "CompositeImplicitAutograd")

    def f(x):
        y = x * 1
        op(WRITTEN[kind](y))
        return y * y

    check(transform, f, 4 * X**2, 8 * X)


@pytest.mark.parametrize("kind", WRITTEN)
@pytest.mark.parametrize("key", ["CompositeImplicitAutograd", "CompositeExplicitAutograd"])
@pytest.mark.parametrize("transform", ["grad", "jvp"])
def test_writes_to_a_captured_tensor_are_rejected(kind, key, transform):
    op = define(
        f"({kind} k, Tensor by) -> ()",
        lambda k, by: [t.mul_(by) for t in tensors_in(k)] and None,
        key,
    )
    captured = torch.ones_like(X)

    def f(x):
        op(WRITTEN[kind](captured), x)
        return captured * x

    with pytest.raises((RuntimeError, NotImplementedError), match=r"torchlayers: "):
        TRANSFORMS[transform](f, None, X)


def doubled_in_place_and_squared(op, kind):
    def f(x):
        y = x * 1
        op(WRITTEN[kind](y))
        return y * y

    return f


@pytest.mark.parametrize("kind", WRITTEN)
@pytest.mark.parametrize("transform", [name for name in TRANSFORMS if "functionalize" not in name])
def test_writes_of_a_composite_kernel_are_decomposed(kind, transform):
    op = define(f"({kind} k) -> ()", double_in_place)
    check(TRANSFORMS[transform], doubled_in_place_and_squared(op, kind), 4 * X**2, 8 * X)


@pytest.mark.parametrize("kind", [kind for kind in WRITTEN if "Dict" not in kind])
@pytest.mark.parametrize("transform", ["grad", "jvp", "vmap", "functionalize"])
def test_writes_of_a_backend_kernel_are_rejected_by_name(kind, transform):
    op = define(f"({kind} k) -> ()", double_in_place, "CPU")
    with pytest.raises((RuntimeError, NotImplementedError), match="torchlayers_kinds::op"):
        TRANSFORMS[transform](doubled_in_place_and_squared(op, kind), None, X)
    assert tl.current_stack() == ()


@pytest.mark.parametrize("kind", ["Tensor[]", "Tensor?[]"])
def test_list_arguments_of_a_backend_kernel_are_rejected_by_name_under_vmap(kind):
    op = define(f"({kind} k) -> Tensor", sum_of_squares, "CPU")
    message = r"vmap \(level 1\) can't run torchlayers_kinds::op\d+: .* torch.library.register_vmap"
    with pytest.raises(RuntimeError, match=message):
        tl.vmap(lambda x: op(SEEN[kind](x)))(X)


def test_writes_under_vmap_by_a_batching_rule():
    op = define("(Tensor(a!) x) -> ()", double_in_place)
    torch.library.register_vmap(op, lambda info, in_dims, x: (op(x), None))

    def f(x):
        y = x.clone()
        op(y)
        return y

    assert torch.equal(tl.vmap(f)(X), 2 * X)


# Results

RESULTS = {
    "Tensor[]": lambda x: [x * 1, x * 2],
    "Dict(str, Tensor)": lambda x: {"a": x * 1, "b": x * 2},
    "Tensor[][]": lambda x: [[x * 1], [x * 2]],
    "Any": lambda x: (x * 1, {"a": x * 2}),
}


@transforms
@pytest.mark.parametrize("kind", RESULTS)
def test_results_of_a_composite_operator_are_transformed(kind, transform):
    op = define(f"(Tensor x) -> {kind}", RESULTS[kind], "CompositeImplicitAutograd")
    check(transform, lambda x: sum(tensors_in(op(x))), 3 * X, 3 * ONES)


@pytest.mark.parametrize("transform", ["grad", "jvp"])
@pytest.mark.parametrize("kind", [kind for kind in RESULTS if kind != "Tensor[]"])
def test_derivatives_of_hidden_results_are_rejected_by_name(kind, transform):
    op = define(f"(Tensor x) -> {kind}", RESULTS[kind])
    message = r"can't differentiate torchlayers_kinds::op\d+: it returns tensors where autograd"
    with pytest.raises(NotImplementedError, match=message):
        TRANSFORMS[transform](lambda x: sum(tensors_in(op(x))), None, X)


@pytest.mark.parametrize("transform", ["grad", "jvp", "functionalize"])
@pytest.mark.parametrize("kind", RESULTS)
def test_results_of_constant_inputs_belong_to_the_level(kind, transform):
    op = define(f"(Tensor x) -> {kind}", RESULTS[kind])

    def f(x):
        return x * sum(tensors_in(op(torch.full_like(X, 2.0))))

    check(TRANSFORMS[transform], f, 6 * X, 6 * ONES)


# The table


def test_documented_kinds_cover_every_torch_operator():
    documented = documented_kinds("Arguments") | documented_kinds("Results")
    unknown = {kind: op for kind, op in kinds_of_torch().items() if kind not in documented}
    assert unknown == {}


def test_every_documented_argument_kind_is_tested():
    tested = {*DATA, *SEEN, *HIDDEN, *WRITTEN}
    nobody_passes = {"PyObject", "QScheme", "Stream", "class[]", "Tensor(a)", "Tensor(a!)[][]"}
    assert documented_kinds("Arguments") - tested == nobody_passes
    assert tested - documented_kinds("Arguments") == set()
