"""A capture on one thread does not affect other threads."""

import gc
import threading

import pytest
import torch
from torch import nn
from torch.distributions import ContinuousBernoulli, Distribution, Geometric, Normal

import torchlayers as tl

X = torch.ones(3)
# Seconds to wait for a thread: many, for a machine that does other work.
LIMIT = 200


def on_another_thread(action):
    """Returns action()'s result on another thread, or its error as a string."""
    found = []

    def run():
        try:
            found.append(action())
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(LIMIT)
    assert found, "the thread waits for the one that waits for it"
    return found[0]


def invalid():
    return Normal(torch.tensor(0.0), torch.tensor(-1.0), validate_args=True)


def invalid_sample():
    return Normal(torch.tensor(0.0), torch.tensor(1.0)).log_prob(torch.tensor(torch.nan))


def seeded():
    torch.manual_seed(3)
    torch.random.seed()
    state = torch.get_rng_state()
    torch.set_rng_state(state)
    return torch.initial_seed() != 3


def stepped():
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    torch.optim.RAdam([weight], capturable=True).step()
    return "stepped"


class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x):
        return self.inner(x).shape


@torch.compile(backend="eager")
def dynamo_traces(x):
    counted.append(type(x))
    return x.sin() * 2


counted: list[type] = []


def by_torch_compile():
    """Calls a function of torch.compile; the code that Dynamo made for it does not append."""
    before = len(counted)
    return dynamo_traces(X).sum().item(), len(counted) - before


def looked_for_nan():
    x = torch.zeros(2, requires_grad=True)
    (x.sqrt() * 0).sum().backward()


ACTIONS = {
    "an invalid parameter": invalid,
    "an invalid sample": invalid_sample,
    "the default of distributions": lambda: Distribution._validate_args,
    "the methods of distributions": lambda: (Distribution.__init__, Distribution._validate_sample),
    "seeds": seeded,
    "an optimizer for CUDA graphs": stepped,
    "modules": lambda: Module()(X),
    "torch.compile": by_torch_compile,
    "torch.compile's stance": lambda: torch._dynamo.eval_frame._stance.stance,
    "whether torch.fx traces": lambda: bool(torch.fx._symbolic_trace.is_fx_tracing()),
    "grad mode": torch.is_grad_enabled,
    "the default dtype": torch.get_default_dtype,
    "deterministic algorithms": torch.are_deterministic_algorithms_enabled,
    "anomaly mode": lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
    "warnings": lambda: [*__import__("warnings").filters],
    "a mode": torch._C._len_torch_dispatch_stack,
    "functions of torch": lambda: (torch.sin(X).sum().item(), type(torch.ones(2))),
}


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore:is_fx_tracing")
@pytest.mark.parametrize("backend", ["replay", "inductor"])
@pytest.mark.parametrize("name", ACTIONS)
def test_other_thread_is_not_affected_by_a_capture(name, backend, monkeypatch):
    monkeypatch.setattr(Distribution, "_validate_args", True)  # Dynamo turns it off for good
    action = ACTIONS[name]
    by_torch_compile()
    expected, found = on_another_thread(action), []

    def f(x):
        found.append(on_another_thread(action))
        return x.sin()

    tl.compile(f, backend=backend, check=False)(X.clone().requires_grad_())
    assert str(found[0]) == str(expected)
    assert str(on_another_thread(action)) == str(expected)


def test_other_thread_is_not_affected_by_linearize():
    by_torch_compile()
    found = []

    def f(x):
        found.append(on_another_thread(by_torch_compile))
        return x.sin()

    tl.linearize(f, X)[1](X)
    assert found[-1] == on_another_thread(by_torch_compile)


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.filterwarnings("ignore:Error detected")
def test_anomaly_mode_checks_for_nan_on_another_thread():
    found = []

    def f(x):
        found.append(on_another_thread(looked_for_nan))
        return x.sqrt() * 0

    with torch.autograd.detect_anomaly():
        result = tl.compile(f, backend="replay")(torch.ones(2, requires_grad=True))
        assert "returned nan" in found[0]
        result.sum().backward()


@pytest.mark.parametrize(
    "f",
    [
        lambda x: ContinuousBernoulli(x / 4, validate_args=True).log_prob(x / 2),
        lambda x: Geometric(x / 4, validate_args=True).log_prob(torch.ones(3)),
        lambda x: torch.distributions.MultivariateNormal(x, x.diag(), validate_args=True).log_prob(
            x
        ),
        tl.vmap(lambda x: Normal(x, 1.0, validate_args=True).log_prob(x)),
    ],
)
def test_distributions_with_validate_args_are_captured(f):
    torch.testing.assert_close(tl.compile(f, backend="replay")(X), f(X))


def test_torch_compile_functions_run_uncompiled_during_a_capture():
    dynamo_traces(X)
    before = len(counted)
    compiled = tl.compile(lambda x: dynamo_traces(x) + 1, backend="replay")
    torch.testing.assert_close(compiled(X), X.sin() * 2 + 1)
    assert counted[before:] and counted[-1] is not torch.Tensor
    assert torch._dynamo.eval_frame._stance.stance == "default"
    assert gc.isenabled()
