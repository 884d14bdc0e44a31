"""torchlayers.coverage: what it says about a program, compared with what then happens."""

import textwrap
import warnings

import pytest
import torch
import torch.nn.functional as F

import torchlayers as tl
from tests.support.traced_steps import traced_steps

X = torch.tensor([[0.3, 0.5], [0.7, 0.9]])
EDGES = torch.tensor([0.2, 0.6])
CALLS = {
    "sin": torch.sin,
    "add": lambda x: x + x.T,
    "matmul": lambda x: x @ x,
    "linear": lambda x: F.linear(x, x),
    "layer_norm": lambda x: F.layer_norm(x, (2,)),
    "einsum": lambda x: torch.einsum("ab,bc->ac", x, x),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.tensor([0, 1])),
    "renorm": lambda x: x.renorm(2, 0, 1.0),
    "in place": lambda x: x.clone().lerp_(x, 0.5),
    "add_": lambda x: x.clone().add_(x),
    "foreach": lambda x: torch._foreach_mul([x, x], 2.0)[0],
    "sort": lambda x: x.sort()[0],
    "argmax": lambda x: x.argmax(0),
    "frexp": lambda x: torch.frexp(x)[0],
    "bucketize": lambda x: torch.bucketize(x, EDGES),
    "histc": lambda x: torch.histc(x, 3),
    "nonzero": torch.nonzero,
    "item": lambda x: x * x.sum().item(),
    "nextafter": lambda x: torch.nextafter(x, x + 1),
    "svd": lambda x: torch.linalg.svd(x)[1],
    "polygamma": lambda x: torch.polygamma(1, x),
    "igamma": lambda x: torch.igamma(EDGES, x),
    "unique": lambda x: torch.unique(x),
    "dropout": lambda x: F.dropout(x),
}


def under(mode, f):
    if mode == "vmap":
        return lambda: tl.vmap(f)(torch.stack([X, X]))
    if mode == "jvp":
        return lambda: tl.jvp(f, (X,), (torch.ones_like(X),))
    return lambda: (lambda result, pull: pull(torch.ones_like(result)))(*tl.vjp(f, X))


def outcome(call):
    """The calls of a trace, or None if it fails."""
    with tl.trace() as trace, warnings.catch_warnings(action="ignore"):
        try:
            call()
        except (RuntimeError, ValueError):
            return None
    return [*trace]


@pytest.mark.parametrize("mode", ["vmap", "jvp", "grad"])
@pytest.mark.parametrize("name", CALLS)
def test_what_is_said_is_what_happens(name, mode):
    f = CALLS[name]
    rows = tl.coverage(f, X).operators
    said = {getattr(row, mode) for row in rows}
    does_something = any(row.grad not in ("-", "") for row in rows)
    if mode != "vmap" and not does_something:
        return  # the result is a constant, which vjp may refuse to differentiate
    calls = outcome(under(mode, f))
    assert (calls is None) == bool({"fails", "draws"} & said)
    if calls is not None:
        assert any(call.iterations for call in calls) == ("loops" in said)
        layer = "vmap" if mode == "vmap" else mode
        done = {}
        for call in calls:
            if call.layer == layer and call.called_by_user is call:
                done.setdefault(call.name, set()).add(call.how)
        names = {"typed kernel": "typed kernel", "rule": "rule", "torch's kernel": "torch's"}
        for row in rows:
            hows = {names[how] for how in done.get(row.operator, ()) if how in names}
            if row.depth == 0 and hows and getattr(row, mode) in names.values():
                assert getattr(row, mode) in hows, row


def test_it_prints_as_tables():
    def f(x):
        y = F.layer_norm(x, (2,))
        return y.renorm(2, 0, 1.0) * torch.rand(2)

    line = f.__code__.co_firstlineno
    expected = f"""\
        f: 5 operators, 2 problems

        operator                   calls  vmap          jvp         grad        line
        aten::layer_norm           1      decomposed    decomposed  decomposed  test_coverage.py:{line + 1}
          aten::native_layer_norm  1      rule          rule        rule        test_coverage.py:{line + 1}
        aten::renorm               1      loops         rule        rule        test_coverage.py:{line + 2}
        aten::rand                 1      draws         -           -           test_coverage.py:{line + 2}
        aten::mul.Tensor           1      typed kernel  rule        rule        test_coverage.py:{line + 2}

        vmap: aten::renorm loops (test_coverage.py:{line + 2}): it has no batching rule, so it is called for one sample after the other
        vmap: aten::rand draws (test_coverage.py:{line + 2}): it draws random numbers: pass randomness= to vmap

        compile: inductor, 5 operators
        """  # noqa: E501
    printed = str(tl.coverage(f, X)).partition("         captured again")[0]
    assert printed.rstrip() == textwrap.dedent(expected).rstrip()


def test_parts_are_shown_where_a_transform_reaches_them():
    rows = tl.coverage(CALLS["einsum"], X).operators
    assert rows[0][:5] == ("aten::einsum", 1, "rule", "rule", "decomposed")
    assert {(row.vmap, row.jvp) for row in rows[1:]} == {("", "")}


