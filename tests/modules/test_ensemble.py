"""ensemble: modules of one architecture as one function; stack_module_state: their stacked
state."""

import copy
import dataclasses
import gc

import pytest
import torch
import torch.func
from torch import nn

import torchlayers as tl
from tests.support.calls import Tied
from torchlayers.errors import CallError, StructureError, TransformError

X = torch.linspace(-1, 1, 12).reshape(3, 4)
OWN = torch.stack([X, X.square(), X + 1])  # separate data for each member


def network():
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Tanh(), nn.Linear(3, 2))


def networks(count=3):
    torch.manual_seed(0)
    return [network() for _ in range(count)]


def after(module, x):
    """The output of a copy of the module, and its buffers afterwards."""
    other = copy.deepcopy(module)
    return other(x).detach(), dict(other.named_buffers())


def member(values, i):
    return {name: value[i] for name, value in values.items()}


def shares_memory(one, other):
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


# stack_module_state


def test_state_is_stacked_by_name():
    nets = networks()
    params, buffers = tl.stack_module_state(nets)
    theirs = torch.func.stack_module_state(nets)
    assert [[*params], [*buffers]] == [[*state] for state in theirs]
    torch.testing.assert_close((params, buffers), theirs, rtol=0, atol=0)
    for name, param in params.items():
        assert torch.equal(param[1], nets[1].get_parameter(name))
        assert param.is_leaf
        assert param.requires_grad
        assert not shares_memory(param, nets[0].get_parameter(name))
    assert not any(buffer.requires_grad for buffer in buffers.values())


def test_a_module_list_is_stacked():
    nets = nn.ModuleList(networks())
    torch.testing.assert_close(tl.stack_module_state(nets), tl.stack_module_state([*nets]))


def test_one_module_is_stacked_and_copied():
    layer = nn.Linear(4, 3)
    for copied in (True, False):
        params, buffers = tl.stack_module_state([layer], copy=copied)
        assert params["weight"].shape == (1, 3, 4)
        assert not shares_memory(params["weight"], layer.weight)
        assert buffers == {}


def test_stacking_preserves_requires_grad_false():
    nets = networks()
    for net in nets:
        net[0].weight.requires_grad_(False)
    params, _ = tl.stack_module_state(nets)
    assert not params["0.weight"].requires_grad
    assert params["0.bias"].requires_grad
    nets[1][0].weight.requires_grad_(True)
    with pytest.raises(RuntimeError, match=r"0.weight .* the same .requires_grad"):
        tl.stack_module_state(nets)


@pytest.mark.parametrize("grad_mode", [True, False])
def test_an_optimizer_takes_the_stacked_parameters(grad_mode):
    nets = networks()
    with torch.set_grad_enabled(grad_mode):
        params, _ = tl.stack_module_state(nets)
    before = {name: param.detach().clone() for name, param in params.items()}
    sum(param.sum() for param in params.values()).backward()
    torch.optim.SGD(params.values(), lr=1.0).step()
    for name, param in params.items():
        torch.testing.assert_close(param.detach(), before[name] - 1)
        assert torch.equal(nets[0].get_parameter(name), before[name][0])


def mode(nets):
    nets[1].eval()


def other_class(nets):
    nets[1] = nn.Linear(4, 3)


def other_shape(nets):
    nets[1][0] = nn.Linear(5, 3)


def fewer_names(nets):
    nets[1][0] = nn.Linear(4, 3, bias=False)


