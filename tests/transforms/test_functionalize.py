"""functionalize: same results as torch.func's, and right where torch.func's is wrong."""

import functools

import pytest
import torch
import torch.func
from torch import nn
from torch.autograd import forward_ad
from torch.autograd.graph import save_on_cpu
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

import torchlayers as tl
from tests.support.calls import agree, ambient, structures

X = torch.tensor([[0.5, 1.0, 2.0], [1.5, -1.0, 0.3]])

COPY = torch.ops.aten.copy_.default
removes = pytest.mark.parametrize("remove", ["mutations", "mutations_and_views"])


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
    with pytest.raises(RuntimeError, match="mutating a non-functional tensor with a functional"):
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


# With other transforms

OTHERS = {
    "grad": lambda tf, f: tf.grad(lambda x: f(x).sum()),
    "vjp": lambda tf, f: lambda x: tf.vjp(f, x)[1](x)[0],
    "jvp": lambda tf, f: lambda x: tf.jvp(f, (x,), (x.cos(),)),
    "vmap": lambda tf, f: tf.vmap(f),
    "vmap(grad)": lambda tf, f: tf.vmap(tf.grad(lambda x: f(x).sum())),
    "jacrev": lambda tf, f: tf.jacrev(f),
    "jacfwd": lambda tf, f: tf.jacfwd(f),
}
others = pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)


def squared_in_place(x):
    y = x.sin()
    y.mul_(x)
    y[0].add_(x.sum())
    return y.add_(1).view(-1)[: y.numel()].view(y.shape)


@others
@removes
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
def test_inside_other_transforms(other, remove):
    agree(lambda tf: other(tf, tf.functionalize(squared_in_place, remove=remove))(X))


@others
@removes
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
def test_around_other_transforms(other, remove):
    agree(lambda tf: tf.functionalize(other(tf, squared_in_place), remove=remove)(X))


@others
def test_around_other_transforms_the_graph_has_no_mutations(other):
    traced = make_fx(tl.functionalize(other(tl, squared_in_place)))(X)
    for node in traced.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload):
            assert not node.target._schema.is_mutable
    torch.testing.assert_close(traced(X + 1), other(tl, squared_in_place)(X + 1))


@others
def test_mixed_with_torch_funcs(other):
    expected = other(tl, squared_in_place)(X)
    torch.testing.assert_close(tl.functionalize(other(torch.func, squared_in_place))(X), expected)
    torch.testing.assert_close(torch.func.functionalize(other(tl, squared_in_place))(X), expected)


# Writes to parts of tensors, differentiated

SQUARE = torch.tensor([[0.5, 1.0, 2.0], [1.5, -1.0, 0.3], [0.7, 0.2, -0.4]], dtype=torch.float64)
ALONG = torch.tensor([[0.3, -0.7, 1.1], [0.2, 0.9, -0.5], [1.3, 0.4, 0.6]], dtype=torch.float64)


def to_a_slice(x):
    y = x * 2
    y[1:].add_(x[1:])
    return y * y


def to_a_slice_without_a_tangent(x):
    y = torch.zeros_like(x)
    y[1:] += x[:2].cos()
    return y


def to_a_transpose(x):
    y = x.t() * 2
    y.t()[1:].mul_(x[:2])
    return y * y


def to_a_diagonal(x):
    y = x.sin()
    y.diagonal()[1:].mul_(x[0, :2])
    return y * y


def to_a_view_of_a_view(x):
    y = x * 2
    y.view(-1)[2:][1:5].mul_(x.reshape(-1)[:4])
    return y * y


def to_strided_memory(x):
    y = x * 2
    y.as_strided((2, 2), (3, 1), 4).mul_(x[:2, :2])
    return y * y


def to_strided_memory_by_a_view(x):
    y = x * 2
    y[1:].as_strided((2, 2), (3, 1), 1).mul_(x[:2, :2])
    return y * y


def to_views_that_overlap(x):
    y = x.sin()
    rows, columns = y[1:], y[:, 1:]
    rows.mul_(x[1:])
    columns.mul_(x[:, 1:])
    rows.exp_()
    return y * columns.sum() + rows.mean()


