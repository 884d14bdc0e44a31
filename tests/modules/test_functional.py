"""functional: a module as a pure function."""

import copy

import pytest
import torch
from torch import nn

import torchlayers as tl
from torchlayers.errors import CallError

X = torch.linspace(-1, 1, 12).reshape(3, 4)
BATCH = torch.stack([X, X.square(), X + 1, -X])


@pytest.fixture
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Tanh())


def state(module):
    return {name: t.clone() for name, t in module.state_dict().items()}


def after(module, x):
    """The output of a copy of the module, and its buffers afterwards."""
    other = copy.deepcopy(module)
    return other(x).detach(), dict(other.named_buffers())


def test_the_parameters_and_buffers_are_plain_values_of_the_module(net):
    _, params, buffers = tl.functional(net)
    assert params.keys() == dict(net.named_parameters()).keys()
    assert buffers.keys() == dict(net.named_buffers()).keys()
    for name, value in {**params, **buffers}.items():
        assert not isinstance(value, nn.Parameter)
        assert not value.requires_grad
        assert value.data_ptr() == net.state_dict()[name].data_ptr()


def test_apply_writes_to_nothing(net):
    apply, params, buffers = tl.functional(net)
    before, output_and_buffers = state(net), after(net, X)
    torch.testing.assert_close(apply(params, buffers, X), output_and_buffers)
    torch.testing.assert_close(apply(params, buffers, input=X), output_and_buffers)
    torch.testing.assert_close(state(net), before, rtol=0, atol=0)
    torch.testing.assert_close({**params, **buffers}, before, rtol=0, atol=0)
    assert type(net[0].weight) is nn.Parameter


def test_assigned_buffers_are_returned():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x):
            self.seen = self.seen + x.sum()
            return self.seen

    net = Counting()
    apply, params, buffers = tl.functional(net)
    output, new = apply(params, buffers, X + 1)
    assert output == new["seen"] == 12
    assert buffers["seen"] == net.seen == 0
    _, by_sample = tl.vmap(lambda x: apply(params, buffers, x))(BATCH)
    torch.testing.assert_close(by_sample["seen"], BATCH.sum((1, 2)))
    slope = tl.grad(lambda x: apply(params, buffers, x)[1]["seen"])(X)
    torch.testing.assert_close(slope, torch.ones_like(X))


@pytest.mark.parametrize("wrong", ["missing", "unexpected"])
def test_other_names_are_refused(net, wrong):
    apply, params, buffers = tl.functional(net)
    if wrong == "missing":
        del params["0.bias"]
    else:
        params["2.bias"] = X
    with pytest.raises(RuntimeError, match=rf"{wrong.title()} key\(s\): '\d.bias'"):
        apply(params, buffers, X)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: tl.functional(torch.sin), "takes a module, .* got builtin_function_or_method"),
        (lambda: tl.functional(nn.Linear), "got the class Linear"),
        (lambda: tl.functional(nn.Linear(1, 1))[0]({}, X), "buffers must be a dict .* got Tensor"),
        (lambda: tl.functional(nn.Linear(1, 1))[0](X, {}), "params must be a dict .* got Tensor"),
        (lambda: tl.ensemble([nn.Linear(1, 1)])[0]({}, X), "ensemble: buffers must be a dict"),
    ],
)
def test_what_is_no_module_or_no_dict_is_refused(call, words):
    with pytest.raises(CallError, match=words):
        call()


def test_tied_tensors_have_one_name():
    layer = nn.Linear(4, 4)
    apply, params, buffers = tl.functional(nn.Sequential(layer, layer))
    assert params.keys() == {"0.weight", "0.bias"}
    torch.testing.assert_close(apply(params, buffers, X)[0], layer(layer(X)))


def member(values, i):
    return {name: t[i] for name, t in values.items()}


# Training and evaluation mode


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("training", [True, False, None])
def test_the_mode_is_an_argument(net, own, training):
    apply, params, buffers = tl.functional(net.train(own), training=training)
    assert net.training == net[1].training == own
    other = copy.deepcopy(net).train(own if training is None else training)
    torch.testing.assert_close(apply(params, buffers, X), after(other, X))
    assert net.training == net[1].training == own


def test_default_mode_is_the_modules_at_each_call(net):
    apply, params, buffers = tl.functional(net)
    for mode in (False, True):
        net.train(mode)
        torch.testing.assert_close(apply(params, buffers, X), after(net, X))


