"""vmap: same results as torch.func's."""

import functools

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils import _pytree as pytree

import torchlayers as tl
from tests.support.calls import agree, level_of, structures

X = torch.arange(24.0).reshape(2, 3, 4)
Y = torch.linspace(-1, 1, 24).reshape(2, 3, 4)


def mix(x, y):
    return x.sum(0) * y + x.flip(-1)


@pytest.mark.parametrize("in_dims", [0, 1, 2, -1, -2, -3])
def test_one_in_dim_is_for_all_arguments(in_dims):
    agree(lambda tf: tf.vmap(mix, in_dims)(X, Y))


@pytest.mark.parametrize("in_dims", [(0, 0), (0, -3), (0, None), (None, 0), (-3, None), (2, -1)])
def test_each_argument_has_its_in_dim(in_dims):
    y = Y if in_dims[1] is not None else Y[0]
    x = X if in_dims[0] is not None else X[0]
    agree(lambda tf: tf.vmap(mix, in_dims)(x, y))


def test_batch_dimensions_at_different_places_meet():
    x, y = torch.rand(5, 2, 3), torch.rand(2, 3, 5)
    result = agree(lambda tf: tf.vmap(torch.mul, in_dims=(0, 2))(x, y))
    torch.testing.assert_close(result, x * y.movedim(2, 0))


@structures
def test_in_dims_may_have_the_structure_of_the_argument(pack):
    def f(tree, z):
        return functools.reduce(torch.mul, pytree.tree_leaves(tree)) * z

    agree(lambda tf: tf.vmap(f)(pack(X, Y), X))
    agree(lambda tf: tf.vmap(f, in_dims=(pack(0, 0), 0))(pack(X, Y), X))
    agree(lambda tf: tf.vmap(f, in_dims=(pack(1, -2), None))(pack(X, Y), X[:, 0]))


def test_in_dims_in_a_structure_may_be_none():
    def f(tree):
        return tree["a"] * tree["b"][0]

    agree(lambda tf: tf.vmap(f, in_dims=({"a": 0, "b": [None]},))({"a": X, "b": [Y[0]]}))


def test_in_dims_may_stop_above_the_leaves():
    def f(tree, z):
        return tree["a"] * tree["b"][0] * z

    tree = {"a": X, "b": (Y,)}
    agree(lambda tf: tf.vmap(f, in_dims=(0, None))(tree, X[0]))
    agree(lambda tf: tf.vmap(f, in_dims=({"a": 0, "b": 0}, None))(tree, X[0]))


def test_arguments_not_batched_may_be_anything():
    def f(x, number, name, none):
        return x * number if name == "n" and none is None else None

    agree(lambda tf: tf.vmap(f, in_dims=(0, None, None, None))(X, 2.0, "n", None))


def test_keyword_arguments_are_not_batched():
    def f(x, *, scale, name):
        assert scale.shape == X.shape
        assert level_of(scale) == -1
        assert name == "n"
        return x * scale

    agree(lambda tf: tf.vmap(f)(X, scale=Y, name="n"))


def test_the_function_sees_one_sample():
    def f(x):
        assert x.shape == (3, 4)
        assert (x.dim(), len(x), x.numel(), x.stride()) == (2, 3, 12, (4, 1))
        return x

    agree(lambda tf: tf.vmap(f)(X))


@pytest.mark.parametrize("out_dims", [0, 1, 2, -1, -2, -3, (0,), (1,), (-1,)])
def test_one_out_dim(out_dims):
    agree(lambda tf: tf.vmap(torch.sin, 1, out_dims)(X))


@pytest.mark.parametrize("out_dims", [0, -1, (0, 1), (1, -1), [0, -2], (0, None)])
def test_each_result_has_its_out_dim(out_dims):
    kind = list if isinstance(out_dims, list) else tuple

    def f(x, y):
        return kind((x * y, Y[0, 0] if out_dims == (0, None) else x))

    agree(lambda tf: tf.vmap(f, out_dims=out_dims)(X, Y))