def to_a_copy_that_reshape_makes(x):
    y = (x * 2).t()
    flat = y.reshape(9)
    flat[3:].mul_(x.reshape(9)[:6])
    return y * y + flat.view(3, 3)


def to_real_and_imaginary_parts(x):
    y = torch.complex(x.sin(), x.cos())
    y.imag.mul_(x)
    y.real[1:].add_(x[:2])
    return (y * y).real + y.imag


def to_a_complex_view(x):
    y = torch.stack([x.sin(), x], -1)
    torch.view_as_complex(y)[1:].mul_(2j)
    return (y * y).sum(-1)


def where_a_mask_says(x):
    y = x * 2
    y[1:][x[1:] > 0.4] = x[0, 0]
    return y * x


def seen_in_place(x):
    y = x * 2
    y.t_()
    y[1:].mul_(x[:2])
    return y.transpose_(0, 1) * x


def to_what_a_constant_gives(x):
    y = SQUARE * 2
    y[1:] = x[:2].cos()
    return y * y


PARTS = [
    to_a_slice,
    to_a_slice_without_a_tangent,
    to_a_transpose,
    to_a_diagonal,
    to_a_view_of_a_view,
    to_strided_memory,
    to_strided_memory_by_a_view,
    to_views_that_overlap,
    to_a_copy_that_reshape_makes,
    to_real_and_imaginary_parts,
    to_a_complex_view,
    where_a_mask_says,
    seen_in_place,
    to_what_a_constant_gives,
]
parts = pytest.mark.parametrize("f", PARTS)


def differences(f, x, along, step=1e-6):
    return (f(x + step * along) - f(x - step * along)) / (2 * step)


@parts
@removes
def test_derivatives_of_writes_to_parts_are_those_of_differences(f, remove):
    functionalize = functools.partial(tl.functionalize, remove=remove)
    expected = differences(f, SQUARE, ALONG)

    def pushed(x):
        return tl.jvp(f, (x,), (ALONG,))[1]

    def pulled(x):
        return tl.vjp(f, x)[1](ALONG)[0]

    pushes = [functionalize(pushed), lambda x: tl.jvp(functionalize(f), (x,), (ALONG,))[1]]
    for push in pushes:
        torch.testing.assert_close(push(SQUARE), expected, atol=1e-7, rtol=1e-6)
    # Adjoints of the same map.
    of_direction = (expected * ALONG).sum()
    pulls = [functionalize(pulled), lambda x: tl.vjp(functionalize(f), x)[1](ALONG)[0]]
    for pull in pulls:
        torch.testing.assert_close((pull(SQUARE) * ALONG).sum(), of_direction, atol=1e-7, rtol=1e-6)


SECOND = {
    "hessian": lambda f, within: within(tl.hessian(lambda x: f(x).sin().sum())),
    "jacrev of jacfwd": lambda f, within: within(tl.jacrev(tl.jacfwd(f))),
    "vmap of grad": lambda f, within: within(
        lambda x: tl.vmap(tl.grad(lambda x: f(x).sin().sum()))(torch.stack([x, x.flip(0)]))
    ),
    "linearize": lambda f, within: within(lambda x: tl.linearize(f, x)[1](ALONG)),
}


@parts
@removes
@pytest.mark.parametrize("nest", SECOND.values(), ids=SECOND)
def test_nests_of_writes_to_parts_are_as_without_it(f, remove, nest):
    if f is to_strided_memory_by_a_view and nest is not SECOND["linearize"]:
        pytest.skip("torch's as_strided of a batch reads no memory before the tensor")
    expected = nest(f, lambda g: g)(SQUARE)
    result = nest(f, functools.partial(tl.functionalize, remove=remove))(SQUARE)
    torch.testing.assert_close(result, expected)


@others
@removes
@pytest.mark.parametrize("f", [lambda x: x * x.detach(), lambda x: x * x.conj().real])
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
def test_views_without_memory_have_the_derivatives_of_views(f, remove, other):
    x = X.double()
    expected = other(tl, f)(x)
    torch.testing.assert_close(other(tl, tl.functionalize(f, remove=remove))(x), expected)
    torch.testing.assert_close(tl.functionalize(other(tl, f), remove=remove)(x), expected)


