"""Ordinary training steps, compiled as a whole."""

import copy
import types

import pytest
import torch
from torch import nn, optim

import torchlayers as tl
from tests.support.calls import assert_same
from torchlayers.core import pytree


class Training:
    def __init__(self, make=optim.SGD, **options):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
        self.model = self.model.double()
        self.optimizer = make(self.model.parameters(), **{"lr": 0.1, **options})

    def told(self):
        gradients = [parameter.grad for parameter in self.model.parameters()]
        return copy.deepcopy([self.model.state_dict(), self.optimizer.state_dict(), gradients])


def plain(training):
    def step(x):
        training.optimizer.zero_grad()
        loss = training.model(x).square().mean()
        loss.backward()
        training.optimizer.step()
        return loss

    return step


def detached(training):
    step = plain(training)
    return lambda x: step(x).detach()


def with_outputs(training):
    def step(x):
        training.optimizer.zero_grad()
        out = training.model(x)
        loss = out.square().mean()
        loss.backward()
        training.optimizer.step()
        return {"loss": loss, "out": out}

    return step


def zeroed_afterwards(training):
    def step(x):
        loss = training.model(x).square().mean()
        loss.backward()
        training.optimizer.step()
        training.optimizer.zero_grad()
        return loss

    return step


def zeroed_in_place(training):
    def step(x):
        training.optimizer.zero_grad(set_to_none=False)
        loss = training.model(x).square().mean()
        loss.backward()
        training.optimizer.step()
        return loss

    return step


def accumulated(training):
    def step(x):
        training.model.zero_grad()
        for part in x.chunk(2):
            loss = training.model(part).square().mean() / 2
            loss.backward()
        training.optimizer.step()
        return loss

    return step


def clipped(training):
    def step(x):
        training.optimizer.zero_grad()
        loss = training.model(x).square().mean()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(training.model.parameters(), 0.1)
        training.optimizer.step()
        return loss, norm

    return step


def clipped_by_value(training):
    def step(x):
        training.optimizer.zero_grad()
        loss = training.model(x).square().mean()
        loss.backward()
        nn.utils.clip_grad_value_(training.model.parameters(), 0.01)
        training.optimizer.step()
        return loss

    return step


def scaled(training):
    scale = torch.tensor(1024.0, dtype=torch.float64)

    def step(x):
        training.optimizer.zero_grad()
        loss = training.model(x).square().mean()
        (loss * scale).backward()
        for parameter in training.model.parameters():
            parameter.grad.div_(scale)
        training.optimizer.step()
        return loss

    return step


STEPS = [
    plain,
    detached,
    with_outputs,
    zeroed_afterwards,
    zeroed_in_place,
    accumulated,
    clipped,
    clipped_by_value,
    scaled,
]
OPTIMIZERS = {
    "SGD": (optim.SGD, {}),
    "momentum": (optim.SGD, {"momentum": 0.9}),
    "Adam": (optim.Adam, {"lr": 0.01}),
}


def batches(count=6):
    torch.manual_seed(1)
    return [torch.randn(8, 4, dtype=torch.float64) for _ in range(count)]


def values(result):
    return [leaf.detach() for leaf in pytree.leaves(result)]


@pytest.mark.sweep
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("make", STEPS)
def test_compiled_step_trains_as_eager(make, name):
    kind, options = OPTIMIZERS[name]
    ours, theirs = (Training(kind, **options) for _ in range(2))
    compiled, eager = tl.compile(make(ours), backend="replay"), make(theirs)
    for batch in batches():
        assert_same(values(compiled(batch)), values(eager(batch)), rounded=True)
        assert_same(ours.told(), theirs.told(), rounded=True)
    entries = compiled.report().signatures
    assert {entry.how for entry in entries} == {"replay"}
    # Gradients that the step reads are None at the first call.
    assert len(entries) <= (2 if make is zeroed_in_place else 1)


SCHEDULERS = {
    "step": lambda optimizer: optim.lr_scheduler.StepLR(optimizer, 1, 0.5),
    "cosine": lambda optimizer: optim.lr_scheduler.CosineAnnealingLR(optimizer, 5),
    "exponential": lambda optimizer: optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
}


@pytest.mark.sweep(one_in=16)
@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("kind", [optim.SGD, optim.AdamW])
def test_learning_rate_schedule_is_one_capture(name, kind):
    ours, theirs = (Training(kind, lr=0.01) for _ in range(2))
    compiled, eager = tl.compile(plain(ours), backend="replay"), plain(theirs)
    schedules = [SCHEDULERS[name](training.optimizer) for training in (ours, theirs)]
    for batch in batches():
        assert_same(values(compiled(batch)), values(eager(batch)), rounded=True)
        for schedule in schedules:
            schedule.step()
        assert_same(ours.told(), theirs.told(), rounded=True)
    assert len(compiled.report().signatures) == 1