@structures
def test_out_dims_may_have_the_structure_of_the_result(pack):
    agree(lambda tf: tf.vmap(lambda x: pack(x * 2, x.sum()))(X))
    agree(lambda tf: tf.vmap(lambda x: pack(x * 2, x), out_dims=pack(-1, 1))(X))


def test_out_dims_in_a_structure_may_be_none():
    agree(lambda tf: tf.vmap(lambda x: {"a": x, "b": [Y]}, out_dims={"a": 1, "b": [None]})(X))


def test_out_dims_may_stop_above_the_leaves():
    def f(x):
        return {"a": (x, x * 2), "b": [x.sum()]}

    agree(lambda tf: tf.vmap(f, out_dims={"a": 1, "b": 0})(X))
    agree(lambda tf: tf.vmap(f, out_dims={"a": (1, -1), "b": [0]})(X))


@pytest.mark.parametrize("result", [1, 2.5, "name", None, (1, [None, "a"]), Y])
def test_an_out_dim_of_none_returns_what_does_not_depend_on_the_batch_as_it_is(result):
    agree(lambda tf: tf.vmap(lambda x: result, out_dims=None)(X))
    agree(lambda tf: tf.vmap(lambda x: (x, result), out_dims=(0, None))(X))


# torch.func gives tensors of wrong sizes where out_dims is not 0.
@pytest.mark.parametrize("out_dims", [0, 1, -1])
def test_a_result_that_does_not_depend_on_the_batch_is_repeated(out_dims):
    result = tl.vmap(lambda x: Y[0, 0], out_dims=out_dims)(X)
    assert torch.equal(result.movedim(out_dims, 0), Y[0, 0].expand(2, 4))


@pytest.mark.parametrize("f", [lambda x: x, lambda x: (x, x), lambda x: (), lambda x: x.detach()])
def test_results_that_are_the_argument_or_nothing(f):
    agree(lambda tf: tf.vmap(f)(X))


def test_results_carry_no_wrapper():
    assert level_of(tl.vmap(torch.sin)(X)) == -1


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.bfloat16, torch.complex64])
def test_tensors_of_any_dtype(dtype):
    agree(lambda tf: tf.vmap(lambda x: (x.sum(0), x == x.flip(0)))(X.to(dtype)))


@pytest.mark.parametrize("shape", [(1,), (7,), (0,), (0, 3), (3, 0), (1, 1, 1)])
@pytest.mark.parametrize("chunk_size", [None, 2])
def test_batches_of_any_size(shape, chunk_size):
    def call(tf):
        # torch.func fails on chunks of an empty batch.
        size = None if tf is torch.func and shape[0] == 0 else chunk_size
        return tf.vmap(lambda x: (x.exp(), x.view_as(x)), chunk_size=size)(torch.rand(shape))

    agree(call)


def random(x):
    y = torch.randn(4) + torch.rand_like(x) + torch.nn.functional.dropout(x)
    return y, torch.randperm(5), torch.randint(9, (2,)), torch.bernoulli(torch.full((3,), 0.5))


@pytest.mark.parametrize("chunk_size", [None, 1, 2, 3, 6, 7, 100])
@pytest.mark.parametrize("randomness", ["same", "different"])
def test_random_operators(randomness, chunk_size):
    def call(tf):
        x = torch.rand(6, 4)
        results = tf.vmap(random, randomness=randomness, chunk_size=chunk_size)(x)
        afterwards = torch.rand(2)
        return contiguous(results), afterwards

    agree(call)


def contiguous(results):
    """torch.func copies a single chunk and we do not, which affects only the strides."""
    return pytree.tree_map(torch.Tensor.contiguous, results)


def test_same_randomness_is_the_same_for_every_sample():
    result = tl.vmap(lambda x: torch.rand(3), randomness="same")(X)
    assert torch.equal(result[0], result[1])