def test_class_may_override_train(net):
    class Frozen(nn.Sequential):
        def train(self, mode=True):
            return super().train(False)

    frozen = Frozen(*net)
    net.train()
    apply, params, buffers = tl.functional(frozen, training=True)
    assert net[1].training
    _, new = apply(params, buffers, X)
    torch.testing.assert_close(new, buffers, rtol=0, atol=0)


class ByProperty(nn.Module):
    """Stores its mode in a property."""

    @property
    def training(self):
        return vars(self)["kept"]

    @training.setter
    def training(self, mode):
        vars(self)["kept"] = mode

    def forward(self, x):
        return -x if self.training else x


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("is_script", [True, False])
def test_the_mode_of_a_module_that_keeps_it_elsewhere(is_script, own):
    part = torch.jit.script(nn.Dropout(1.0)) if is_script else ByProperty()
    net = nn.Sequential(nn.Linear(4, 4), part).train(own)
    for mode in (True, False):
        apply, params, buffers = tl.functional(net, training=mode)
        expected = copy.deepcopy(net).train(mode)(X).detach()
        torch.testing.assert_close(apply(params, buffers, X)[0], expected)
        assert part.training == own


def test_the_mode_is_put_back_after_an_exception(net):
    apply, params, buffers = tl.functional(net, training=False)
    with pytest.raises(RuntimeError):
        apply(params, buffers, X.mT)
    assert net.training
    assert net[1].training


# Under transforms


def test_statistics_a_sample(net):
    apply, params, buffers = tl.functional(net)
    output, new = tl.vmap(lambda x: apply(params, buffers, x))(BATCH)
    for i, x in enumerate(BATCH):
        torch.testing.assert_close((output[i], member(new, i)), after(net, x))


def test_statistics_a_member_of_an_ensemble(net):
    nets = [copy.deepcopy(net) for _ in range(3)]
    for other in nets:
        other[0].reset_parameters()
    apply = tl.functional(nets[0])[0]
    params, buffers = tl.stack_module_state(nets)
    for in_dims in ((0, 0, None), (0, None, None)):
        given = buffers if in_dims[1] == 0 else tl.functional(nets[0])[2]
        output, new = tl.vmap(apply, in_dims=in_dims)(params, given, X)
        for i, other in enumerate(nets):
            expected = after(other, X)
            torch.testing.assert_close((output[i], member(new, i)), expected)


def test_statistics_under_several_vmaps(net):
    """One vmap over members, one over samples; neither sees the other's batch dimension."""
    nets = [copy.deepcopy(net) for _ in range(3)]
    for other in nets:
        other[0].reset_parameters()
    apply, _, buffers = tl.functional(nets[0])
    params, _ = tl.stack_module_state(nets)
    by_sample = tl.vmap(apply, in_dims=(None, None, 0))
    _, new = tl.vmap(by_sample, in_dims=(0, None, None))(params, buffers, BATCH)
    for i, other in enumerate(nets):
        for j, x in enumerate(BATCH):
            expected = after(other, x)[1]
            torch.testing.assert_close(member(new, (i, j)), expected)


def loss(apply):
    def of(params, buffers, x):
        output, new = apply(params, buffers, x)
        return output.square().sum(), new

    return of


def test_gradients_return_the_new_buffers(net):
    apply, params, buffers = tl.functional(net)
    gradients, new = tl.grad(loss(apply), has_aux=True)(params, buffers, X)
    other = copy.deepcopy(net)
    other(X).square().sum().backward()
    for name, parameter in other.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad)
    torch.testing.assert_close(new, dict(other.named_buffers()))


def test_gradients_a_sample_pass_the_buffers_on(net):
    apply, params, buffers = tl.functional(net)
    per_sample = tl.vmap(tl.grad(loss(apply), has_aux=True), in_dims=(None, None, 0))
    gradients, new = per_sample(params, buffers, BATCH)
    for i, x in enumerate(BATCH):
        one = tl.grad(loss(apply), has_aux=True)(params, buffers, x)
        torch.testing.assert_close((member(gradients, i), member(new, i)), one)


