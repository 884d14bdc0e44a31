"""Old-style Functions, whose forward takes ctx: third-party ones, and special cases."""

import inspect
import pickle

import entmax
import pytest
import torch
import torch.func
from entmax.activations import Entmax15Function, SparsemaxFunction
from entmax.root_finding import EntmaxBisectFunction
from pytorch_revgrad.functional import RevGrad

import torchlayers as tl
from tests.autograd_function.corpus import Square
from tests.fuzz.functions import made
from tests.support.calls import agree, ambient
from torchlayers.autograd_function.context import RESERVED
from torchlayers.errors import CallError

X = torch.tensor([[0.5, 1.0, 2.0], [-1.0, 0.1, 0.3]], dtype=torch.float64)


class Cube(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(ctx, x, power=3):
        ctx.power = power
        ctx.save_for_backward(x)
        return x**power

    @staticmethod
    def backward(ctx, g):
        return ctx.power * ctx.saved_tensors[0] ** (ctx.power - 1) * g, None


cube = Cube.apply  # before any transform has been entered


def test_a_function_defined_inside_a_transform():
    def func(x):
        class Local(Cube):
            pass

        return Local.apply(x).sum()

    torch.testing.assert_close(tl.vmap(tl.grad(func))(X), 3 * X**2)


def test_operands_by_keyword_are_refused():
    with pytest.raises(CallError, match=r"must be positional\. Pass power by position"):
        tl.grad(lambda x: Cube.apply(x, power=2).sum())(X)


def test_a_class_is_not_changed():
    before = {**vars(Entmax15Function)}
    tl.grad(lambda x: Entmax15Function.apply(x).sum())(X)
    now = vars(Entmax15Function)
    assert {name: now[name] for name in before} == before
    assert all(name.startswith(RESERVED) for name in now.keys() - before.keys())


def test_apply_taken_before_the_first_transform():
    torch.testing.assert_close(tl.vmap(tl.grad(lambda x: cube(x).sum()))(X), 3 * X**2)


def test_torch_func_still_rejects_it_after_our_transforms():
    tl.grad(lambda x: cube(x).sum())(X)
    with pytest.raises(RuntimeError, match="must override the setup_context"):
        torch.func.grad(lambda x: cube(x).sum())(X)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # by Dynamo
def test_of_a_function_that_torch_has_compiled():
    compiled = torch.compile(lambda x: Cube.apply(x).sum(), backend="eager", fullgraph=True)
    torch.testing.assert_close(tl.grad(compiled)(X), 3 * X**2)
    torch.testing.assert_close(tl.vmap(compiled)(X), (X**3).sum(1))
    torch.testing.assert_close(compiled(X), (X**3).sum())


MIXES = {
    "torch.func's grad in ours": lambda f: tl.vmap(torch.func.grad(f)),
    "our grad in torch.func's": lambda f: torch.func.vmap(tl.grad(f)),
}


@pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES)
def test_mixed_with_torch_func(mix):
    torch.testing.assert_close(mix(lambda x: cube(x).sum())(X), 3 * X**2)


def test_class_is_unchanged_outside_our_layers():
    tl.grad(lambda x: cube(x).sum())(X)
    assert list(inspect.signature(Cube.forward).parameters) == ["ctx", "x", "power"]
    assert Cube.setup_context is torch.autograd.Function.setup_context
    assert "apply" not in vars(Cube)
    assert pickle.loads(pickle.dumps(Cube)) is Cube
    x = X.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(Cube.apply(x, 2).sum(), x)
    torch.testing.assert_close(gradient, 2 * X)


def test_torchs_own_classes_are_left_alone():
    from torch.nn.utils._expanded_weights.linear_expanded_weights import LinearPerSampleGrad

    before = dict(vars(LinearPerSampleGrad))
    tl.grad(lambda x: cube(x).sum())(X)
    assert dict(vars(LinearPerSampleGrad)) == before
    for name in ("setup_context", "forward"):
        assert getattr(torch.autograd.Function, name).__module__ == "torch.autograd.function"
    apply = torch.autograd.Function.apply  # in torch 2.15 a builtin
    assert inspect.isbuiltin(apply) or apply.__module__ == "torch.autograd.function"