def more_names(nets):
    nets[1].register_buffer("seen", X)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (list.clear, "at least one"),
        (mode, "same training/eval mode"),
        (other_class, "same class"),
        (other_shape, r"'0.weight' has shape \(3, 5\) in member 1, and \(3, 4\) in member 0"),
        (fewer_names, r"only one of them has \['0.bias'\]"),
        (more_names, r"only one of them has \['seen'\]"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
@pytest.mark.parametrize("stack", [tl.stack_module_state, tl.ensemble])
def test_modules_that_differ_are_refused(stack, change, match):
    nets = networks()
    change(nets)
    built_otherwise = stack is tl.ensemble and change in (mode, other_class, other_shape)
    with pytest.raises(RuntimeError, match="member 1" if built_otherwise else match):
        stack(nets)


def rows(tensor):
    """Modules whose weights are the rows of the tensor."""
    nets = [nn.Linear(4, 3, bias=False) for _ in tensor]
    for net, row in zip(nets, tensor, strict=True):
        net.weight = nn.Parameter(row)
    return nets


STACKED = {
    "contiguous": lambda: torch.rand(5, 3, 4),
    "apart": lambda: torch.rand(5, 2, 3, 4)[:, 1],
    "every other": lambda: torch.rand(10, 3, 4)[::2],
    "transposed": lambda: torch.rand(5, 4, 3).mT,
    "the first in front": lambda: torch.rand(7, 3, 4)[2:],
}


@pytest.mark.parametrize("kind", STACKED)
def test_rows_of_one_tensor_are_viewed_on_request(kind):
    whole = STACKED[kind]()
    params, _ = tl.stack_module_state(rows(whole), copy=False)
    stacked = params["weight"]
    assert stacked.data_ptr() == whole.data_ptr()
    assert torch.equal(stacked, whole)
    assert stacked.is_leaf
    assert stacked.requires_grad
    copied = tl.stack_module_state(rows(whole))[0]["weight"]
    assert torch.equal(copied, whole)
    assert not shares_memory(copied, whole)


NOT_STACKED = {
    "not in order": lambda: rows(torch.rand(3, 3, 4))[::-1],
    "one left out": lambda: [*rows(torch.rand(4, 3, 4))[:2], rows(torch.rand(4, 3, 4))[3]],
    "one twice": lambda: rows(torch.rand(3, 4).expand(3, 3, 4)),
    "overlapping": lambda: rows(torch.rand(40).as_strided((3, 3, 4), (6, 4, 1))),
    "other strides": lambda: [*rows(torch.rand(2, 3, 4)), *rows(torch.rand(1, 4, 3).mT)],
    "conjugated": lambda: rows(torch.rand(3, 3, 4, dtype=torch.complex64).conj()),
    "apart": lambda: [nn.Linear(4, 3, bias=False) for _ in range(3)],
}


@pytest.mark.parametrize("kind", NOT_STACKED)
def test_tensors_that_are_not_rows_are_copied(kind):
    nets = NOT_STACKED[kind]()
    stacked = tl.stack_module_state(nets, copy=False)[0]["weight"]
    assert torch.equal(stacked, torch.stack([net.weight.detach() for net in nets]))
    assert not any(shares_memory(stacked, net.weight) for net in nets)


def test_under_a_transform_modules_are_stacked_with_the_tensors_they_have():
    nets = nn.ModuleList([nn.Linear(4, 2, bias=False) for _ in range(3)])

    class Stacking(nn.Module):
        def __init__(self):
            super().__init__()
            self.nets = nets

        def forward(self):
            return tl.stack_module_state(self.nets, copy=False)[0]["weight"].detach().sum()

    given = {name: 2 * p.detach() for name, p in nets.named_parameters(prefix="nets")}
    doubled = 2 * sum(net.weight.detach().sum() for net in nets)
    outer = Stacking()
    value = tl.vmap(lambda _: tl.functional_call(outer, given, ()))(X)
    torch.testing.assert_close(value, doubled.expand(3))


# ensemble: of existing modules


@pytest.mark.parametrize("in_dims", [None, 0, (0,), (None,), (1,)])
def test_an_ensemble_is_its_members_side_by_side(in_dims):
    nets = networks()
    members, params, buffers = tl.ensemble(nets, in_dims=in_dims)
    shared = in_dims in (None, (None,))
    x = X if shared else OWN.movedim(0, 1) if in_dims == (1,) else OWN
    outputs, new_buffers = members(params, buffers, x)
    for i, net in enumerate(nets):
        expected = after(net, X if shared else OWN[i])
        torch.testing.assert_close((outputs[i], member(new_buffers, i)), expected)
    assert members.modules == tuple(nets)


def test_applying_an_ensemble_writes_to_nothing():
    nets = networks()
    members, params, buffers = tl.ensemble(nets)
    before = copy.deepcopy([nets, params, buffers])
    members(params, buffers, X)
    for net, was in zip(nets, before[0], strict=True):
        torch.testing.assert_close(net.state_dict(), was.state_dict(), rtol=0, atol=0)
    torch.testing.assert_close([params, buffers], before[1:], rtol=0, atol=0)
    assert not any(param.requires_grad for param in params.values())


@pytest.mark.parametrize("training", [True, False, None])
def test_the_mode_is_an_option(training):
    nets = networks()
    members, params, buffers = tl.ensemble(nets, training=training)
    outputs, _ = members(params, buffers, X)
    for i, net in enumerate(nets):
        net.train(training is not False)
        torch.testing.assert_close(outputs[i], after(net, X)[0])


def test_dataclasses_replace_changes_the_options():
    nets = networks()
    members, params, buffers = tl.ensemble(nets, in_dims=0)
    evaluated = dataclasses.replace(members, training=False, in_dims=None)
    outputs, same = evaluated(params, buffers, X)
    torch.testing.assert_close(same, buffers, rtol=0, atol=0)
    for i, net in enumerate(nets):
        torch.testing.assert_close(outputs[i], after(net.eval(), X)[0])


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(4))

    def forward(self, x, y=0, *, times=1):
        return {"sum": x * self.scale * times + y, "x": x}