@pytest.mark.parametrize("chunk_size", [1, 2, 5])
def test_same_randomness_is_the_same_in_every_chunk(chunk_size):
    f = tl.vmap(lambda x: torch.rand(3), randomness="same", chunk_size=chunk_size)
    result = f(torch.ones(5))
    assert torch.equal(result, result[:1].expand(5, 3))


def test_different_randomness_is_different_for_every_sample():
    result = tl.vmap(lambda x: torch.rand(3), randomness="different")(X)
    assert not torch.equal(result[0], result[1])


@pytest.mark.parametrize("inner", ["same", "different"])
@pytest.mark.parametrize("outer", ["same", "different"])
def test_randomness_of_nested_vmaps(outer, inner):
    def call(tf):
        f = tf.vmap(lambda x: x + torch.rand(4), randomness=inner)
        return tf.vmap(f, randomness=outer)(X)

    agree(call)


@pytest.mark.parametrize("randomness", ["error", "same", "different"])
def test_randomness_says_nothing_of_other_operators(randomness):
    agree(lambda tf: tf.vmap(torch.sin, randomness=randomness, chunk_size=1)(X))


@pytest.mark.parametrize("chunk_size", [None, 1, 2, 5, 6, 11, 12, 13, 100])
@pytest.mark.parametrize(("in_dims", "out_dims"), [(0, 0), ((2, None), (-1, 1)), ((-1, None), 0)])
def test_chunks_are_joined(in_dims, out_dims, chunk_size):
    x, y = torch.rand(12, 5, 12), torch.rand(12, 5)

    def f(x, y):
        return x.t() * 2, x * y.sum()

    def call(tf):
        return contiguous(tf.vmap(f, in_dims, out_dims, chunk_size=chunk_size)(x, y))

    torch.testing.assert_close(agree(call), tl.vmap(f, in_dims, out_dims)(x, y))


def test_the_function_sees_a_chunk_at_a_time():
    sizes = []

    def f(x):
        sizes.append(tl.current_stack()[0].metadata["batch_size"])
        return x

    tl.vmap(f, chunk_size=3)(torch.ones(7))
    assert sizes == [3, 3, 1]


@structures
def test_chunks_of_structures(pack):
    agree(lambda tf: tf.vmap(lambda t: t, chunk_size=2)(pack(torch.rand(5, 2), torch.rand(5))))


# torch.func can't join chunks where out_dims is a one-tuple for a single tensor.
def test_chunks_with_a_one_tuple_of_out_dims():
    x = torch.rand(5, 3)
    assert torch.equal(tl.vmap(torch.sin, out_dims=(1,), chunk_size=2)(x), x.sin().t())


# The same holds where an out_dim is None.
def test_chunks_with_an_out_dim_of_none():
    result, note = tl.vmap(lambda x: (x * 2, "note"), out_dims=(0, None), chunk_size=2)(X)
    assert torch.equal(result, X * 2)
    assert note == "note"


def test_writing_to_an_argument_writes_to_the_batch():
    def call(tf):
        x = X.clone()
        return tf.vmap(lambda x: x.add_(1).sum())(x), x

    agree(call)


def test_writing_to_fresh_tensors_made_like_the_sample():
    def f(x):
        y = torch.zeros_like(x)
        y[0] = x[1]
        y.add_(x)
        y[:, 1].mul_(x[:, 0])
        return y

    agree(lambda tf: tf.vmap(f)(X))


def test_writing_unbatched_values_into_unbatched_tensors():
    def call(tf):
        y = torch.zeros(3)
        return tf.vmap(lambda x: x + y.add_(1).sum())(X), y

    agree(call)


