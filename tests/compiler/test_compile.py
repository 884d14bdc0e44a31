"""torchlayers.compile: the results of a call, and its side effects."""

import copy
import functools
import pickle

import pytest
import torch
from torch import nn

import torchlayers as tl
from tests.compiler.hidden_runs import counted
from tests.support.calls import assert_same, structures

replayed = functools.partial(tl.compile, backend="replay")


TRANSFORMS = {
    "grad": tl.grad(lambda x: x.sin().prod()),
    "hessian": tl.hessian(lambda x: x.sin().prod()),
    "jacfwd": tl.jacfwd(lambda x: x.sin().cumsum(0)),
    "jacrev": tl.jacrev(lambda x: x.sin().cumsum(0)),
    "vmap": tl.vmap(lambda x: x * torch.arange(3.0)),
    "vmap of hessian": lambda x: tl.vmap(tl.hessian(lambda x: x.sin().prod()))(x.outer(x)),
    "hessian of hessian": tl.hessian(tl.hessian(lambda x: x.sin().prod())),
    "vmap of jacfwd": lambda x: tl.vmap(tl.jacfwd(torch.sin))(x.outer(x)),
    "hvp": lambda x: tl.hvp(lambda x: x.sin().prod(), (x,), (x.cos(),)),
    "linearize": lambda x: tl.linearize(torch.sin, x)[1](x),
    "functionalize": tl.functionalize(lambda x: x.clone().mul_(2)),
    "torch.func": torch.func.hessian(lambda x: x.sin().prod()),
}


@pytest.mark.sweep(one_in=12)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_compiled_transforms_equal_eager_ones(name):
    x = torch.tensor([0.5, -1.0, 2.0])
    assert_same(replayed(TRANSFORMS[name])(x), TRANSFORMS[name](x), rounded=True)


def test_python_runs_once_per_signature():
    f = counted(lambda x: x + 1)
    compiled = replayed(f)
    for size in (2, 2, 300, 2, 300):
        torch.testing.assert_close(compiled(torch.ones(size)), torch.full((size,), 2.0))
    assert f.count == 2


@structures
def test_pytrees_as_arguments_and_results(pack):
    def swapped(given):
        x, *_, y = torch.utils._pytree.tree_leaves(given)
        return pack(y * 2, x + 1)

    given = pack(torch.ones(2), torch.zeros(3))
    assert_same(replayed(swapped)(given), swapped(given))


def test_keyword_arguments():
    compiled = replayed(lambda x, *, scale, shift=0.0: x * scale + shift)
    assert compiled(torch.ones(()), scale=torch.tensor(3.0)) == 3
    assert compiled(torch.ones(()), shift=1.0, scale=torch.tensor(3.0)) == 4


def test_results_that_are_not_tensors_are_returned_unchanged():
    marker = object()
    assert replayed(lambda x: (1, None, "a", marker, [2.5]))(torch.ones(2)) == (
        1,
        None,
        "a",
        marker,
        [2.5],
    )


def test_an_argument_that_is_returned_is_the_same_object():
    x = torch.ones(2)
    compiled = replayed(lambda x, y: (x, y + 1, {"x": x}))
    first, _, rest = compiled(x, torch.ones(2))
    assert first is x and rest["x"] is x


def test_a_result_that_is_returned_twice_is_one_object():
    first, second = replayed(lambda x: [x + 1] * 2)(torch.ones(2))
    assert first is second


def test_a_view_of_an_argument_shares_its_memory():
    x = torch.zeros(3)
    replayed(lambda x: x[1:])(x).fill_(1)
    assert x.tolist() == [0, 1, 1]


def test_the_same_tensor_given_twice_is_two_arguments():
    compiled = replayed(lambda x, y: x - y)
    x = torch.ones(2)
    assert compiled(x, x).tolist() == [0, 0]
    assert compiled(x, x * 3).tolist() == [-2, -2]


def test_a_module():
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    x = torch.ones(2, 3)
    torch.testing.assert_close(replayed(module)(x), module(x))


