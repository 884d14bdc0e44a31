"""differentiate for FX graphs: their sources, their supported content, and errors."""

import copy
import gc
import re
import time

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn
from torch._higher_order_ops import scan, while_loop
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

import torchlayers
from benchmarks.graph_nodes import chain
from tests.support.make_fx import make_fx
from torchlayers.core import pytree
from torchlayers.errors import ArgnumsError
from torchlayers.graph import GraphError, differentiate
from torchlayers.graph.fx import vjp_rules

DOUBLE = torch.float64


def randn(*shape, requires_grad=False):
    return torch.randn(*shape, dtype=DOUBLE, requires_grad=requires_grad)


class Layer(nn.Module):
    """Has parameters, buffers, a constant, a default argument, and a dict of results."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 4, dtype=DOUBLE)
        self.norm = nn.BatchNorm1d(4, dtype=DOUBLE)
        self.scale = torch.full((4,), 0.5, dtype=DOUBLE)

    def forward(self, x, power=2.0):
        y = self.norm(self.linear(x)).tanh() * self.scale
        return {"y": y * power, "all": [y.sum(), y.relu()]}


def assert_same_gradients(found, expected, found_inputs, expected_inputs):
    torch.testing.assert_close(found, expected)
    assert pytree.flatten(found)[1] == pytree.flatten(expected)[1]
    leaves = [[o for o in pytree.leaves(out)] for out in (found, expected)]
    cotangents = [torch.randn_like(leaf) for leaf in leaves[0]]
    torch.testing.assert_close(
        torch.autograd.grad(leaves[0], found_inputs, cotangents),
        torch.autograd.grad(leaves[1], expected_inputs, cotangents),
    )


def by_symbolic_trace(module, x):
    return differentiate(fx.symbolic_trace(module), (x,))


def by_export(module, x):
    return differentiate(torch.export.export(module, (x,)))


def by_exported_module(module, x):
    return differentiate(torch.export.export(module, (x,)).module())


@pytest.mark.parametrize("by", [by_symbolic_trace, by_export, by_exported_module])
@pytest.mark.parametrize("training", [True, False])
def test_a_module_with_all_that_it_holds(by, training):
    module = Layer().train(training)
    reference = copy.deepcopy(module)
    x = randn(5, 3, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    gradient = by(module, x.detach())
    assert_same_gradients(
        gradient(x), reference(y), [x, *module.parameters()], [y, *reference.parameters()]
    )
    torch.testing.assert_close(dict(module.named_buffers()), dict(reference.named_buffers()))


def test_shapes_from_torchs_shape_propagation():
    traced = fx.symbolic_trace(nn.Linear(3, 4, dtype=DOUBLE))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        FakeTensorProp(traced, mode).propagate(randn(5, 3))
    assert torch.autograd.gradcheck(differentiate(traced), (randn(5, 3, requires_grad=True),))


def test_parameters_are_read_at_every_call():
    module = nn.Linear(2, 1)
    gradient = differentiate(torch.export.export(module, (torch.ones(3, 2),)))
    with torch.no_grad():
        module.weight.zero_()
        module.bias.fill_(7.0)
    torch.testing.assert_close(gradient(torch.ones(3, 2)), torch.full((3, 1), 7.0))


def test_arguments_by_name_and_by_default():
    module = Layer()
    gradient = differentiate(fx.symbolic_trace(module), (randn(5, 3), 3.0))
    x = randn(5, 3)
    torch.testing.assert_close(gradient(power=3.0, x=x), copy.deepcopy(module)(x, power=3.0))


def test_pytrees_of_arguments():
    def function(state, scale):
        return [state["w"] @ state["x"][0], scale * state["x"][1]]

    state = {"w": randn(3, 2), "x": (randn(2), randn(4))}
    gradient = differentiate(make_fx(function)(state, randn(1)))
    scale = randn(1)
    torch.testing.assert_close(gradient(state, scale), function(state, scale))
    _, captures = gradient.forward(state, scale)
    assert len(gradient.backward(captures, randn(3), randn(4))) == 4


@pytest.mark.parametrize(
    "make",
    [
        lambda: make_fx(lambda x: (x.sin() * 2).add_(1).sum())(randn(3)),
        lambda: fx.symbolic_trace(Layer()),
        lambda: torch.export.export(Layer(), (randn(5, 3),)),
    ],
    ids=["make_fx", "symbolic_trace", "export"],
)
def test_input_graph_is_not_changed(make):
    given = make()
    module = given if isinstance(given, fx.GraphModule) else given.graph_module
    state = {name: value.clone() for name, value in module.state_dict().items()}
    before = str(module.graph), module.code, sorted(module._modules)
    differentiate(given, (randn(5, 3),) if isinstance(given, fx.GraphModule) else None)
    assert before == (str(module.graph), module.code, sorted(module._modules))
    torch.testing.assert_close(dict(module.state_dict()), state)


def test_in_place_operators_on_the_graphs_own_values():
    def function(x):
        y = x.sin()
        y[1:] *= 2
        y.mul_(x)
        return y.cos_()

    x = randn(4, requires_grad=True)
    assert torch.autograd.gradcheck(differentiate(make_fx(function)(randn(4))), (x,))
    torch.testing.assert_close(differentiate(make_fx(function)(x.detach()))(x), function(x))


def writes_to_its_argument(x, y):
    x.add_(y.sin())
    z = x.sum() * y.cos()
    x[0].add_(z.sum())
    return z, x


def test_in_place_operators_on_an_argument():
    differentiated = differentiate(make_fx(writes_to_its_argument)(randn(3), randn(3)))
    leaves = randn(3, requires_grad=True), randn(3, requires_grad=True)

    def run(function):
        x = leaves[0] * 1
        z, returned = function(x, leaves[1])
        assert returned is x
        return x, z, torch.autograd.grad((z * x).sum(), leaves)

    torch.testing.assert_close(run(differentiated), run(writes_to_its_argument))


def test_forward_writes_to_an_argument_and_backward_takes_its_cotangent():
    gradient = differentiate(make_fx(lambda x: x.mul_(2) * 3)(randn(3)))
    x = torch.ones(3, dtype=DOUBLE, requires_grad=True)
    outputs, captures = gradient.forward(x)
    assert (x.tolist(), outputs.tolist()) == ([2.0] * 3, [6.0] * 3)
    ones = torch.ones_like(x)
    (found,) = gradient.backward(captures, ones, 10 * ones)
    assert found.tolist() == [2.0 * (3 + 10)] * 3


@pytest.mark.parametrize("transform", [torchlayers.grad, torch.func.hessian])
def test_a_write_to_an_argument_under_transforms(transform):
    differentiated = differentiate(make_fx(writes_to_its_argument)(randn(3), randn(3)))

    def transformed(function):
        loss = lambda x, y: sum(leaf.sin().sum() for leaf in function(x * 1, y))  # noqa: E731
        return torchlayers.vmap(transform(loss), in_dims=(0, None))

    x, y = randn(4, 3), randn(3)
    torch.testing.assert_close(
        transformed(differentiated)(x, y), transformed(writes_to_its_argument)(x, y)
    )


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x.exp(), x.exp()),
        lambda x: (x.exp().view(-1), x.exp()),
        lambda x: (torch.empty_like(x).copy_(x), x),
        lambda x: (x.clone(), x.clone()),
    ],
    ids=["equal results", "views of equal results", "a copy", "clones"],
)
def test_separate_results_do_not_share_memory(function):
    x = randn(3)
    first, second = differentiate(make_fx(function)(x))(x)
    expected = second.clone()
    first.add_(1)
    torch.testing.assert_close(second, expected)


def test_no_grad_blocks_gradients():
    class Cut(nn.Module):
        def forward(self, x):
            with torch.no_grad():
                scale = x.exp()
            return x * scale

    x = randn(3, requires_grad=True)
    gradient = differentiate(torch.export.export(Cut(), (x.detach(),)))
    (found,) = torch.autograd.grad(gradient(x).sum(), x)
    torch.testing.assert_close(found, x.exp().detach())


def test_argnums_chooses_inputs():
    function = make_fx(lambda x, w, b: x @ w + b)(randn(2, 3), randn(3, 4), randn(4))
    assert differentiate(function).output_vjps == (0, 1, 2)
    chosen = differentiate(function, argnums=(2, 1))
    assert chosen.output_vjps == (1, 2)
    assert chosen.captured_inputs == (0,)
    assert differentiate(function, argnums=-1).output_vjps == (2,)
    assert differentiate(function, argnums=-1).captured_inputs == ()


def test_complex_numbers():
    x = torch.randn(3, dtype=torch.complex128, requires_grad=True)
    function = make_fx(lambda x: torch.view_as_real(x.conj() * x.exp()).sin() + x.abs()[:, None])
    assert torch.autograd.gradcheck(differentiate(function(x.detach())), (x,))


@pytest.mark.parametrize("save", ["min-compute", "min-memory"])
def test_higher_order_by_differentiating_df(save):
    first = differentiate(make_fx(lambda x, w: (x @ w).tanh())(randn(2, 3), randn(3, 2)), save=save)
    second = differentiate(first.df, save=save)
    third = differentiate(second.df, save=save)
    for gradient in (second, third):
        placeholders = [n for n in gradient.f.graph.nodes if n.op == "placeholder"]
        inputs = [randn(*n.meta["val"].shape, requires_grad=True) for n in placeholders]
        assert torch.autograd.gradcheck(gradient, inputs)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.silu(x),
        lambda x: F.layer_norm(x, (4,)),
        lambda x: F.nll_loss(x.log_softmax(-1), torch.tensor([0, 1, 3])),
        lambda x: torch.fft.rfft(x).abs(),
    ],
    ids=["silu", "layer_norm", "nll_loss", "rfft"],
)
def test_operators_of_backwards_that_have_no_derivative_are_decomposed(function):
    x = randn(3, 4)
    first = differentiate(make_fx(function)(x))
    outputs, captures = first.forward(x)
    inputs = [torch.randn_like(outputs), *captures]
    second = differentiate(first.df)
    for value in inputs:
        value.requires_grad_(value.is_floating_point() or value.is_complex())
    assert torch.autograd.gradcheck(second, inputs)
    assert torch.autograd.gradgradcheck(first, (x.requires_grad_(),))


def test_symbolic_shapes():
    def function(x, w):
        return (x @ w).relu().mean(0) / x.shape[0]

    gradient = differentiate(make_fx(function, tracing_mode="symbolic")(randn(5, 3), randn(3, 4)))
    for length in (5, 7):
        inputs = randn(length, 3, requires_grad=True), randn(3, 4, requires_grad=True)
        torch.testing.assert_close(gradient(*inputs), function(*inputs))
        assert torch.autograd.gradcheck(gradient, inputs)


def test_dynamic_dimensions_of_an_export():
    module = nn.Sequential(nn.Linear(3, 4), nn.Softmax(-1))
    batch = torch.export.Dim("batch", min=2)
    exported = torch.export.export(module, (torch.randn(5, 3),), dynamic_shapes=({0: batch},))
    gradient = differentiate(exported)
    for length in (5, 9):
        x = torch.randn(length, 3)
        parameters = list(module.parameters())
        assert_same_gradients(gradient(x), module(x), parameters, parameters)


class Branches(nn.Module):
    def forward(self, x, flag):
        (y,) = torch.cond(
            flag.sum() > 0, lambda x: (x.sin() * x,), lambda x: (x.cos() + x.sum(),), (x,)
        )
        return y.exp()


def test_cond():
    x = randn(4)
    gradient = differentiate(torch.export.export(Branches(), (x, torch.ones(1))), argnums=0)
    for flag in (torch.ones(1), -torch.ones(1)):
        torch.testing.assert_close(gradient(x, flag), Branches()(x, flag))
        assert torch.autograd.gradcheck(
            lambda x, flag=flag: gradient(x, flag), (x.clone().requires_grad_(),)
        )


class DrawsInABranch(nn.Module):
    def __init__(self, has_derivative):
        super().__init__()
        self.has_derivative = has_derivative

    def forward(self, x):
        given = x if self.has_derivative else x.detach()
        draw = torch.cond(
            x.sum() > 0, lambda x: x * torch.rand(4), lambda x: torch.rand(4) - x, (given,)
        )
        return (x * draw).sin()


def test_draws_in_a_branch_without_a_derivative_are_saved():
    x = torch.tensor([0.1, 0.2, 0.3, 0.4], requires_grad=True)
    module = DrawsInABranch(has_derivative=False)
    gradient = differentiate(torch.export.export(module, (x,)), save="min-memory")
    results = []
    for each in (gradient, module):
        torch.manual_seed(0)
        y = each(x)
        results.append((y, *torch.autograd.grad(y.sum(), x)))
    assert gradient.draws_random_numbers
    torch.testing.assert_close(*results)


def test_draws_in_a_branch_with_a_derivative_are_refused():
    exported = torch.export.export(DrawsInABranch(has_derivative=True), (torch.ones(4),))
    with pytest.raises(GraphError, match=r"node `cond` .*test_fx\.py:\d+, .*draws random numbers"):
        differentiate(exported)


class Scanned(nn.Module):
    """A loop with a fixed number of steps."""

    def forward(self, start, xs):
        def step(carry, x):
            return carry * x + 1, carry.sin() * x

        return scan(step, start, xs, dim=0)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_scan():
    inputs = randn(3), randn(5, 3)
    gradient = differentiate(torch.export.export(Scanned(), inputs))
    assert torch.autograd.gradcheck(gradient, tuple(x.requires_grad_() for x in inputs))


class Loop(nn.Module):
    def forward(self, x):
        def body(i, x):
            return i + 1, x.sin()

        return while_loop(lambda i, x: i < 3, body, (torch.tensor(0), x))[1] * 2


def test_while_loop_is_refused_by_name_and_line():
    exported = torch.export.export(Loop(), (randn(4),))
    with pytest.raises(
        GraphError, match=r"node `while_loop` .*test_fx\.py:\d+, `.*its number of iterations"
    ):
        differentiate(exported)


def test_while_loop_that_needs_no_derivative():
    class Counted(nn.Module):
        def forward(self, x, start):
            (count,) = while_loop(lambda i: i < 3, lambda i: (i + 1,), (start,))
            return x.sin() * count

    x, start = randn(4), torch.tensor(0)
    gradient = differentiate(torch.export.export(Counted(), (x, start)))
    assert torch.autograd.gradcheck(lambda x: gradient(x, start), (x.requires_grad_(),))


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="needs oneDNN")
def test_a_recurrent_layer_of_onednn_is_refused():
    graph = make_fx(nn.LSTM(4, 5))(torch.randn(6, 2, 4))
    with pytest.raises(
        GraphError, match=r"mkldnn_rnn_layer.* Use torch.export, which decomposes it"
    ):
        differentiate(graph)


@pytest.mark.filterwarnings("ignore:The tensor attributes self._flat_weights:UserWarning")
def test_a_recurrent_layer():
    lstm, x = nn.LSTM(4, 5), torch.randn(6, 2, 4)
    parameters = list(lstm.parameters())
    gradient = differentiate(torch.export.export(lstm, (x,)))
    assert_same_gradients(gradient(x)[0], lstm(x)[0], parameters, parameters)


def test_dropout_draws_one_mask_for_both_graphs():
    x = torch.ones(200, dtype=DOUBLE, requires_grad=True)
    function = make_fx(lambda x: F.dropout(x, 0.5))(x.detach())
    for save in ("min-compute", "min-memory"):
        y = differentiate(function, save=save)(x)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        torch.testing.assert_close(gradient, y.detach())
        assert 0 < (gradient == 0).sum() < 200


def test_each_operator_is_traced_once_per_shapes(monkeypatch):
    def function(x, w):
        for _ in range(100):
            x = (x @ w).tanh() + x * 0.5
        return x.sum()

    recorded = []
    record = vjp_rules.Rules._record
    monkeypatch.setattr(
        vjp_rules.Rules, "_record", lambda self, *a: recorded.append(a) or record(self, *a)
    )
    gradient = differentiate(make_fx(function)(randn(3, 3), randn(3, 3)))
    assert len(gradient.f.graph.nodes) > 400
    assert len(recorded) < 12


def test_garbage_collector_state_is_restored():
    graph = make_fx(torch.sin)(randn(3))
    differentiate(graph)
    assert gc.isenabled()
    gc.disable()
    try:
        differentiate(graph)
        assert not gc.isenabled()
    finally:
        gc.enable()


def nothing_depends(x):
    return x.detach().sin(), (x > 0)


def turns_its_argument(x):
    return x.t_() * 2


def written_past_autograd(x):
    y = x * 2
    y.detach()[0] = 3.0
    return y + x


def has_no_derivative(x):
    return torch.igamma(x, x * 2)


MISUSES = {
    "no output depends on an input": (
        lambda: differentiate(make_fx(nothing_depends)(randn(2))),
        GraphError,
        "no output of the graph depends on its inputs",
    ),
    "a new shape for an argument": (
        lambda: differentiate(make_fx(turns_its_argument)(randn(2, 3))),
        GraphError,
        "node `t_` (aten.t_.default), which has no recorded source line, changes the shape of the",
    ),
    "a write to an argument past autograd": (
        lambda: differentiate(make_fx(lambda x: x.detach().mul_(2) + x)(randn(2))),
        GraphError,
        "node `mul_` (aten.mul_.Tensor), which has no recorded source line, writes to a detached "
        "alias of `",
    ),
    "a write past autograd to what is read later": (
        lambda: differentiate(make_fx(written_past_autograd)(randn(2))),
        GraphError,
        "writes to a detached alias of `mul`, which autograd does not track, although gradients",
    ),
    "shapes that no one knows": (
        lambda: differentiate(fx.symbolic_trace(lambda x: x.sin())),
        GraphError,
        "the graph has to be retraced, but has no recorded value for its input `x`. Pass example",
    ),
    "an operator without derivative": (
        lambda: differentiate(fx.symbolic_trace(has_no_derivative), (randn(2),)),
        GraphError,
        "(aten.igamma.default), which has no recorded source line, can't be differentiated: ",
    ),
    "argnums out of range": (
        lambda: differentiate(make_fx(torch.sin)(randn(2)), argnums=1),
        ArgnumsError,
        "differentiate: argnums=1 names argument 1, but the call has 1 positional argument",
    ),
    "argnums of integers": (
        lambda: differentiate(make_fx(torch.mul)(randn(2), torch.ones(2).long()), argnums=1),
        GraphError,
        "argnums names input 1 (`arg1_1`), which is neither floating-point nor complex",
    ),
    "other shapes": (
        lambda: differentiate(make_fx(torch.sin)(randn(2)))(randn(3)),
        GraphError,
        "of shape (2,) and torch.float64; got (3,) and torch.float64",
    ),
    "no tensor": (
        lambda: differentiate(make_fx(torch.sin)(randn(2)))(1.0),
        GraphError,
        "is a tensor; got float",
    ),
    "an argument too few": (
        lambda: differentiate(make_fx(torch.mul)(randn(2), randn(2)))(randn(2)),
        GraphError,
        "missing a required argument",
    ),
    "another structure": (
        lambda: differentiate(make_fx(lambda d: d["a"] * d["b"])(dict(a=randn(2), b=randn(2))))(
            dict(a=randn(2), c=randn(2))
        ),
        GraphError,
        "was differentiated for 2 inputs",
    ),
    "another number than is in the graph": (
        lambda: differentiate(fx.symbolic_trace(Layer()), (randn(5, 3), 3.0))(randn(5, 3), 2.0),
        GraphError,
        "was differentiated for `power`=3.0, which is now a constant in it; got 2.0",
    ),
    "example_inputs that is no tuple": (
        lambda: differentiate(fx.symbolic_trace(Layer()), randn(5, 3)),
        TypeError,
        "example_inputs must be a tuple of all arguments of a call; got Tensor",
    ),
    "example_inputs that are no call": (
        lambda: differentiate(fx.symbolic_trace(Layer()), (randn(5, 3), 1.0, 2.0)),
        GraphError,
        "example_inputs are not the arguments of a call of the graph: too many positional",
    ),
    "inside a transform": (
        lambda: torchlayers.vmap(lambda x: differentiate(make_fx(torch.sin)(x)))(randn(2, 3)),
        GraphError,
        "can't be differentiated inside a transform (vmap, level 1). Do it outside",
    ),
    "save is no policy": (
        lambda: differentiate(make_fx(torch.sin)(randn(2)), save="all"),
        ValueError,
        "save must be one of 'min-compute', 'min-memory'; got 'all'",
    ),
    "no graph": (
        lambda: differentiate(torch.sin),
        TypeError,
        "got builtin_function_or_method. Trace it first",
    ),
}


@pytest.mark.parametrize("misuse", MISUSES.values(), ids=MISUSES.keys())
def test_misuse_is_rejected(misuse):
    call, error, message = misuse
    with pytest.raises(error, match=re.escape(message)) as raised:
        call()
    assert str(raised.value).startswith("torchlayers: ")


def traced_with_lines(module):
    tracer = fx.Tracer()
    tracer.record_stack_traces = True
    return fx.GraphModule(module, tracer.trace(module))


@pytest.mark.parametrize(
    "make",
    [traced_with_lines, lambda module: torch.export.export(module, (randn(2),))],
    ids=["symbolic_trace", "export"],
)
def test_an_error_names_the_source_line(make):
    class Gamma(nn.Module):
        def forward(self, x):
            y = x.sin()
            return torch.igamma(y, x)

    with pytest.raises(
        GraphError,
        match=r"node `igamma` \(aten\.igamma\.default\), in test_fx\.py:\d+, "
        r"`return torch\.igamma\(y, x\)`, can't be differentiated: the derivative for",
    ):
        differentiate(make(Gamma()), (randn(2),))


@pytest.mark.parametrize(
    "mode",
    [
        torch.no_grad,
        torch.inference_mode,
        lambda: torch.autocast("cpu", torch.bfloat16),
        lambda: torch.device("meta"),
    ],
    ids=["no_grad", "inference_mode", "autocast", "default device"],
)
def test_outer_modes_do_not_affect_differentiate(mode):
    graph = make_fx(lambda x, w: (x @ w).tanh().sum(0))(torch.ones(2, 3), torch.ones(3, 4))
    expected = str(differentiate(graph))
    with mode():
        assert str(differentiate(graph)) == expected


@pytest.mark.full
def test_two_thousand_nodes_in_less_than_a_second():
    times = []
    graph = chain(2000)
    assert len(graph.graph.nodes) > 2000
    for _ in range(5):
        start = time.process_time()
        differentiate(graph)
        times.append(time.process_time() - start)
    assert min(times) < 1.0