class Tripled(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.mul_(3)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_dirty(inputs[0])

    @staticmethod
    def backward(ctx, g):
        return 3 * g


def tripled_and_read(x):
    y = x * x
    Tripled.apply(y)
    return (y * x).sum()


@removes
def test_writes_to_a_sample_are_visible(remove):
    functionalize = functools.partial(tl.functionalize, remove=remove)
    x = X.double()
    torch.testing.assert_close(tl.vmap(functionalize(tripled_and_read))(x), 3 * (x**3).sum(1))
    for nest in (
        tl.vmap(functionalize(tl.grad(tripled_and_read))),
        tl.vmap(tl.grad(functionalize(tripled_and_read))),
        functionalize(tl.vmap(tl.grad(tripled_and_read))),
    ):
        torch.testing.assert_close(nest(x), 9 * x**2)


def test_packed_functional_tensor_keeps_its_history():
    gradient = tl.functionalize(tl.grad(lambda x: (x**3).sum()))
    x = X.double().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach(), lambda t: t):
        result = gradient(x)
    torch.testing.assert_close(torch.autograd.grad(result.sum(), x)[0], 6 * x.detach())


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_torchs_checkpoint_around_it(use_reentrant):
    gradient = tl.functionalize(tl.grad(lambda x: (x**3).sum()))
    x = X.double().requires_grad_()
    checkpoint(gradient, x, use_reentrant=use_reentrant).sum().backward()
    torch.testing.assert_close(x.grad, 6 * x.detach())


class OldSine(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0].cos()


class NewSine(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0].cos()


def written_before(sine, x):
    y = x.clone()
    y.mul_(x)
    return sine(y).sum()


def written_through_a_view(sine, x):
    y = x * x
    y[1:].mul_(2)
    return sine(y).sum()


def a_view_of_what_is_written(sine, x):
    y = x * x
    row = y[1:]
    y.mul_(x)
    return sine(row).sum()


def written_after(sine, x):
    y = sine(x * x)
    y.add_(x)
    return (y * x).sum()


def kept_on_cpu(f):
    def call(x):
        with save_on_cpu():
            return f(x)

    return call


SINES = {"sin": torch.sin, "an old Function": OldSine.apply, "a Function": NewSine.apply}
HOOKED = {
    "torch's checkpoint": lambda f: lambda x: checkpoint(f, x, use_reentrant=False),
    "torch's reentrant checkpoint": lambda f: lambda x: checkpoint(f, x, use_reentrant=True),
    "checkpoint": tl.checkpoint,
    "save_on_cpu": kept_on_cpu,
}
HOOKED_NESTS = {
    "functionalize(grad)": lambda functionalize, f: functionalize(tl.grad(f)),
    "functionalize(jacrev(grad))": lambda functionalize, f: functionalize(tl.jacrev(tl.grad(f))),
    "functionalize(vmap(grad))": lambda functionalize, f: (
        lambda x: functionalize(tl.vmap(tl.grad(f)))(torch.stack((x, x.cos())))
    ),
    "grad(functionalize(grad))": lambda functionalize, f: tl.grad(
        lambda x: functionalize(tl.grad(f))(x).sum()
    ),
    "grad(functionalize)": lambda functionalize, f: tl.grad(functionalize(f)),
}


@removes
@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("sine", SINES.values(), ids=SINES)
@pytest.mark.parametrize(
    "f", [written_before, written_through_a_view, a_view_of_what_is_written, written_after]
)
@pytest.mark.parametrize("hooked", HOOKED.values(), ids=HOOKED)
@pytest.mark.parametrize("nest", HOOKED_NESTS.values(), ids=HOOKED_NESTS)
def test_saved_functional_tensors_that_were_written(nest, hooked, f, sine, remove):
    x = X.double()
    functionalize = functools.partial(tl.functionalize, remove=remove)
    expected = nest(lambda f: f, lambda x: f(sine, x))(x)
    found = nest(functionalize, hooked(lambda x: f(sine, x)))(x)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("outer", [tl, torch.func], ids=["ours", "torch.func's"])