def test_compiled_module_has_the_modules_attributes():
    net = torch.nn.Linear(2, 3)
    compiled = replayed(net)
    assert compiled.weight is net.weight
    assert [*compiled.parameters()] == [*net.parameters()]
    assert compiled.state_dict().keys() == net.state_dict().keys()
    assert compiled.eval() is compiled
    assert not net.training
    with pytest.raises(AttributeError, match="nothing"):
        _ = compiled.nothing
    with pytest.raises(AttributeError, match="_nothing"):
        _ = compiled._nothing


def test_a_method():
    class Scale:
        def __init__(self, factor):
            self.factor = factor

        @tl.compile(backend="replay")
        def __call__(self, x):
            return x * self.factor

    two, three = Scale(2), Scale(3)
    assert two(torch.ones(())) == 2
    assert three(torch.ones(())) == 3


def test_compiled_function_keeps_name_and_docstring():
    def area(r):
        """Of a circle."""
        return torch.pi * r * r

    compiled = replayed(area)
    assert (compiled.__name__, compiled.__doc__) == ("area", "Of a circle.")
    assert repr(compiled) == "torchlayers.compile(area)"


def test_a_function_that_calls_itself():
    @tl.compile(backend="replay", static_argnums=1)
    def power(x, n):
        return x * power(x, n - 1) if n else torch.ones_like(x)

    assert power(torch.tensor(2.0), 5) == 32


# Writes


def test_argument_is_written_once_per_call():
    compiled = replayed(lambda x: x.add_(1))
    x = torch.zeros(2)
    assert compiled(x) is x
    compiled(x)
    assert x.tolist() == [2, 2]


def test_a_view_of_an_argument_is_written_to():
    def f(x):
        x[0].mul_(3)
        return x.sum()

    x = torch.ones(2, 2)
    assert replayed(f)(x) == 8
    assert x.tolist() == [[3, 3], [1, 1]]


def test_captured_tensor_is_written_once_per_call():
    seen = torch.zeros(())

    @tl.compile(backend="replay")
    def f(x):
        seen.add_(1)
        return x * seen

    assert [f(torch.ones(())).item() for _ in range(3)] == [1, 2, 3]
    assert seen == 3


def test_arguments_that_share_memory_are_written_to_in_order():
    def f(x, y):
        x.add_(1)
        z = y * 2
        x.add_(y)
        return z

    for shared in (lambda x: x, lambda x: x[:2], lambda x: x.view(3, 1)[:, 0]):
        x, other = torch.arange(3.0), torch.arange(3.0)
        compiled = replayed(f)
        compiled(torch.zeros(3)[: shared(x).numel()], torch.ones_like(shared(x)))
        torch.testing.assert_close(
            compiled(x[: shared(x).numel()], shared(x)),
            f(other[: shared(x).numel()], shared(other)),
        )
        torch.testing.assert_close(x, other)


@pytest.mark.parametrize("training", [True, False])
def test_running_statistics(training):
    module, other = nn.BatchNorm1d(3).train(training), nn.BatchNorm1d(3).train(training)
    compiled = replayed(module)
    for _ in range(3):
        x = torch.randn(5, 3)
        torch.testing.assert_close(compiled(x), other(x))
    torch.testing.assert_close(module.state_dict(), other.state_dict())


# Captured tensors


def test_captured_tensors_are_read_at_each_call():
    scale = torch.tensor(2.0)
    compiled = replayed(lambda x: x * scale)
    assert compiled(torch.ones(())) == 2
    scale.fill_(5)
    assert compiled(torch.ones(())) == 5


def test_a_captured_tensor_of_another_shape_is_a_new_signature():
    module = nn.Linear(2, 2, bias=False)
    compiled = replayed(module)
    compiled(torch.ones(2))
    module.weight.data = torch.ones(3, 2)
    assert compiled(torch.ones(2)).shape == (3,)
    assert compiled.report().signatures[-1].why == "captured tensor 0 has shape (3, 2), was (2, 2)"


def test_tensors_made_from_numbers_are_constants():
    def f(x):
        steps = torch.tensor([1.0, 2.0])
        steps.add_(1)
        return x * steps

    compiled = replayed(f)
    for _ in range(2):
        assert compiled(torch.ones(2)).tolist() == [2, 3]


