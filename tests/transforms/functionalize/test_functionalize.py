"""functionalize: same results as torch.func's, and right where torch.func's is wrong."""

import pytest
import torch
import torch.func
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import torchlayers as tl
from tests.support.calls import agree, ambient, structures
from tests.transforms.functionalize import X, removes

COPY = torch.ops.aten.copy_.default


def writing(x):
    y = x + 1
    y.mul_(2)
    y[0].add_(x[1])
    return y


def writing_to_views(x):
    y = x.clone()
    flat = y.view(-1)
    y.add_(1)
    flat[1:].mul_(2)
    return flat, y.t()


def writing_to_out(x):
    y = torch.empty(2, 3)
    torch.add(x, 1, out=y)
    return y


def resizing(x):
    y = torch.empty(0)
    y.resize_(2, 3)
    return y.copy_(x)


def moving_dimensions(x):
    y = x.clone()
    return y.squeeze_().transpose_(0, 1).unsqueeze_(0)


def writing_by_index(x):
    y = torch.zeros(2, 3)
    y[x > 1] = 5.0
    y[:, 1] = x[:, 0]
    y[torch.tensor([0, 1]), 2] = x.sum()
    return y


def writing_by_detach(x):
    y = x.clone()
    y.detach().add_(1)
    return y


def writing_to_lists(x):
    parts = [x.clone(), x * 2]
    torch._foreach_add_(parts, 1.0)
    return parts, torch.split(x, 1), torch.stack(x.unbind())


def random(x):
    return x + torch.rand(2, 3).uniform_()


def normalizing(x):
    return nn.functional.batch_norm(x, torch.zeros(3), torch.ones(3), training=True)


def writing_to_the_argument(x):
    x.add_(1)
    return x * 2


def writing_to_views_of_the_argument(x):
    x[0].mul_(3)
    x.view(-1)[1:].add_(1)
    return x.sum()


def returning_the_argument_written_to(x):
    x[0] = x[1] * 2
    return x


INSIDE = [
    writing,
    writing_to_views,
    writing_to_out,
    resizing,
    moving_dimensions,
    writing_by_index,
    writing_by_detach,
    writing_to_lists,
    random,
    normalizing,
]
TO_ARGUMENTS = [
    writing_to_the_argument,
    writing_to_views_of_the_argument,
    returning_the_argument_written_to,
]
functions = pytest.mark.parametrize("f", INSIDE + TO_ARGUMENTS)


@functions
@removes
def test_results_and_arguments_are_as_without_it(f, remove):
    def call(tf):
        x = X.clone()
        return tf.functionalize(f, remove=remove)(x), x

    result, after = agree(call)
    x = X.clone()
    torch.manual_seed(0)
    torch.testing.assert_close(result, f(x))
    torch.testing.assert_close(after, x)


@pytest.mark.sweep
@pytest.mark.parametrize("tracing_mode", ["real", "symbolic"])
@functions
@removes
def test_make_fx_records_torch_funcs_graph(f, remove, tracing_mode):
    def record(tf):
        return make_fx(tf.functionalize(f, remove=remove), tracing_mode=tracing_mode)(X.clone())

    agree(lambda tf: record(tf).code)


@functions
@removes
def test_removed_operators_are_absent_from_the_graph(f, remove):
    traced = make_fx(tl.functionalize(f, remove=remove))(X.clone())
    for node in traced.graph.nodes:
        # Writes to an argument are copied to it at the end.
        if isinstance(node.target, torch._ops.OpOverload) and node.target is not COPY:
            schema = node.target._schema
            assert not schema.is_mutable
            if remove == "mutations_and_views":
                assert not any(argument.alias_info for argument in schema.arguments)


def test_removing_mutations_keeps_views():
    graph = make_fx(tl.functionalize(writing_to_views))(X).graph
    targets = {str(node.target) for node in graph.nodes}
    assert "aten.view.default" in targets
    assert "aten.view_copy.default" not in targets


def test_removing_views_makes_copies():
    graph = make_fx(tl.functionalize(writing_to_views, remove="mutations_and_views"))(X).graph
    targets = {str(node.target) for node in graph.nodes}
    assert "aten.view_copy.default" in targets
    assert "aten.view.default" not in targets


def test_graph_writes_to_arguments_at_the_end():
    graph = make_fx(tl.functionalize(writing_to_the_argument))(X.clone()).graph
    operators = [str(node.target) for node in graph.nodes if node.op == "call_function"]
    assert operators == ["aten.add.Tensor", "aten.mul.Tensor", "aten.copy_.default"]


# Arguments


def test_keyword_arguments_are_written_to():
    def call(tf):
        y = X.clone()
        return tf.functionalize(lambda x, *, y: y.add_(x))(X, y=y), y

    agree(call)


def test_one_tensor_given_twice():
    def call(tf):
        x = X.clone()
        return tf.functionalize(lambda x, y: (x.add_(1), y * 2))(x, x), x

    agree(call)


@structures
def test_arguments_and_results_may_be_structures(pack):
    def call(tf):
        x, y = X.clone(), X[0].clone()

        def f(arg, scale):
            torch.utils._pytree.tree_map(lambda leaf: leaf.mul_(scale), arg)
            return pack(x * 2, arg)

        return tf.functionalize(f)(pack(x, y), 3), x, y

    agree(call)


@pytest.mark.parametrize("result", [1, "name", None, (1, [None])])
def test_results_may_be_anything(result):
    agree(lambda tf: tf.functionalize(lambda x: (x, result))(X))


def test_a_tensor_made_outside_may_be_returned():
    made = torch.ones(2)
    assert tl.functionalize(lambda x: made)(X) is made


def test_writing_to_a_captured_tensor_is_refused():
    captured, before = torch.zeros(2, 3), ambient()
    with pytest.raises(RuntimeError, match="write to a tensor from outside the function"):
        tl.functionalize(captured.add_)(X)
    assert ambient() == before


def test_a_captured_tensor_may_be_read():
    agree(lambda tf: tf.functionalize(lambda x: x.clone().mul_(X[0]))(X))


def test_an_empty_call():
    agree(lambda tf: tf.functionalize(lambda: torch.zeros(2).add_(1))())


def test_a_module_is_a_function():
    module = nn.Sequential(nn.Linear(3, 2), nn.ReLU(inplace=True))
    agree(lambda tf: tf.functionalize(module)(X))


def test_plain_autograd_goes_through():
    def call(tf):
        x = X.clone().requires_grad_()
        return torch.autograd.grad(tf.functionalize(writing)(x).square().sum(), x)

    agree(call)


def test_the_transformed_function_is_named_as_the_function():
    assert tl.functionalize(writing).__name__ == "writing"


@pytest.mark.parametrize("remove", ["views", "", None, True])
def test_invalid_remove_option_is_rejected(remove):
    with pytest.raises(RuntimeError, match=r"torchlayers: functionalize: remove must be"):
        tl.functionalize(writing, remove=remove)


def test_everything_is_as_it_was_after_an_exception():
    def fails(x):
        x.add_(1)
        raise ZeroDivisionError

    before = ambient()
    x = X.clone()
    with pytest.raises(ZeroDivisionError):
        tl.functionalize(fails)(x)
    assert ambient() == before
    assert torch.equal(x, X)