def test_what_does_not_depend_on_the_arguments_is_no_problem():
    mask = torch.ones(2, 2)
    found = tl.coverage(lambda x: x * mask.renorm(2, 0, 1.0), X)
    assert [row.operator for row in found.operators] == ["aten::mul.Tensor"]
    assert found.problems == ()
    written = tl.coverage(lambda x: torch.zeros(2, 2).copy_(x).renorm(2, 0, 1.0), X)
    assert any("renorm loops" in problem for problem in written.problems)


def test_the_state_of_a_module_is_followed():
    module = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(2, 2))
    names = {row.operator for row in tl.coverage(module, X).operators}
    assert "aten::_weight_norm_interface" in names or "aten::_weight_norm" in names


def test_the_programs_own_transforms_are_reported():
    with warnings.catch_warnings(action="ignore"):
        found = tl.coverage(tl.vmap(lambda m: m.renorm(2, 0, 1.0)), torch.ones(3, 2, 2))
    (row,) = [row for row in found.layers if row.loops]
    assert row[:5] == ("aten::renorm", "vmap (level 1)", "torch's kernel", 1, 3)
    assert "vmap (level 1): aten::renorm has run 3 times for 1" in "\n".join(found.problems)


class Sine(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0].cos()


def test_an_autograd_function_is_an_operator():
    (row,) = tl.coverage(Sine.apply, X).operators
    assert (row.operator, row.vmap, row.jvp, row.grad) == ("Sine", "fails", "fails", "rule")
    assert outcome(under("vmap", Sine.apply)) is None
    assert outcome(under("jvp", Sine.apply)) is None


def test_an_operator_of_ones_own():
    @torch.library.custom_op("coverage_test::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    @twice.register_fake
    def _(x):
        return torch.empty_like(x)

    (row,) = tl.coverage(twice, X).operators
    assert (row.jvp, row.grad) == ("fails", "fails")
    tl.extend.jvp_rule(twice)(lambda primals, tangents: (twice(*primals), twice(*tangents)))
    assert tl.coverage(twice, X).operators[0].jvp == "rule"


def test_what_compile_would_do():
    scale = [2.0]
    found = tl.coverage(lambda x: (x * scale[0]).to_sparse(), X).compiled
    assert (found.how, found.operators) == ("replay", 2)
    assert "computes with sparse tensors" in found.why
    assert "(aten._to_sparse.default in test_coverage.py:" in found.why
    coo = tl.coverage(lambda values: values.to_dense(), X.to_sparse()).compiled
    assert "(the argument values)" in coo.why
    assert any("scale" in name for name in found.guards)
    found = tl.coverage(lambda x: x.sin() if x.sum() > 0 else x, X).compiled
    assert found.how == "in parts"
    assert "values are read here: test_coverage.py:" in found.why
    inside = lambda x: tl.cond(x.sum() > 0, lambda x: x * float(x.sum()), torch.neg, x)  # noqa: E731
    assert tl.coverage(inside, X).compiled.how == "in parts"
    assert tl.coverage(lambda x: x.to_mkldnn().to_dense(), X).compiled.how == "not compiled"
    assert tl.coverage(tl.compile(torch.sin), X).compiled.how == "inductor"


def test_what_compile_would_do_with_later_calls():
    def f(x, count, *, w):
        return x.sin() * count + w["a"]

    found = tl.coverage(f, X, 3, w={"a": X}).compiled
    assert found.differs == (
        "shape, strides, dtype or requires_grad of argument 0, argument w['a']",
        "the value of argument 1 (now 3)",
    )
    assert found.recorded == ""
    compiled = tl.compile(f, backend="replay")
    compiled(X, 3, w={"a": X})
    compiled(X, 4, w={"a": X})
    assert compiled.report().signatures[1].why == "argument 1 is 4, was 3"
    unhashable = tl.coverage(lambda x, key: x, X, {1}).compiled
    assert unhashable.how == "not compiled"
    with pytest.raises(tl.errors.TransformError) as caught:
        tl.compile(lambda x, key: x)(X, {1})
    assert unhashable.why in str(caught.value)


def test_what_compile_would_do_where_autograd_records_it():
    x = X.clone().requires_grad_()
    assert tl.coverage(lambda x: x.sin(), x).compiled.recorded == "compiled"
    assert "with gradients by autograd: compiled" in str(tl.coverage(torch.sin, x))

    def prints(x):
        tl.debug.print("{}", x)
        return x.sin()

    found = tl.coverage(prints, x).compiled
    assert found.recorded == "uncompiled, because torchlayers.debug or io_callback runs in it"
    with pytest.warns(UserWarning, match="runs uncompiled when autograd is enabled"):
        tl.compile(prints)(x)


def test_python_state_is_changed_once():
    calls = []

    def f(x):
        calls.append(len(calls))
        return x.sin()

    tl.coverage(f, X)
    assert calls == [0]


def test_an_error_of_the_program_says_so_and_leaves_no_layer():
    def f(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught:
        tl.coverage(f, X)
    assert "f itself raised this" in caught.value.__notes__[0]
    assert not tl.current_stack()
    with traced_steps() as steps:
        torch.sin(X)
    assert steps == []


def test_bad_uses_are_refused():
    with pytest.raises(tl.errors.TransformError, match="must be a function, but is of type int"):
        tl.coverage(3)
    with pytest.raises(tl.errors.TransformError, match=r"vmap \(level 1\) is active"):
        tl.vmap(lambda x: tl.coverage(torch.sin, x))(X)