def test_views_of_captured_tensors_in_inference_mode():
    weight = torch.arange(9.0).reshape(3, 3).requires_grad_()

    def f(x):
        return x @ weight.t() + weight[0]

    with torch.inference_mode():
        torch.testing.assert_close(replayed(f)(torch.ones(3)), f(torch.ones(3)))


def test_captured_inference_tensors_are_written_to():
    with torch.inference_mode():
        seen = torch.zeros(3)
        compiled = replayed(lambda x: (seen[:2].fill_(3), seen.add_(x))[1] * 2)
        assert compiled(torch.ones(3)).tolist() == [8, 8, 2]
    assert seen.tolist() == [4, 4, 1]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_batch_norm_updates_its_statistics_once_a_call(mode):
    compiled_norm, norm = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
    compiled = replayed(lambda x: compiled_norm(x))
    with mode():
        for start in range(3):
            x = torch.arange(8.0).reshape(2, 4) + start
            torch.testing.assert_close(compiled(x), norm(x))
            torch.testing.assert_close(compiled_norm.state_dict(), norm.state_dict())


# Random numbers


@pytest.mark.parametrize(
    "f",
    [
        lambda x: nn.functional.dropout(x, 0.5),
        lambda x: x + torch.rand(4) * torch.randn_like(x),
        lambda x: tl.vmap(lambda x: torch.randn(()) * x, randomness="different")(x),
    ],
)
def test_each_call_draws_from_torchs_generator(f):
    x = torch.ones(4)
    torch.manual_seed(0)
    expected = [f(x), f(x)]
    compiled = replayed(f)
    compiled(x)
    torch.manual_seed(0)
    torch.testing.assert_close([compiled(x), compiled(x)], expected)


# Results that are no pytrees, and backward()


class Held:
    def __init__(self, x):
        self.x = x


class Slotted:
    __slots__ = ("x",)

    def __init__(self, x):
        self.x = x


PACKS = {
    "an object": Held,
    "slots": Slotted,
    "an object's object": lambda x: Held([Held(x)]),
    "a closure": lambda x: lambda: x,
    "a default": lambda x: lambda y=x: y,
    "a partial": lambda x: functools.partial(torch.add, x),
    "a set": lambda x: {x},
    "an iterator": lambda x: iter([x]),
    "a map": lambda x: map(torch.sin, [x]),
}


@pytest.mark.parametrize("pack", PACKS.values(), ids=PACKS.keys())
def test_result_with_hidden_tensors_is_rejected(pack):
    with pytest.raises(tl.errors.TransformError, match="which is not a pytree"):
        replayed(lambda x: pack(x * 2))(torch.ones(2))


def test_backward_inside_adds_to_the_gradient_at_each_call():
    weight, expected = (torch.ones(2, requires_grad=True) for _ in range(2))
    compiled = replayed(lambda x: (weight * x).sum().backward())
    for x in (torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]), torch.tensor([5.0, 6.0])):
        compiled(x)
        (expected * x).sum().backward()
        torch.testing.assert_close(weight.grad, expected.grad)
    weight.grad = None
    compiled(torch.tensor([7.0, 8.0]))
    assert weight.grad.tolist() == [7, 8]


@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node")
def test_functions_that_trace_by_themselves_are_rejected():
    def f(x):
        return torch.func.linearize(torch.sin, x)[1](x).sum()

    with pytest.raises(
        tl.errors.TransformError, match="calls a function that traces operators itself"
    ):
        replayed(tl.grad(f))(torch.ones(2))
    ours = tl.grad(lambda x: tl.linearize(torch.sin, x)[1](x).sum())
    torch.testing.assert_close(replayed(ours)(torch.ones(2)), ours(torch.ones(2)))


def test_opaque_result_without_tensors_is_returned():
    module = nn.Linear(2, 2)
    result = replayed(lambda x: (x * 2, module, len, {3}, lambda: module))(torch.ones(2))
    assert result[1:4] == (module, len, {3}) and result[4]() is module


def test_copies_have_separate_signatures():
    module = nn.Linear(2, 2)
    compiled = replayed(module, static_argnums=1)
    compiled(torch.ones(2))
    other = copy.deepcopy(compiled)
    with torch.no_grad():
        module.weight.zero_()
    assert not torch.equal(other(torch.ones(2)), compiled(torch.ones(2)))
    assert pickle.loads(pickle.dumps(replayed(torch.sin)))(torch.zeros(2)).tolist() == [0, 0]


