"""Optimizers of torch.optim inside a compiled function: each call equals an eager step."""

import copy
import re

import pytest
import torch
from torch import nn, optim

import torchlayers as tl
from tests.support.calls import assert_same

KINDS = {
    "SGD": (optim.SGD, {}),
    "momentum": (optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    "Adam": (optim.Adam, {}),
    "amsgrad": (optim.Adam, {"amsgrad": True, "weight_decay": 0.1}),
    "AdamW": (optim.AdamW, {}),
    "RMSprop": (optim.RMSprop, {"momentum": 0.9, "centered": True}),
    "Adagrad": (optim.Adagrad, {"lr_decay": 0.1}),
    "Adamax": (optim.Adamax, {}),
    "Adadelta": (optim.Adadelta, {}),
    "Rprop": (optim.Rprop, {}),
    "RAdam": (optim.RAdam, {"betas": (0.9, 0.99)}),
    "ASGD": (optim.ASGD, {"t0": 2.0, "weight_decay": 0.1}),
}


class Training:
    """A model, its optimizer, and a function that steps it."""

    def __init__(self, make, **options):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
        self.optimizer = make(self.model.parameters(), **{"lr": 0.01, **options})

    def step(self, x):
        parameters = dict(self.model.named_parameters())

        def loss(parameters):
            return torch.func.functional_call(self.model, parameters, x).square().mean()

        values = {name: parameter.detach() for name, parameter in parameters.items()}
        gradients, value = tl.grad_and_value(loss)(values)
        for name, parameter in parameters.items():
            parameter.grad = gradients[name]
        self.optimizer.step()
        return value

    def told(self):
        state = self.optimizer.state_dict()["state"]
        return [*map(torch.clone, self.model.state_dict().values())], state


def batches():
    torch.manual_seed(1)
    return [torch.randn(8, 3, dtype=torch.float64) for _ in range(5)]


@pytest.mark.sweep
@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_five_steps_equal_eager_ones(name, foreach):
    make, options = KINDS[name]
    eager, compiled = (Training(make, foreach=foreach, **options) for _ in range(2))
    step = tl.compile(compiled.step, backend="replay")
    for batch in batches():
        assert_same(step(batch), eager.step(batch), rounded=True)
        assert_same(compiled.told(), eager.told(), rounded=True)
    assert [entry.how for entry in step.report().signatures] == ["replay"]
    assert [group["foreach"] for group in compiled.optimizer.param_groups] == [foreach]


@pytest.mark.sweep(one_in=16)
@pytest.mark.parametrize("name", ["momentum", "Adam", "RMSprop", "Adagrad"])
def test_steps_compiled_by_inductor(name):
    make, options = KINDS[name]
    eager, compiled = (Training(make, **options) for _ in range(2))
    step = tl.compile(compiled.step)
    for batch in batches():
        assert_same(step(batch), eager.step(batch), rounded=True)
    assert_same(compiled.told(), eager.told(), rounded=True)
    assert [entry.how for entry in step.report().signatures] == ["inductor"]


def test_a_fused_step():
    eager, compiled = (Training(optim.AdamW, fused=True) for _ in range(2))
    step = tl.compile(compiled.step, backend="replay")
    for batch in batches():
        assert_same(step(batch), eager.step(batch), rounded=True)
    assert_same(compiled.told(), eager.told(), rounded=True)


def test_step_counter_is_exact_beyond_single_precision():
    eager, compiled = (Training(optim.Adam, betas=(0.9, 0.9999)) for _ in range(2))
    step = tl.compile(compiled.step, backend="replay")
    (batch, *_) = batches()
    for _ in range(50):
        step(batch), eager.step(batch)
    for found, expected in zip(compiled.told()[0], eager.told()[0], strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


def test_a_learning_rate_is_read_at_each_call():
    eager, compiled = (Training(optim.SGD, momentum=0.9) for _ in range(2))
    step = tl.compile(compiled.step, backend="replay")
    for count, batch in enumerate(batches()):
        for training in (eager, compiled):
            training.optimizer.param_groups[0]["lr"] = 0.01 if count < 3 else 0.1
        step(batch), eager.step(batch)
    assert_same(compiled.told(), eager.told(), rounded=True)
    assert len(step.report().signatures) == 1


def test_changed_momentum_is_a_new_signature():
    eager, compiled = (Training(optim.SGD, momentum=0.9) for _ in range(2))
    step = tl.compile(compiled.step, backend="replay")
    for count, batch in enumerate(batches()):
        for training in (eager, compiled):
            training.optimizer.param_groups[0]["momentum"] = 0.9 if count < 3 else 0.8
        step(batch), eager.step(batch)
    assert_same(compiled.told(), eager.told(), rounded=True)
    (first, second) = step.report().signatures
    assert (first.calls, second.calls, second.why) == (2, 2, "momentum of SGD is 0.8, was 0.9")


def test_a_learning_rate_that_is_a_tensor_is_read_at_each_call():
    trainings = [
        Training(optim.SGD, lr=torch.tensor(0.01, dtype=torch.float64), momentum=0.9)
        for _ in range(2)
    ]
    eager, compiled = trainings
    step = tl.compile(compiled.step, backend="replay")
    for batch in batches():
        step(batch), eager.step(batch)
        for training in trainings:
            training.optimizer.param_groups[0]["lr"].mul_(1.5)
    assert_same(compiled.told(), eager.told(), rounded=True)
    assert len(step.report().signatures) == 1


@pytest.mark.sweep
def test_training_continues_from_a_loaded_state():
    eager, compiled = (Training(optim.Adam) for _ in range(2))
    other = Training(optim.Adam, lr=0.01)
    for batch in batches():
        other.step(batch)
    step = tl.compile(compiled.step, backend="replay")
    for count, batch in enumerate(batches()):
        if count == 3:
            for training in (eager, compiled):
                training.optimizer.load_state_dict(copy.deepcopy(other.optimizer.state_dict()))
        step(batch), eager.step(batch)
    assert_same(compiled.told(), eager.told(), rounded=True)


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore:.*can't be captured with symbolic sizes")
def test_sizes_that_change():
    eager, compiled = (Training(optim.Adam) for _ in range(2))
    step = tl.compile(compiled.step, backend="replay", dynamic=True)
    for size, batch in zip((8, 8, 7, 6, 5), batches(), strict=True):
        step(batch[:size]), eager.step(batch[:size])
    assert_same(compiled.told(), eager.told(), rounded=True)


@pytest.mark.sweep
def test_optimizer_changes_its_rule_at_the_same_step_as_eager():
    """RAdam switches at its sixth step; with a single-precision counter it would be the fifth."""
    eager, compiled = (Training(optim.RAdam, lr=0.1) for _ in range(2))
    step = tl.compile(compiled.step, backend="replay")
    for batch in batches() + batches():
        step(batch), eager.step(batch)
        assert_same(compiled.told(), eager.told(), rounded=True)
    assert [group["capturable"] for group in compiled.optimizer.param_groups] == [False]


def test_data_dependent_optimizer_is_split_or_rejected():
    eager, compiled = (Training(optim.Adafactor) for _ in range(2))
    (batch, *_) = batches()
    eager.step(batch), compiled.step(batch)
    said = "Adafactor branches on values in its state.*test_optimizers.py.*Step outside"
    with pytest.raises(tl.errors.DataDependentError, match=said):
        tl.compile(compiled.step, backend="replay", fullgraph=True)(batch)
    assert_same(compiled.told(), eager.told())
    step = tl.compile(compiled.step, backend="replay")
    for batch in batches():
        step(batch), eager.step(batch)
        assert_same(compiled.told(), eager.told(), rounded=True)


@pytest.mark.parametrize("capture", [tl.compile, tl.make_graph])
def test_state_after_an_error_in_a_step(capture):
    """As eager code's; a graph that is made for the user leaves all as it was."""
    states = []
    for transform in (lambda f: f, capture):
        training = Training(optim.Adam, foreach=True)
        (batch, *_) = batches()
        training.step(batch)
        before = copy.deepcopy(training.told())
        gradients = [parameter.grad for parameter in training.model.parameters()]

        def f(x):
            training.step(x)  # noqa: B023
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            transform(f)(batch)
        assert training.optimizer.param_groups[0]["foreach"]
        states.append(training.told())
    if capture is tl.compile:
        assert_same(*states)
        return
    assert_same(states[1], before)
    after = [parameter.grad for parameter in training.model.parameters()]
    assert all(a is b for a, b in zip(after, gradients, strict=True))


def test_make_graph_needs_a_first_step():
    training = Training(optim.Adam)
    (batch, *_) = batches()
    with pytest.raises(tl.errors.TransformError, match="Adam creates its state at its first step"):
        tl.make_graph(training.step)(batch)
    assert dict(training.optimizer.state) == {}
    training.step(batch)
    assert len([*tl.make_graph(training.step)(batch).graph.nodes]) > 30


def test_an_optimizer_whose_state_is_not_tensors():
    torch.manual_seed(0)
    start = torch.randn(3)

    def steps(wrap):
        parameter = nn.Parameter(start.clone())
        optimizer = optim.LBFGS([parameter], line_search_fn="strong_wolfe", max_iter=4)

        def step(target):
            def closure():
                optimizer.zero_grad()
                loss = (parameter - target).pow(4).sum()
                loss.backward()
                return loss

            return optimizer.step(closure).detach()

        step = wrap(step)
        return [*(step(torch.full((3,), float(i))) for i in range(4)), parameter.detach()]

    compiled = steps(lambda step: tl.compile(step, backend="replay"))
    torch.testing.assert_close(compiled, steps(lambda step: step))


def lbfgs_step(**options):
    """A step of L-BFGS with its line search, for a small network, with what it changes."""
    torch.manual_seed(0)
    inputs = torch.randn(16, 3, dtype=torch.float64)
    targets = inputs.sin().sum(1, keepdim=True)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    optimizer = optim.LBFGS(net.parameters(), line_search_fn="strong_wolfe", **options)
    losses = []

    def step():
        def closure():
            optimizer.zero_grad()
            loss = (net(inputs) - targets).square().mean()
            loss.backward()
            return loss

        loss = optimizer.step(closure)
        losses.append(loss.item())
        return loss.detach()

    return step, [*net.parameters()], optimizer, losses


def test_line_searches_share_their_branches():
    """A float is traced in the optimizer's own code, so calls differ in their branches alone."""
    step, parameters, optimizer, losses = lbfgs_step(max_iter=2, history_size=2)
    compiled = tl.compile(step, backend="replay")
    eager, expected, of_eager, their_losses = lbfgs_step(max_iter=2, history_size=2)
    for _ in range(8):
        torch.testing.assert_close(compiled(), eager())
        torch.testing.assert_close(parameters, expected)
        assert type(optimizer.state_dict()["state"][0]["prev_loss"]) is float
    torch.testing.assert_close(losses, their_losses)
    state, same = optimizer.state_dict()["state"], of_eager.state_dict()["state"]
    torch.testing.assert_close(state, same)
    signatures = compiled.report().signatures
    assert max(signature.calls for signature in signatures) >= 3
    assert not any(re.search(r"read [^T]*\d\.\d", s) for sig in signatures for s in sig.splits)


def test_a_long_capture_after_which_a_list_grows_is_the_last(monkeypatch):
    monkeypatch.setattr("torchlayers.compiler.compiled_function._UNUSED_OPERATORS", 100)
    step, parameters, *_ = lbfgs_step(max_iter=2)
    compiled = tl.compile(step, backend="replay")
    eager, expected, *_ = lbfgs_step(max_iter=2)
    compiled(), eager()  # creates the state
    with pytest.warns(UserWarning, match="it changes the length of .*From now on it runs uncomp"):
        compiled()
    eager()
    compiled(), eager()
    assert "other calls run uncompiled" in str(compiled.report())
    torch.testing.assert_close(parameters, expected)


def test_numbers_of_a_closure_are_numbers():
    """Only an optimizer's own counters stay tensors while it steps."""

    def steps(wrap):
        parameter = nn.Parameter(torch.ones(2))
        optimizer = optim.Adam([parameter], lr=0.1)
        losses = []

        def step():
            def closure():
                optimizer.zero_grad()
                loss = parameter.square().sum()
                loss.backward()
                losses.append(loss.item())
                return loss

            return optimizer.step(closure).detach()

        step = wrap(step)
        return [*(step() for _ in range(4)), parameter.detach()], losses

    compiled, losses = steps(lambda step: tl.compile(step, backend="replay"))
    eager, expected = steps(lambda step: step)
    torch.testing.assert_close(compiled, eager)
    assert [type(loss) for loss in losses] == [float] * 4
    assert losses == pytest.approx(expected)