@pytest.mark.parametrize("transform", ["jacrev", "jacfwd", "hessian"])
def test_derivatives_of_the_output(net, transform):
    apply, params, buffers = tl.functional(net.double())
    x = X.double()

    def by_apply(scale):
        return apply({**params, "1.weight": scale}, buffers, x)[0].sum(0)

    def by_hand(scale):
        hidden = net[0](x).detach()
        centred = (hidden - hidden.mean(0)) / (hidden.var(0, unbiased=False) + net[1].eps).sqrt()
        return (centred * scale + params["1.bias"]).tanh().sum(0)

    scale = params["1.weight"]
    expected = getattr(torch.func, transform)(by_hand)(scale)
    torch.testing.assert_close(getattr(tl, transform)(by_apply)(scale), expected)


def test_training_with_the_buffers_as_a_carry(net):
    apply, params, buffers = tl.functional(net)
    own = copy.deepcopy(net)
    optimizer = torch.optim.SGD(own.parameters(), lr=0.1)
    for x in BATCH:
        gradients, buffers = tl.grad(loss(apply), has_aux=True)(params, buffers, x)
        params = {name: value - 0.1 * gradients[name] for name, value in params.items()}
        optimizer.zero_grad()
        own(x).square().sum().backward()
        optimizer.step()
    torch.testing.assert_close({**params, **buffers}, state(own))


@pytest.mark.parametrize("are_batched", [False, True])
def test_a_buffer_that_a_module_writes_to_in_place(are_batched):
    class Writing(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.ones(4))

        def forward(self, x):
            self.seen[1:] += x.sum(0)[1:]
            return x * self.seen

    apply, params, buffers = tl.functional(Writing())
    given = {"seen": torch.ones(4, 4)} if are_batched else buffers
    output, new = tl.vmap(apply, (None, 0 if are_batched else None, 0))(params, given, BATCH)
    for i, x in enumerate(BATCH):
        torch.testing.assert_close((output[i], member(new, i)), apply(params, buffers, x))
    assert given["seen"].eq(1).all()


# The buffers as the carry of a scan


def scanned(apply, params, buffers, batches):
    """The buffers after all batches, and the outputs."""

    def step(buffers, x):
        output, buffers = apply(params, buffers, x)
        return buffers, output

    return tl.scan(step, buffers, batches)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_a_scan_carries_the_buffers(net, momentum):
    net[1].momentum = momentum
    apply, params, buffers = tl.functional(net)
    own = copy.deepcopy(net)
    expected = torch.stack([own(x) for x in BATCH]).detach()
    carried, outputs = scanned(apply, params, buffers, BATCH)
    torch.testing.assert_close(outputs, expected)
    torch.testing.assert_close(carried, dict(own.named_buffers()))


@pytest.mark.parametrize("momentum", [0.1, None])
def test_a_scan_under_vmap_carries_the_buffers_of_each_sample_and_member(net, momentum):
    net[1].momentum = momentum
    apply, params, buffers = tl.functional(net)
    several = torch.stack([BATCH, BATCH.flip(0), BATCH.cos()])
    by_sample = tl.vmap(lambda batches: scanned(apply, params, buffers, batches))(several)
    for i, batches in enumerate(several):
        expected = scanned(apply, params, buffers, batches)
        torch.testing.assert_close((member(by_sample[0], i), by_sample[1][i]), expected)
    many = {name: torch.stack([p, 2 * p, -p]) for name, p in params.items()}
    by_member = tl.vmap(lambda params: scanned(apply, params, buffers, BATCH))(many)
    for i in range(3):
        expected = scanned(apply, member(many, i), buffers, BATCH)
        torch.testing.assert_close((member(by_member[0], i), by_member[1][i]), expected)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_gradients_through_a_scan_that_trains(net, momentum):
    """Gradients of the loss after a few steps with respect to the initial parameters; also per
    sample."""
    net[1].momentum = momentum
    apply, params, buffers = tl.functional(net.double())
    batches = BATCH.double()
    factor = batches[0, :, :3].cos()

    def after_training(params, batches, scan):
        def step(carry, x):
            params, buffers = carry
            slopes, buffers = tl.grad(weighted, has_aux=True)(params, buffers, x)
            params = {name: value - 0.1 * slopes[name] for name, value in params.items()}
            return (params, buffers), None

        (trained, carried), _ = scan(step, (params, buffers), batches)
        return weighted(trained, carried, batches[0])

    def weighted(params, buffers, x):
        output, new = apply(params, buffers, x)
        return (output * factor).sum(), new

    def in_python(step, carry, batches):
        for x in batches:
            carry, _ = step(carry, x)
        return carry, None

    def gradient(params, batches):
        return tl.grad(after_training, has_aux=True)(params, batches, tl.scan)

    slopes, carried = gradient(params, batches)
    torch.testing.assert_close(
        (slopes, carried),
        tl.grad(after_training, has_aux=True)(params, batches, in_python),
    )
    name = "0.weight"
    step = 1e-6 * torch.ones_like(params[name])
    ahead, behind = (
        after_training({**params, name: params[name] + sign * step}, batches, in_python)[0]
        for sign in (1, -1)
    )
    torch.testing.assert_close(slopes[name].sum(), (ahead - behind) / 2e-6, rtol=1e-5, atol=1e-7)
    several = torch.stack([batches, batches.flip(0)])
    by_sample = tl.vmap(gradient, in_dims=(None, 0))(params, several)
    for i, batches in enumerate(several):
        expected = gradient(params, batches)
        torch.testing.assert_close(tuple(member(each, i) for each in by_sample), expected)