def test_functionalize_directly_inside_functionalize_is_refused(outer):
    before = ambient()
    with pytest.raises(RuntimeError, match=r"torchlayers: functionalize can't be applied directly"):
        outer.functionalize(tl.functionalize(writing))(X)
    assert ambient() == before


def written(x):
    """A function that is functionalized inside another functionalize, or contains one."""
    y = x.clone()
    y[...].mul_(2)
    return y


NESTS = {
    "under vmap": lambda tf: tf.vmap(tf.functionalize(written)),
    "under grad": lambda tf: tf.grad(lambda x: tf.functionalize(written)(x).sum()),
    "under jvp": lambda tf: lambda x: tf.jvp(tf.functionalize(written), (x,), (x,)),
    "captured": lambda tf: lambda x: tf.vmap(tf.functionalize(lambda y: written(y) + x.sum()))(x),
    "captured and written": lambda tf: (
        lambda x: (
            tf.vmap(tf.functionalize(lambda y: written(y) + x.add_(1)))(x.clone()),
            x.clone(),
        )
    ),
    "argument written": lambda tf: (
        lambda x: (tf.vmap(tf.functionalize(torch.Tensor.sin_))(x), x.clone())
    ),
}


@pytest.mark.parametrize("nest", NESTS.values(), ids=NESTS)
def test_functionalize_around_another_transform_around_functionalize(nest):
    agree(lambda tf: tf.functionalize(nest(tf))(X.clone()))


def scaled_by_new(x):
    return x * torch.ones(())


def written_to_new(x):
    y = torch.zeros(3)
    y[1:].add_(x[1:])
    return y


def new_alone(x):
    y = torch.full((2,), 3.0)
    return y.mul_(2), torch.tensor(1.0)


@pytest.mark.parametrize("f", [scaled_by_new, written_to_new, new_alone])
@removes
def test_tensors_created_in_two_functionalize_with_a_vmap_in_between(f, remove):
    inner = tl.vmap(tl.functionalize(f, remove=remove))
    result = tl.functionalize(inner, remove=remove)(X)
    torch.testing.assert_close(result, tl.vmap(f)(X))