@functools.partial(tl.compile, backend="replay")
def decorated(x):
    return x * 2


def test_a_decorated_function_of_a_module_is_pickled_by_its_name():
    assert pickle.loads(pickle.dumps(decorated)) is decorated
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        pickle.dumps(replayed(lambda x: x))


@pytest.mark.parametrize("transform", [tl.vmap, tl.grad, lambda f: replayed(tl.grad(f))])
def test_transformed_functions_are_pickled_by_value(transform):
    cloudpickle = pytest.importorskip("cloudpickle", reason="joblib and others pickle by it")
    transformed = transform(torch.sin)
    x = torch.ones(()) if transform is not tl.vmap else torch.ones(3)
    again = pickle.loads(cloudpickle.dumps(transformed))
    torch.testing.assert_close(again(x), transformed(x))


@pytest.mark.parametrize("places", [None, 1.0, "x", [None]])
def test_invalid_static_argnums_are_rejected(places):
    with pytest.raises(
        tl.errors.TransformError, match="static_argnums must be an int or a sequence of ints"
    ):
        tl.compile(torch.sin, static_argnums=places)


# Inside something else


def test_unknown_inductor_option_is_rejected():
    with pytest.raises(
        tl.errors.TransformError, match=r"no option 'cpp\.thread'.*mean 'cpp\.threads'"
    ):
        tl.compile(torch.sin, options={"cpp.thread": 1})


@pytest.mark.parametrize("pack", [lambda size: size, lambda size: {"size": (size, 2)}])
def test_sizes_may_be_arguments(pack):
    def f(x, given):
        size = given["size"][0] if isinstance(given, dict) else given
        return x.sin().reshape(size)

    x = torch.rand(6)
    compiled = replayed(f)
    for size in ((2, 3), (3, 2), (2, 3)):
        given = pack(torch.Size(size))
        torch.testing.assert_close(compiled(x, given), f(x, given))
    assert len(compiled.report().signatures) == 2


def test_compiled_function_is_inlined_inside_a_transform():
    def func(x):
        return x.sin() * x

    compiled = replayed(func)
    x = torch.tensor([0.5, 1.0])
    compiled(x)
    for transform in (
        tl.jacrev,
        tl.jacfwd,
        tl.hessian,
        tl.vmap,
        torch.func.jacrev,
        torch.func.vmap,
    ):
        torch.testing.assert_close(transform(compiled)(x), transform(func)(x))
    assert len(compiled.report().signatures) == 1


def test_compiled_function_is_inlined_inside_another_capture():
    inner = replayed(torch.sin)
    outer = replayed(lambda x: inner(x) * 2)
    torch.testing.assert_close(outer(torch.ones(2)), torch.ones(2).sin() * 2)
    assert inner.report().signatures == ()
    targets = [str(node.target) for node in tl.make_graph(inner)(torch.ones(2)).graph.nodes]
    assert "aten.sin.default" in targets


def test_call_with_a_tensor_subclass_is_inlined():
    from torch._subclasses import FakeTensorMode

    compiled = replayed(torch.sin)
    with FakeTensorMode():
        fake = torch.ones(3)
    assert type(compiled(fake)) is type(fake)


def test_stack_is_empty_after_an_error():
    compiled = replayed(tl.grad(lambda x: x.sum() / 0 if x.dim() else 1 / 0))
    with pytest.raises(ZeroDivisionError):
        compiled(torch.ones(()))
    assert tl.current_stack() == ()
    torch.testing.assert_close(replayed(tl.grad(torch.sin))(torch.zeros(())), torch.ones(()))


def test_operator_error_is_raised_once_and_not_logged(caplog):
    product = tl.compile(torch.matmul, backend="replay")
    with pytest.raises(RuntimeError, match=r"reduction dim|shapes cannot be multiplied"):
        product(torch.ones(2, 3), torch.ones(2, 3))
    assert not [entry for entry in caplog.records if entry.levelname == "ERROR"]
    assert product(torch.ones(2, 3), torch.ones(3, 2)).shape == (2, 2)