def test_a_subclass_of_new_style():
    class New(Cube):
        @staticmethod
        def forward(x, power=2):
            return x**power

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(inputs[0])
            ctx.power = inputs[1]

        @staticmethod
        def backward(ctx, g):
            return ctx.power * ctx.saved_tensors[0] * g, None

    torch.testing.assert_close(tl.grad(lambda x: New.apply(x).sum())(X), 2 * X)


def test_a_subclass_that_calls_the_old_forward():
    class Twice(Cube):
        @staticmethod
        def forward(ctx, x):
            return 2 * Cube.forward(ctx, x)

        @staticmethod
        def backward(ctx, g):
            return 2 * Cube.backward(ctx, g)[0]

    torch.testing.assert_close(tl.vmap(tl.grad(lambda x: Twice.apply(x).sum()))(X), 6 * X**2)


def test_intermediates_of_forward_are_constants():
    """As in plain autograd, which does not differentiate the forward's operators."""

    class Between(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(ctx, x):
            y = x * x
            ctx.save_for_backward(x, y)
            return y * x

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved_tensors
            return g * (2 * x * x + y)

    x = X.clone().requires_grad_()
    (first,) = torch.autograd.grad(Between.apply(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    f = tl.grad(lambda x: Between.apply(x).sum())
    torch.testing.assert_close(f(X), first.detach())
    torch.testing.assert_close(tl.grad(lambda x: f(x).sum())(X), second)
    torch.testing.assert_close(tl.vmap(tl.grad(lambda x: f(x).sum()))(X), second)


def test_generate_vmap_rule_may_be_set_later():
    """Users may set the flag on third-party classes."""

    class Late(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2

    with pytest.raises(RuntimeError, match=r"Late\.generate_vmap_rule = True"):
        tl.vmap(Late.apply)(X)
    Late.generate_vmap_rule = True
    torch.testing.assert_close(tl.vmap(Late.apply)(X), 2 * X)


# Third-party packages, as they are


def rows(f, x):
    """Returns the gradients of f(row) by plain autograd, row by row."""
    x = x.clone().requires_grad_()
    return torch.stack([torch.autograd.grad(f(row), x)[0][i] for i, row in enumerate(x)])


@pytest.fixture
def batchable(monkeypatch):
    for function in (Entmax15Function, EntmaxBisectFunction, RevGrad, SparsemaxFunction):
        monkeypatch.setattr(function, "generate_vmap_rule", True)


WEIGHTS = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
THIRD_PARTY = {
    "sparsemax": lambda x: entmax.sparsemax(x, dim=-1) @ WEIGHTS,
    "entmax15": lambda x: entmax.entmax15(x, dim=-1) @ WEIGHTS,
    "entmax_bisect": lambda x: entmax.entmax_bisect(x, alpha=1.3, dim=-1) @ WEIGHTS,
    "reversed gradient": lambda x: RevGrad.apply(x.sin(), torch.tensor(0.5)) @ WEIGHTS,
}
third_party = pytest.mark.parametrize("f", THIRD_PARTY.values(), ids=THIRD_PARTY)


@third_party
def test_third_party_functions_by_sample(f, batchable):
    before = ambient()
    torch.testing.assert_close(tl.vmap(tl.grad(f))(X), rows(f, X))
    assert ambient() == before


@third_party
def test_third_party_functions_batched_inside(f, batchable):
    gradient = tl.grad(lambda x: tl.vmap(f)(x).sum())(X)
    torch.testing.assert_close(gradient, rows(f, X))


@third_party
def test_third_party_functions_by_jacobian(f, batchable):
    torch.testing.assert_close(tl.jacrev(f)(X[0]), rows(f, X)[0])


def test_new_style_agrees_with_torch_func():
    agree(lambda tf: tf.vmap(tf.grad(lambda x: Square.apply(x).sum()))(X))


@pytest.mark.parametrize("of", ["each sample", "what is not batched"])
def test_a_vmap_staticmethod_inside_a_derivative(of):
    exp = made("OldWithVmap").apply

    def total(x):
        return tl.vmap(lambda sample: exp(sample if of == "each sample" else x).sum())(x)

    count = 1 if of == "each sample" else len(X)
    torch.testing.assert_close(tl.grad(lambda x: total(x).sum())(X), count * X.exp())
    tangent = tl.jvp(lambda x: total(x).sum(), (X,), (torch.ones_like(X),))[1]
    torch.testing.assert_close(tangent, count * X.exp().sum())
