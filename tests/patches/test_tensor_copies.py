"""copy, deepcopy, dataclasses.asdict, pickle and torch.save of tensors inside transforms."""

import copy
import dataclasses
import io
import pickle

import pytest
import torch
from torch import nn

import torchlayers as tl
from tests.support.calls import ambient
from torchlayers.errors import TransformError

X = torch.linspace(0.1, 1.0, 3, dtype=torch.float64)
XS = torch.stack([X, 2 * X])
ONES = torch.ones_like(X)


@dataclasses.dataclass
class Beam:
    mu: torch.Tensor


COPIES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "deepcopy of a list": lambda x: copy.deepcopy([x, x])[1],
    "copy of a list": lambda x: copy.copy([x])[0],
    "deepcopy of an object": lambda x: copy.deepcopy(Beam(x)).mu,
    "asdict": lambda x: dataclasses.asdict(Beam(x))["mu"],
    "astuple": lambda x: dataclasses.astuple(Beam(x))[0],
}

NESTS = {
    "grad": lambda f: tl.grad(lambda x: f(x).sin().sum())(X),
    "jvp": lambda f: tl.jvp(lambda x: f(x).sin(), (X,), (ONES,)),
    "vmap": lambda f: tl.vmap(f)(XS),
    "functionalize": lambda f: tl.functionalize(f)(X),
    "jacrev": lambda f: tl.jacrev(f)(X),
    "hessian": lambda f: tl.hessian(lambda x: f(x).sin().sum())(X),
    "linearize": lambda f: tl.linearize(f, X)[1](ONES),
    "vmap of grad": lambda f: tl.vmap(tl.grad(lambda x: f(x).sin().sum()))(XS),
    "grad of vmap": lambda f: tl.grad(lambda xs: tl.vmap(f)(xs).sin().sum())(XS),
    "grad of grad": lambda f: tl.grad(lambda x: tl.grad(lambda x: f(x).sin().sum())(x).sum())(X),
    "compiled by replay": lambda f: tl.compile(
        tl.grad(lambda x: f(x).sin().sum()), backend="replay"
    )(X),
}
in_each_nest = pytest.mark.parametrize("nest", NESTS)


@in_each_nest
@pytest.mark.parametrize("kind", COPIES)
def test_a_copy_is_of_the_same_levels(kind, nest):
    before = ambient()
    made = COPIES[kind]
    torch.testing.assert_close(NESTS[nest](lambda x: made(x * 2)), NESTS[nest](lambda x: x * 2))
    torch.testing.assert_close(NESTS[nest](made), NESTS[nest](lambda x: x))
    assert ambient() == before


@in_each_nest
def test_a_deep_copy_has_memory_of_its_own_and_a_shallow_one_has_not(nest):
    def f(x):
        y = x * 1
        shallow, deep = copy.copy(y), copy.deepcopy(y)
        y += 1
        return shallow + deep

    torch.testing.assert_close(NESTS[nest](f), NESTS[nest](lambda x: 2 * x + 1))


def test_a_tensor_in_several_places_is_copied_once():
    def f(x):
        one, other = copy.deepcopy([x, x])
        assert one is other
        assert one is not x
        return one.sum()

    torch.testing.assert_close(tl.grad(f)(X), ONES)


def test_attributes_of_a_tensor_are_copied():
    def f(x):
        x.tags = ["a"]
        assert copy.copy(x).tags is x.tags
        assert copy.deepcopy(x).tags == ["a"]
        assert copy.deepcopy(x).tags is not x.tags
        return x.sum()

    tl.grad(f)(X)
    tl.vmap(f)(XS)


def test_parameter_created_inside_stays_a_parameter():
    def f(x):
        parameter = nn.Parameter(torch.ones(3, dtype=torch.float64), requires_grad=False)
        for made in (copy.copy(parameter), copy.deepcopy(parameter)):
            assert isinstance(made, nn.Parameter)
            assert not made.requires_grad
            x = x * (made + 1)
        return x.sum()

    torch.testing.assert_close(tl.grad(f)(X), 4 * ONES)
    torch.testing.assert_close(tl.vmap(f)(XS), 4 * XS.sum(-1))


def test_captured_module_is_copied_as_in_plain_code():
    linear = nn.Linear(3, 1, dtype=torch.float64)
    gradient = tl.grad(lambda x: copy.deepcopy(linear)(x).sum())(X)
    torch.testing.assert_close(gradient, linear.weight.detach()[0])


def test_outside_of_transforms_torch_decides():
    leaf = X.clone().requires_grad_()
    assert copy.deepcopy(leaf).requires_grad
    with pytest.raises(RuntimeError, match="deepcopy protocol"):
        copy.deepcopy(leaf * 2)
    assert torch.equal(pickle.loads(pickle.dumps(X)), X)


SAVES = {
    "torch.save": lambda x: torch.save(x, io.BytesIO()),
    "torch.save of a dict": lambda x: torch.save({"x": [x]}, io.BytesIO()),
    "pickle": pickle.dumps,
}


@pytest.mark.parametrize("nest", ["grad", "jvp", "vmap", "vmap of grad"])
@pytest.mark.parametrize("kind", SAVES)
def test_operations_that_need_memory_are_rejected_clearly(kind, nest):
    before = ambient()
    with pytest.raises(TransformError, match=r"^torchlayers: .*In test_tensor_copies\.py:\d+"):
        NESTS[nest](lambda x: (SAVES[kind](x), x)[1])
    assert ambient() == before