def test_indexing_with_batched_indices():
    table, index = torch.rand(9, 4), torch.randint(9, (5, 3))
    agree(lambda tf: tf.vmap(lambda i: table[i])(index))
    agree(lambda tf: tf.vmap(lambda t, i: t[i], in_dims=(1, 0))(torch.rand(9, 5), index))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_a_mode_outside_holds_inside(mode):
    def call(tf):
        x = X.clone().requires_grad_()
        with mode():
            return tf.vmap(lambda x: x**2)(x)

    agree(call)


def test_plain_autograd_goes_through():
    def call(tf):
        x, w = X.clone().requires_grad_(), Y.clone().requires_grad_()
        result = tf.vmap(lambda x: (x * w).sum(), out_dims=0)(x)
        return torch.autograd.grad(result.square().sum(), (x, w))

    agree(call)


def test_backward_through_vmap_into_a_module():
    def call(tf):
        module = torch.nn.Linear(4, 2)
        tf.vmap(module)(X[0]).sum().backward()
        return [p.grad for p in module.parameters()]

    agree(call)


def test_vmap_of_vmap_of_vmap():
    def call(tf):
        f = tf.vmap(tf.vmap(tf.vmap(torch.atan2), in_dims=(0, None)), in_dims=(1, 0), out_dims=1)
        return f(X, Y[0])

    agree(call)


def test_per_sample_gradients_by_functional_call():
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    params = {name: p.detach() for name, p in module.named_parameters()}
    x, target = torch.rand(5, 4), torch.rand(5, 1)

    def loss(params, x, target):
        return (torch.func.functional_call(module, params, (x,)) - target).square().sum()

    gradients = agree(lambda tf: tf.vmap(tf.grad(loss), in_dims=(None, 0, 0))(params, x, target))

    for i in range(5):
        one = torch.autograd.grad(
            (module(x[i]) - target[i]).square().sum(), list(module.parameters())
        )
        for got, expected in zip(gradients.values(), one, strict=True):
            torch.testing.assert_close(got[i], expected)


def test_ensembles_by_stacked_modules():
    modules = [torch.nn.Linear(4, 2) for _ in range(3)]
    params, buffers = torch.func.stack_module_state(modules)
    x = torch.rand(5, 4)

    def f(params, buffers, x):
        return torch.func.functional_call(modules[0], (params, buffers), (x,))

    result = agree(lambda tf: tf.vmap(f, in_dims=(0, 0, None))(params, buffers, x))
    for got, module in zip(result, modules, strict=True):
        torch.testing.assert_close(got, module(x))


def test_a_module_and_a_partial_are_functions():
    agree(lambda tf: tf.vmap(torch.nn.Softmax(dim=0))(X))
    agree(lambda tf: tf.vmap(functools.partial(mix, Y[0]))(X))
    agree(lambda tf: tf.vmap(functools.partial(torch.sum, dim=-1))(X))


def test_the_transformed_function_is_named_as_the_function():
    transformed = tl.vmap(mix)
    assert transformed.__name__ == "mix"
    assert transformed.__module__ == __name__
    assert transformed.__wrapped__ is mix


def test_an_autograd_function_with_a_rule_of_its_own():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x * 2

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def vmap(info, in_dims, x):
            assert (info.batch_size, info.randomness) == (2, "error")
            return x * 200, in_dims[0]

    assert torch.equal(agree(lambda tf: tf.vmap(Double.apply, in_dims=0)(X)), X * 200)


def cleared(x, mask, value=0.0):
    y = x.clone()
    y[mask] = value
    return y