def test_arguments_and_outputs_are_of_any_kind():
    nets = [Scaled() for _ in range(3)]
    members, params, buffers = tl.ensemble(nets, in_dims=(0, None))
    outputs, new_buffers = members(params, buffers, OWN, X, times=3)
    expected = torch.stack([net(x, X, times=3)["sum"] for net, x in zip(nets, OWN, strict=True)])
    torch.testing.assert_close(outputs["sum"], expected.detach())
    torch.testing.assert_close(outputs["x"], OWN)
    assert new_buffers == {}
    members, *state = tl.ensemble(nets)
    torch.testing.assert_close(members(*state, x=X)[0]["x"], X.expand(3, 3, 4))


def test_dropout_draws_for_each_member_or_for_all():
    nets = [nn.Dropout() for _ in range(4)]
    x = torch.ones(50)

    def drawn(randomness):
        members, params, buffers = tl.ensemble(
            [nn.Sequential(nn.BatchNorm1d(50, affine=False), net) for net in nets],
            training=True,
            randomness=randomness,
        )
        return members(params, buffers, torch.stack([x, -x]))[0].ne(0)

    different = drawn("different")
    assert not any(torch.equal(different[0], other) for other in different[1:])
    same = drawn("same")
    assert all(torch.equal(same[0], other) for other in same[1:])
    with pytest.raises(RuntimeError, match="random"):
        drawn("error")


def test_members_may_be_run_a_few_at_a_time():
    nets = networks(5)
    members, params, buffers = tl.ensemble(nets)
    few = dataclasses.replace(members, chunk_size=2)
    torch.testing.assert_close(few(params, buffers, X), members(params, buffers, X))


def test_members_with_convolutions():
    torch.manual_seed(0)
    nets = [nn.Sequential(nn.Conv1d(3, 4, 3), nn.GroupNorm(2, 4), nn.Flatten()) for _ in range(3)]
    members, params, buffers = tl.ensemble(nets)
    output, _ = members(params, buffers, OWN)
    torch.testing.assert_close(output, torch.stack([net(OWN).detach() for net in nets]))


# Members that differ


def without_affine(nets):
    nets[2][1] = nn.BatchNorm1d(3, eps=0.1)


def other_activation(nets):
    nets[2][2] = nn.ReLU()


def frozen_norm(nets):
    nets[2][1].eval()