def test_returned_loss_after_backward_does_not_require_grad():
    training = Training()
    step = tl.compile(plain(training), backend="replay")
    for batch in batches(2):
        loss = step(batch)
        assert not loss.requires_grad
        with pytest.raises(RuntimeError, match="does not require grad"):
            loss.backward()


def test_gradients_accumulate_without_a_step():
    ours, theirs = Training(), Training()

    def adds(training):
        def f(x):
            training.model(x).square().mean().backward()

        return f

    compiled, eager = tl.compile(adds(ours), backend="replay"), adds(theirs)
    for batch in batches(4):
        compiled(batch), eager(batch)
        assert_same(ours.told(), theirs.told(), rounded=True)


def test_other_output_is_differentiated_outside():
    weight = nn.Parameter(torch.ones(3))
    other = nn.Parameter(torch.ones(3))

    def f(x):
        loss = (x * weight).sin().sum()
        loss.backward()
        return loss, (x * other).cos()

    x = torch.arange(3.0)
    compiled = tl.compile(f, backend="replay")
    for _ in range(2):
        weight.grad = None
        found, expected = (
            torch.autograd.grad(each(x)[1].sum(), other)[0] for each in (compiled, f)
        )
        torch.testing.assert_close(found, expected)


def test_a_scheduler_that_steps_inside_is_compiled():
    def with_schedule(training):
        schedule = optim.lr_scheduler.StepLR(training.optimizer, 1, 0.5)
        step = plain(training)

        def f(x):
            loss = step(x)
            schedule.step()
            return loss

        return f, schedule

    ours, theirs = Training(), Training()
    (f, schedule), (g, other) = with_schedule(ours), with_schedule(theirs)
    compiled = tl.compile(f, backend="replay")
    for batch in batches(6):
        torch.testing.assert_close(compiled(batch), g(batch))
        assert schedule.state_dict() == other.state_dict()
        assert ours.optimizer.param_groups[0]["lr"] == theirs.optimizer.param_groups[0]["lr"]
        torch.testing.assert_close(ours.told(), theirs.told())
    # The first step creates the state of the optimizer.
    assert [entry.calls for entry in compiled.report().signatures] == [1, 5]


def test_gradient_of_an_argument_accumulates():
    def f(x):
        (x.requires_grad_() ** 2).sum().backward()

    compiled = tl.compile(f, backend="replay")
    found, expected = torch.ones(3), torch.ones(3)
    for _ in range(3):
        compiled(found), f(expected)
        torch.testing.assert_close(found.grad, expected.grad)
        assert found.requires_grad


def with_a_scaler(training, scaler):
    def step(x):
        training.optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = training.model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(training.optimizer)
        nn.utils.clip_grad_norm_(training.model.parameters(), 1.0)
        scaler.step(training.optimizer)
        scaler.update()
        return loss.detach()

    return step


@pytest.mark.filterwarnings("error:torchlayers")
def test_a_gradient_scaler_skips_a_step_that_overflows():
    told = []
    for is_compiled in (False, True):
        training = Training()
        training.model.float()
        scaler = torch.amp.GradScaler(device="cpu", growth_interval=2)
        step = with_a_scaler(training, scaler)
        step = tl.compile(step, backend="replay") if is_compiled else step
        for count, x in enumerate(batches()):
            x = x.float() * (torch.inf if count == 3 else 1.0)
            told.append((step(x), training.told(), scaler.state_dict()))
            assert not scaler._per_optimizer_states
    for ours, theirs in zip(told[6:], told[:6], strict=True):
        assert_same(ours, theirs, rounded=True)
    signatures = step.report().signatures
    assert [entry.calls for entry in signatures] == [1, 5]  # the first call makes the scale


def logs_and_averages():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    averaged = copy.deepcopy(net)
    optimizer = optim.AdamW(net.parameters(), lr=1e-2)
    seen = types.SimpleNamespace(steps=0, losses=[], mean=torch.zeros(()), hidden=None)
    net[0].register_forward_hook(lambda *called: setattr(seen, "hidden", called[-1].detach()))

    def step(x):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        seen.steps += 1
        seen.losses.append(loss.detach())
        seen.mean = 0.9 * seen.mean + 0.1 * loss.detach()
        decay = min(0.99, (1 + seen.steps) / (10 + seen.steps))
        with torch.no_grad():
            for average, parameter in zip(averaged.parameters(), net.parameters(), strict=True):
                average.lerp_(parameter, 1 - decay)
        return seen.mean / (1 - 0.9**seen.steps)

    return step, lambda: (vars(seen), net.state_dict(), averaged.state_dict())


def test_step_that_logs_counts_and_averages_is_captured_once():
    (step, found), (uncompiled, expected) = logs_and_averages(), logs_and_averages()
    compiled = tl.compile(step, backend="replay")
    for scale in range(1, 6):
        x = torch.linspace(-1, 1, 12).reshape(3, 4) * scale
        torch.testing.assert_close(compiled(x), uncompiled(x))
        torch.testing.assert_close(found(), expected())
    assert [entry.calls for entry in compiled.report().signatures] == [4]  # after the first step