MASKED = {
    "one dimension": lambda tf: tf.vmap(cleared)(MASKED_X, MASKED_X > 0),
    "fewer dimensions": lambda tf: tf.vmap(cleared)(MASKED_X, MASKED_X[:, :, 0] > 0),
    "tensor as value": lambda tf: tf.vmap(cleared)(MASKED_X, MASKED_X > 0, torch.arange(3.0)),
    "out of place": lambda tf: tf.vmap(lambda x: torch.index_put(x, (x > 0,), x.sum()))(MASKED_X),
    "vmap(vmap)": lambda tf: tf.vmap(tf.vmap(cleared))(MASKED_X, MASKED_X > 0),
    "vmap(grad)": lambda tf: tf.vmap(tf.grad(lambda x: cleared(x * x, x > 0).sum()))(MASKED_X),
    "grad(vmap)": lambda tf: tf.grad(lambda x: tf.vmap(cleared)(x * x, x > 0).sum())(MASKED_X),
}
MASKED_X = torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("call", MASKED.values(), ids=MASKED)
def test_one_value_written_by_a_mask(call):
    class ByLoop:
        @staticmethod
        def vmap(f):
            return lambda *args: torch.stack([f(*sample) for sample in zip(*args, strict=True)])

        grad = torch.func.grad

    torch.testing.assert_close(call(tl), call(ByLoop))


@pytest.mark.parametrize("call", MASKED.values(), ids=MASKED)
def test_torch_func_refuses_one_value_written_by_a_mask(call):
    """As an index, a mask selects a different number of elements in each sample."""
    with pytest.raises(RuntimeError):
        call(torch.func)


def test_tensors_are_made_after_a_batched_one():
    def f(x):
        made = x.new(2).zero_() + x.new([1.0, 2.0]) + x.new_tensor([3.0, 4.0])
        return made * x

    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    torch.testing.assert_close(tl.vmap(f)(x), torch.stack([f(row) for row in x]))
    assert (
        tl.vmap(lambda x: x.new_tensor([1], dtype=torch.int32) + x.long())(x).dtype == torch.int64
    )


def by_tangent(x):
    primal, tangent = forward_ad.unpack_dual(x * x)
    return primal if tangent is None else primal + 10 * tangent.sin()


def with_another_tangent(x):
    primal, tangent = forward_ad.unpack_dual(x)
    y = forward_ad.make_dual(primal, torch.ones(4) if tangent is None else tangent * 2)
    return y * y


def with_a_primal_of_all_samples(x):
    y = forward_ad.make_dual(torch.ones(4), forward_ad.unpack_dual(x).primal)
    return y * y


def with_a_tangent_of_all_samples(x):
    y = forward_ad.make_dual(forward_ad.unpack_dual(x).primal, torch.ones(4))
    return y * y


@pytest.mark.parametrize(
    "f",
    [
        by_tangent,
        with_another_tangent,
        with_a_primal_of_all_samples,
        with_a_tangent_of_all_samples,
    ],
)
@pytest.mark.parametrize("in_dim", [0, 1])
def test_samples_see_their_tangents(f, in_dim):
    x = X[0].movedim(0, in_dim)
    t = x.cos()
    found = tl.jvp(tl.vmap(f, in_dim), (x,), (t,))
    samples = zip(x.unbind(in_dim), t.unbind(in_dim), strict=True)
    each = [tl.jvp(f, (x,), (t,)) for x, t in samples]
    torch.testing.assert_close(found, tuple(map(torch.stack, zip(*each, strict=True))))


def test_samples_see_no_tangent_where_there_is_none():
    def f(x):
        return x if forward_ad.unpack_dual(x).tangent is None else 0 * x

    value, tangent = tl.jvp(lambda x: tl.vmap(f)(X) * x, (X,), (X,))
    torch.testing.assert_close(value, X * X)
    torch.testing.assert_close(tangent, X * X)


def test_a_dual_level_is_entered_for_each_sample():
    def f(x):
        with forward_ad.dual_level():
            y = forward_ad.make_dual(x, x.cos())
            return forward_ad.unpack_dual(y * y).tangent

    torch.testing.assert_close(tl.vmap(f)(X), 2 * X * X.cos())
    torch.testing.assert_close(
        tl.grad(lambda x: tl.vmap(f)(x).sum())(X), 2 * X.cos() - 2 * X * X.sin()
    )