def more_layers(nets):
    nets[2].append(nn.Tanh())


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (without_affine, "'1' of member 2 has eps=0.1, but member 0 has eps=1e-05"),
        (other_activation, "'2' of member 2 is a ReLU, but member 0 has a Tanh"),
        (frozen_norm, "'1' of member 2 has training=False"),
        (more_layers, "the submodules of member 2 differ"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_attributes_that_are_not_stacked_must_be_equal(change, match):
    nets = networks()
    change(nets)
    with pytest.raises(StructureError, match=match):
        tl.ensemble(nets)


@pytest.mark.parametrize("wrong", [network(), network, [network(), 3], 3])
def test_non_sequence_of_modules_is_rejected(wrong):
    with pytest.raises(TypeError, match="torchlayers: ensemble"):
        tl.ensemble(wrong)


def test_mismatched_in_dims_are_rejected():
    members, params, buffers = tl.ensemble(networks(), in_dims=(0, None))
    with pytest.raises(StructureError, match=r"has 2 entries, but the call has 1"):
        members(params, buffers, X)


# ensemble: of modules it creates


@pytest.mark.parametrize("seeds", [range(3), [5, 5, 2**40], torch.arange(2)])
def test_a_member_is_made_after_its_seed(seeds):
    members, params, buffers = tl.ensemble(network, seeds=seeds)
    for i, seed in enumerate(seeds):
        torch.manual_seed(seed)
        own = network()
        torch.testing.assert_close(members.modules[i].state_dict(), own.state_dict())
        torch.testing.assert_close(member({**params, **buffers}, i), own.state_dict())
        torch.testing.assert_close(members.modules[i](X), own(X))


def test_generator_state_is_restored_after_creation():
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    tl.ensemble(network, seeds=range(3))
    assert torch.equal(torch.rand(3), expected)
    torch.manual_seed(1)
    with pytest.raises(ZeroDivisionError):
        tl.ensemble(lambda: 1 // 0, seeds=range(3))
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.sweep
def test_made_members_have_no_memory_of_their_own():
    members, params, buffers = tl.ensemble(network, seeds=range(3))
    for state in (tl.stack_module_state(members.modules, copy=False), tl.ensemble(members.modules)):
        for name, value in {**state[-2], **state[-1]}.items():
            assert value.data_ptr() == {**params, **buffers}[name].data_ptr()
    params["0.weight"].zero_()
    assert members.modules[2][0].weight.eq(0).all()
    assert type(members.modules[2][0].weight) is nn.Parameter
    members.modules[1][0].weight.detach().add_(1)
    assert params["0.weight"][1].eq(1).all()
    weight = members.modules[0][0].weight
    del members, params, buffers, state, value
    gc.collect()
    assert weight.eq(0).all()


def test_cumulative_statistics_are_values_of_each_member():
    members, params, buffers = tl.ensemble(
        lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, momentum=None)), seeds=range(3)
    )
    own = [copy.deepcopy(module) for module in members.modules]
    for x in OWN:
        output, buffers = members(params, buffers, x)
        for i, module in enumerate(own):
            torch.testing.assert_close(output[i], module(x).detach())
            for name, buffer in module.named_buffers():
                torch.testing.assert_close(buffers[name][i], buffer)


def test_power_iterations_are_values_of_each_member():
    members, params, buffers = tl.ensemble(
        lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)), seeds=range(3)
    )
    own = [copy.deepcopy(module) for module in members.modules]
    for _ in range(2):
        output, buffers = members(params, buffers, X)
        for i, module in enumerate(own):
            torch.testing.assert_close(output[i], module(X).detach())
            for name, buffer in module.named_buffers():
                torch.testing.assert_close(buffers[name][i], buffer)


def test_made_members_can_be_trained_one_by_one():
    members, params, _ = tl.ensemble(network, seeds=range(2))
    net = members.modules[1]
    before = params["3.bias"].clone()
    net(X).sum().backward()
    torch.optim.SGD(net.parameters(), lr=1.0).step()
    torch.testing.assert_close(params["3.bias"], before - torch.tensor([[0.0], [3.0]]))


def test_tied_tensors_stay_tied_in_made_members():
    members, params, buffers = tl.ensemble(Tied, seeds=range(2))
    assert "other.weight" not in params
    for i, net in enumerate(members.modules):
        assert net.one.weight is net.other.weight
        torch.testing.assert_close(members(params, buffers, X)[0][i], net(X).detach())


def test_a_module_alone_is_no_sequence_to_stack():
    with pytest.raises(CallError, match=r"a sequence of modules, got Linear. .* write \[module\]"):
        tl.stack_module_state(nn.Linear(1, 1))


@pytest.mark.parametrize(
    ("make", "seeds", "error", "match"),
    [
        (network, [], TransformError, "at least one"),
        (lambda: 3, [0], TypeError, "must be an nn.Module, got int"),
        (networks(), [0], TypeError, "function that makes a module; got list"),
        (network(), [0], TypeError, "function that makes a module; got Sequential"),
        (network, ["a"], TypeError, "str"),
        (lambda: nn.LazyLinear(3), [0], TransformError, "'weight' has no shape yet"),
        (
            lambda: nn.Linear(4, 2 + int(torch.rand(()) < 0.3)),
            range(8),
            StructureError,
            "they must be the same",
        ),
    ],
    ids=["no seeds", "no module", "modules", "one module", "no int", "lazy", "other shapes"],
)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_members_that_cannot_be_created_are_rejected(make, seeds, error, match):
    with pytest.raises(error, match=match):
        tl.ensemble(make, seeds=seeds)


# Under transforms


def loss_of(members):
    def loss(params, buffers, x):
        outputs, new_buffers = members(params, buffers, x)
        return outputs.square().sum(), new_buffers

    return loss