# Cumulative averages over all batches


@pytest.fixture
def averaging(net):
    net[1].momentum = None
    return net.double()


def test_cumulative_statistics(averaging):
    """First with a count shared by the samples, then with one count per sample."""
    apply, params, buffers = tl.functional(averaging)
    own = [copy.deepcopy(averaging) for _ in BATCH]
    in_dims = (None, None, 0)
    for x in (BATCH.double(), BATCH.double().flip(0), BATCH.double().cos()):
        output, buffers = tl.vmap(apply, in_dims)(params, buffers, x)
        in_dims = (None, 0, 0)
        for i, module in enumerate(own):
            torch.testing.assert_close(output[i], module(x[i]).detach())
            torch.testing.assert_close(member(buffers, i), dict(module.named_buffers()))


def test_cumulative_statistics_of_a_norm_that_is_called_twice(averaging):
    twice = nn.Sequential(*averaging, nn.Linear(3, 3).double(), averaging[1])
    apply, params, buffers = tl.functional(twice)
    for _ in range(2):
        expected = after(twice, X.double())
        output, buffers = apply(params, buffers, X.double())
        torch.testing.assert_close(output, expected[0])
        torch.testing.assert_close(buffers, {name: expected[1][name] for name in buffers})
        twice.load_state_dict(buffers, strict=False)


def test_gradients_with_cumulative_statistics(averaging):
    apply, params, buffers = tl.functional(averaging)
    x = BATCH.double()
    per_sample = tl.vmap(tl.grad(loss(apply), has_aux=True), in_dims=(None, None, 0))
    gradients, new = per_sample(params, buffers, x)
    averaging[1].momentum = 1.0  # equivalent for a single batch
    torch.testing.assert_close((gradients, new), per_sample(params, buffers, x))


def test_cumulative_statistics_leave_a_forward_of_the_users_alone(averaging):
    class Doubling(nn.BatchNorm1d):
        def forward(self, x):
            return 2 * super().forward(x)

    averaging[1] = Doubling(3, momentum=None).double()
    apply, params, buffers = tl.functional(averaging)
    torch.testing.assert_close(apply(params, buffers, X.double()), after(averaging, X.double()))
    hooked = []
    averaging[1] = nn.BatchNorm1d(3, momentum=None).double()
    averaging[1].register_forward_hook(lambda *_: hooked.append(1))
    apply(params, buffers, X.double())
    assert hooked == [1]


@pytest.mark.sweep(one_in=16)
@pytest.mark.parametrize("momentum", [0.1, None])
def test_captured_graphs_take_the_buffers_as_a_carry(net, momentum):
    net[1].momentum = momentum
    apply, params, buffers = tl.functional(net)
    step = tl.compile(tl.grad(loss(apply), has_aux=True))
    own = copy.deepcopy(net)
    for x in BATCH:
        own.zero_grad()
        own(x).square().sum().backward()
        gradients, buffers = step(params, buffers, x)
        torch.testing.assert_close(buffers, dict(own.named_buffers()))
        for name, parameter in own.named_parameters():
            torch.testing.assert_close(gradients[name], parameter.grad)


@pytest.mark.sweep
@pytest.mark.parametrize("training", [True, False, None])
def test_functional_compiles(net, training):
    torch._dynamo.reset()
    apply, params, buffers = tl.functional(net, training=training)
    expected = tl.grad(loss(apply), has_aux=True)(params, buffers, X)
    compiled = torch.compile(tl.grad(loss(apply), has_aux=True), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(params, buffers, X), expected)
    assert net.training