class Doubled(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return 2 * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return 2 * g


@pytest.mark.parametrize(("function", "factor"), [(Doubled.apply, 2), (lambda x: x, 10)])
def test_outer_functionalize_keeps_tracking_its_tensors(function, factor):
    def f(x):
        tracked = x.clone()
        (same,) = tl.vjp(tl.functionalize(lambda y: (y, function(tracked))), x)[0][1:]
        tracked.mul_(10)
        return same

    torch.testing.assert_close(tl.functionalize(f)(X), factor * X)


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


def doubled(x):
    """A function of the tangent that it sees."""
    primal, tangent = forward_ad.unpack_dual(x * x)
    return primal if tangent is None else primal + 10 * tangent.sin()


def made_again(x):
    primal, tangent = forward_ad.unpack_dual(x)
    y = forward_ad.make_dual(primal, primal * 0 + 7 if tangent is None else tangent * 2)
    return y * y


@removes
@pytest.mark.parametrize("f", [doubled, made_again])
@pytest.mark.parametrize(
    "call",
    [
        lambda f, x: tl.jvp(f, (x,), (x.cos(),)),
        lambda f, x: tl.jvp(tl.vmap(f), (x,), (x.cos(),)),
        lambda f, x: tl.grad(lambda x: tl.jvp(f, (x,), (x.cos(),))[1].sum())(x),
        lambda f, x: tl.vmap(lambda x: tl.jvp(f, (x,), (x.cos(),)))(x),
    ],
    ids=["jvp", "jvp of vmap", "grad of jvp", "vmap of jvp"],
)
def test_tangents_are_seen_inside(call, f, remove):
    found = call(tl.functionalize(f, remove=remove), X)
    torch.testing.assert_close(found, call(f, X))


def test_a_dual_level_is_entered_inside():
    def f(x):
        with forward_ad.dual_level():
            y = forward_ad.make_dual(x, x.cos())
            return forward_ad.unpack_dual(y * y).tangent

    torch.testing.assert_close(tl.functionalize(f)(X), 2 * X * X.cos())
    torch.testing.assert_close(tl.vmap(tl.functionalize(f))(X), 2 * X * X.cos())


@pytest.mark.parametrize(
    "part",
    [
        lambda x: forward_ad.unpack_dual(x).primal,
        lambda x: forward_ad.unpack_dual(x).tangent,
        lambda x: forward_ad.make_dual(torch.zeros_like(x), forward_ad.unpack_dual(x).primal),
    ],
    ids=["the primal", "the tangent", "a dual tensor"],
)
def test_a_part_of_a_dual_tensor_is_not_written_to(part):
    def f(x):
        part(x).mul_(2)
        return x.sin()

    with pytest.raises(RuntimeError, match=r"make_dual or unpack_dual .* Write to a clone"):
        tl.jvp(tl.functionalize(f), (X.clone(),), (X.cos(),))


def seeded(f, *args):
    torch.manual_seed(3)
    return f(*args)


NESTS_OF_RRELU = {
    "grad": lambda f, x: tl.grad(lambda x: f(x).sum())(x),
    "vjp": lambda f, x: tl.vjp(f, x)[1](torch.ones_like(x))[0],
    "jvp": lambda f, x: tl.jvp(f, (x,), (torch.ones_like(x),))[1],
    "of jvp": lambda f, x: tl.vjp(lambda x: tl.jvp(f, (x,), (x,))[1], x)[1](torch.ones_like(x))[0],
    "of vjp": lambda f, x: tl.grad(lambda x: tl.vjp(f, x)[1](x)[0].sum())(x),
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("remove", ["mutations", "mutations_and_views"])
@pytest.mark.parametrize("nest", NESTS_OF_RRELU.values(), ids=NESTS_OF_RRELU)
def test_slopes_of_rrelu_are_those_that_were_drawn(nest, remove, training):
    """torch's derivative of the operator without a write reads what the noise was before."""
    x = torch.tensor([-1.0, -0.5, 2.0, -3.0], dtype=torch.float64)

    def rrelu(x):
        return torch.nn.functional.rrelu(x.sin() * 2, 0.1, 0.9, training=training)

    functionalize = functools.partial(tl.functionalize, remove=remove)
    slopes = seeded(rrelu, x) / (x.sin() * 2)
    expected = nest(lambda x: x.sin() * 2 * slopes, x)
    torch.testing.assert_close(seeded(nest, functionalize(rrelu), x), expected)
    torch.testing.assert_close(seeded(functionalize(lambda x: nest(rrelu, x)), x), expected)


def on_a_leaf(f, x):
    leaf = x.clone().requires_grad_()
    return torch.autograd.grad(f(leaf).sum(), leaf)[0]


def by_checkpoint_of_torch(f):
    return lambda x: torch.utils.checkpoint.checkpoint(f, x, use_reentrant=False)


def scalar(f):
    return lambda x: f(x).pow(3).sum()


def on_samples(f):
    return tl.vmap(f, randomness="different")


READS_OF_WHAT_IS_SAVED = {
    "checkpoint": lambda f, x: tl.grad(scalar(tl.checkpoint(f)))(x),
    "hvp of checkpoint": lambda f, x: tl.hvp(scalar(tl.checkpoint(f)), (x,), (x,)),
    "in a checkpoint": lambda f, x: tl.checkpoint(tl.grad(scalar(f)))(x),
    "torch's checkpoint": lambda f, x: tl.grad(scalar(by_checkpoint_of_torch(f)))(x),
    "in torch's checkpoint": lambda f, x: by_checkpoint_of_torch(tl.grad(scalar(f)))(x),
    "vmap of checkpoint": lambda f, x: on_samples(tl.grad(scalar(tl.checkpoint(f))))(x),
    "checkpoint of vmap": lambda f, x: tl.grad(scalar(tl.checkpoint(on_samples(f))))(x),
    "leaf": on_a_leaf,
    "leaf in vmap": lambda f, x: on_a_leaf(on_samples(f), x),
    "grad in a leaf": lambda f, x: on_a_leaf(tl.grad(scalar(f)), x),
}


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("remove", ["mutations", "mutations_and_views"])
@pytest.mark.parametrize("nest", READS_OF_WHAT_IS_SAVED.values(), ids=READS_OF_WHAT_IS_SAVED)
def test_slopes_of_rrelu_are_saved_after_the_draw(nest, remove, in_place):
    """Without functionalize the saved noise and the one that is drawn share memory."""
    x = torch.tensor([-1.0, -0.5, 2.0, -3.0], dtype=torch.float64)

    def rrelu(x):
        y = x.sin() * 2
        return torch.nn.functional.rrelu(y, 0.1, 0.9, training=True, inplace=in_place) * x

    found = seeded(tl.functionalize(lambda x: nest(rrelu, x), remove=remove), x)
    torch.testing.assert_close(found, seeded(nest, rrelu, x))


WRITES = {
    "square_": lambda y: y.square_(),
    "multiply_": lambda y: y.multiply_(2.5),
    "subtract_": lambda y: y.subtract_(y * 2),
    "divide_": lambda y: y.divide_(3, rounding_mode="floor"),
    "negative_": lambda y: y.negative_(),
    "absolute_": lambda y: y.absolute_(),
    "clip_": lambda y: y.clip_(0.1, 0.5),
    "arctan2_": lambda y: y.arctan2_(torch.ones_like(y)),
    "float_power_": lambda y: y.float_power_(2),
    "polygamma_": lambda y: y.polygamma_(1),
    "less_": lambda y: y.less_(0.5),
    "fill_diagonal_": lambda y: y.fill_diagonal_(3.0),
    "iand": lambda y: y * (y > 0.2).__iand__(y < 0.5),
    "selu_": lambda y: torch.selu_(y),
    "relu6_": lambda y: torch.nn.functional.relu6(y, inplace=True),
    "rrelu_": lambda y: torch.nn.functional.rrelu(y, inplace=True),
    "alpha_dropout_": lambda y: torch.nn.functional.alpha_dropout(y, training=True, inplace=True),
}
RESULTS_GIVEN = {  # autograd differentiates no out=, and functionalize leaves none
    "matmul": lambda y, **out: torch.matmul(y, y, **out),
    "quantile": lambda y, **out: torch.quantile(y, 0.3, dim=0, **out),
}
WAYS_TO_WRITE = {
    "": lambda f, x: f(x),
    "grad": lambda f, x: tl.grad(lambda x: f(x).sum())(x),
    "vmap": lambda f, x: tl.vmap(f, randomness="different")(torch.stack([x, x + 1])),
}


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("remove", ["mutations", "mutations_and_views"])
@pytest.mark.parametrize("nest", WAYS_TO_WRITE.values(), ids=WAYS_TO_WRITE)
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_composite_operators_that_write(write, nest, remove):
    """torch's functionalization has no kernel for these, and refuses them."""
    x = torch.linspace(-0.5, 0.9, 9, dtype=torch.float64).reshape(3, 3)

    def f(x):
        y = x.sin()
        return write(y) * y.cos()

    functionalize = functools.partial(tl.functionalize, remove=remove)
    expected = seeded(nest, f, x)
    torch.testing.assert_close(seeded(nest, functionalize(f), x), expected)
    torch.testing.assert_close(seeded(functionalize(lambda x: nest(f, x)), x), expected)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("nest", WAYS_TO_WRITE.values(), ids=WAYS_TO_WRITE)
@pytest.mark.parametrize("compute", RESULTS_GIVEN.values(), ids=RESULTS_GIVEN)
def test_composite_operators_with_out(compute, nest):
    x = torch.linspace(-0.5, 0.9, 9, dtype=torch.float64).reshape(3, 3)

    def f(x):
        y = x.sin()
        return compute(y, out=torch.empty_like(compute(y))) * y.cos()

    found = nest(tl.functionalize(f), x)
    torch.testing.assert_close(found, nest(lambda x: compute(x.sin()) * x.sin().cos(), x))