@pytest.mark.parametrize("in_dims", [None, 0])
def test_gradients_of_all_members(in_dims):
    nets = networks()
    members, params, buffers = tl.ensemble(nets, in_dims=in_dims)
    x = X if in_dims is None else OWN
    gradients, new_buffers = tl.grad(loss_of(members), has_aux=True)(params, buffers, x)
    for i, net in enumerate(nets):
        other = copy.deepcopy(net)
        other(X if in_dims is None else OWN[i]).square().sum().backward()
        for name, parameter in other.named_parameters():
            torch.testing.assert_close(gradients[name][i], parameter.grad)
        torch.testing.assert_close(member(new_buffers, i), dict(other.named_buffers()))


def test_gradients_a_sample_of_all_members():
    nets = networks()
    members, params, buffers = tl.ensemble(nets)
    each = tl.vmap(tl.grad(loss_of(members), has_aux=True), in_dims=(None, None, 0))
    gradients, new_buffers = each(params, buffers, OWN)
    for i, x in enumerate(OWN):
        one = tl.grad(loss_of(members), has_aux=True)(params, buffers, x)
        torch.testing.assert_close((member(gradients, i), member(new_buffers, i)), one)


def test_tangents_of_all_members():
    nets = networks()
    members, params, buffers = tl.ensemble(nets)
    tangents = {name: torch.ones_like(value) for name, value in params.items()}
    _, pushed = tl.jvp(lambda p: members(p, buffers, X)[0], (params,), (tangents,))
    for i, net in enumerate(nets):
        apply, own, own_buffers = tl.functional(net)
        one = tl.jvp(lambda p: apply(p, own_buffers, X)[0], (own,), (member(tangents, i),))  # noqa: B023
        torch.testing.assert_close(pushed[i], one[1])


def test_training_agrees_with_members_trained_alone():
    nets = networks()
    members, params, buffers = tl.ensemble(nets, in_dims=0)
    for _ in range(3):
        gradients, buffers = tl.grad(loss_of(members), has_aux=True)(params, buffers, OWN)
        params = {name: value - 0.1 * gradients[name] for name, value in params.items()}
    for i, net in enumerate(nets):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            net(OWN[i]).square().sum().backward()
            optimizer.step()
        torch.testing.assert_close(member({**params, **buffers}, i), net.state_dict())


@pytest.mark.sweep
def test_ensemble_compiles():
    torch._dynamo.reset()
    members, params, buffers = tl.ensemble(networks(), in_dims=0)
    transformed = tl.grad(loss_of(members), has_aux=True)
    expected = transformed(params, buffers, OWN)
    compiled = torch.compile(transformed, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(params, buffers, OWN), expected)


# Loading back into modules


def test_state_is_loaded_into_the_modules():
    nets = networks()
    members, params, buffers = tl.ensemble(nets)
    parameters = [*nets[0].parameters()]
    params = {name: value + 1 for name, value in params.items()}
    _, buffers = members(params, buffers, X)
    members.load(params, buffers)
    for i, net in enumerate(nets):
        torch.testing.assert_close(net.state_dict(), member({**params, **buffers}, i))
    assert all(a is b for a, b in zip(nets[0].parameters(), parameters, strict=True))


def test_some_of_the_state_is_loaded():
    nets = networks()
    members, params, _ = tl.ensemble(nets)
    before = nets[1][0].weight.clone()
    members.load({"3.bias": params["3.bias"] + 1})
    torch.testing.assert_close(nets[1][3].bias, params["3.bias"][1] + 1)
    assert torch.equal(nets[1][0].weight, before)


def test_loading_into_made_members_changes_nothing():
    members, params, buffers = tl.ensemble(network, seeds=range(3))
    before = copy.deepcopy(params)
    members.load(params, buffers)
    torch.testing.assert_close(params, before, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("state", "match"),
    [
        (
            {"4.bias": torch.zeros(3, 2)},
            "no parameter or buffer '4.bias'. Their names are: 0.weight, 0.bias",
        ),
        ({"3.bias": torch.zeros(2)}, r"shape \(2,\), .* for 3 modules is \(3, 2\)"),
        ({"3.bias": torch.zeros(4, 2)}, r"shape \(4, 2\)"),
    ],
)
def test_mismatched_state_is_not_loaded(state, match):
    members, *_ = tl.ensemble(networks())
    with pytest.raises(StructureError, match=match):
        members.load(state)
