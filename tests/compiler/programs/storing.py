"""Programs that store tensors."""

import collections
import copy
import dataclasses
import functools
import types

import torch
from torch import nn


def moving_average():
    class Average:
        value = torch.zeros(3, dtype=torch.float64)
        steps = 0

    average = Average()

    def f(x):
        average.value = 0.9 * average.value + 0.1 * x.detach()
        average.steps += 1
        return x + average.value / (1 - 0.9**average.steps)

    return f, average


def activations_of_hooks():
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    activations = {}
    for name, module in net.named_children():

        def store(module, inputs, output, name=name):
            activations[name] = output.detach()

        module.register_forward_hook(store)
    return net, activations


def hook_of_one_call():
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh()).double()
    last = []

    def f(x):
        features = []
        handle = net[0].register_forward_hook(lambda module, args, out: features.append(out))
        try:
            y = net(x)
        finally:
            handle.remove()
        last[:] = [features[0].detach()]
        return y.sum() + features[0].sum()

    return f, (last, net[0]._forward_hooks)


def cache_by_shape():
    cache = {}

    def f(x):
        key = tuple(x.shape)
        if key not in cache:
            cache[key] = torch.linspace(0, 1, len(x), dtype=x.dtype)
        return x * cache[key]

    return f, cache


@dataclasses.dataclass(frozen=True)
class Frozen:
    step: int
    mean: torch.Tensor


def replaced_dataclass():
    box = types.SimpleNamespace(state=Frozen(0, torch.zeros(3, dtype=torch.float64)))

    def f(x):
        step = box.state.step + 1
        box.state = dataclasses.replace(box.state, step=step, mean=box.state.mean + x.detach())
        return x + box.state.mean

    return f, box


def best_so_far():
    best = types.SimpleNamespace(loss=float("inf"), x=None, bad=0)

    def f(x):
        loss = (x * x).sum()
        if loss < best.loss:
            best.loss, best.x, best.bad = loss.item(), x.detach().clone(), 0
        else:
            best.bad += 1
        return loss

    return f, best


def welford():
    state = types.SimpleNamespace(n=0, mean=torch.zeros(3).double(), m2=torch.zeros(3).double())

    def f(x):
        state.n += 1
        delta = x.detach() - state.mean
        state.mean = state.mean + delta / state.n
        state.m2 = state.m2 + delta * (x.detach() - state.mean)
        return (x - state.mean) / (state.m2 / state.n + 1e-5).sqrt()

    return f, state


def growing_cache():
    cache = {"k": torch.zeros(0, 3, dtype=torch.float64), "v": torch.zeros(0, 3).double()}

    def f(x):
        cache["k"] = torch.cat([cache["k"], x.detach()[None]])
        cache["v"] = torch.cat([cache["v"], x.detach()[None].sin()])
        return (x @ cache["k"].T).softmax(0) @ cache["v"]

    return f, cache


def list_of_tensors():
    past = []

    def f(x):
        past.append(x.detach() * 2)
        return sum(past) * x

    return f, past


def window_of_tensors():
    window = collections.deque(maxlen=2)

    def f(x):
        window.append(x.detach().clone())
        return torch.stack(list(window)).mean(0) * x

    return f, window


def batch_norm():
    net = nn.BatchNorm1d(3).double()
    return lambda x: net(torch.stack([x, x * 2, x.sin()])), net


def module_with_buffer():
    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("running", torch.zeros(3, dtype=torch.float64))
            self.weight = nn.Parameter(torch.ones(3, dtype=torch.float64))
            self.calls = 0

        def forward(self, x):
            if self.training:
                self.running = 0.9 * self.running + 0.1 * x.detach().abs()
                self.calls += 1
            return x * self.weight / (self.running + 1)

    net = Norm()
    return net, net


def evaluation_inside():
    net = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)).double()

    def f(x):
        net.eval()
        y = net(x)
        net.train()
        return y if y.sum() > 0 else y * 2

    return f, lambda: net.training


def spectral_norm():
    net = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3)).double()
    return net, net


def average_of_parameters():
    net, average = nn.Linear(3, 2).double(), nn.Linear(3, 2).double()

    def f(x):
        with torch.no_grad():
            for p, q in zip(net.parameters(), average.parameters(), strict=True):
                q.mul_(0.9).add_(p, alpha=0.1)
        return net(x) - average(x)

    return f, average


def averaged_model():
    net = nn.Linear(3, 2).double()
    average = torch.optim.swa_utils.AveragedModel(net)

    def f(x):
        average.update_parameters(net)
        return average(x) * net(x)

    return f, average


def attributes_of_a_tensor():
    weight = torch.ones(3, dtype=torch.float64)
    weight.uses = 0

    def f(x):
        weight.uses += 1
        weight.last = x.detach().sum()
        return x * weight

    return f, lambda: (weight.uses, weight.last)


def setattr_by_name():
    box = types.SimpleNamespace()

    def f(x):
        for i, value in enumerate(x.detach().unbind()):
            setattr(box, f"value_{i}", value)
        return x * box.value_0

    return f, box


def cached_helper():
    calls = []

    @functools.lru_cache
    def weights(n):
        calls.append(n)
        return torch.linspace(0, 1, n, dtype=torch.float64)

    def f(x):
        return x * weights(len(x)) if x.sum() > 0 else x

    return f, None


def cached_property():
    class Model:
        def __init__(self):
            self.calls = 0

        @functools.cached_property
        def basis(self):
            return torch.eye(3, dtype=torch.float64) * 2

        def __call__(self, x):
            self.calls += 1
            return self.basis @ x

    model = Model()
    return model, model


def copies_its_state():
    box = types.SimpleNamespace(state={"n": 0, "x": torch.zeros(3, dtype=torch.float64)})

    def f(x):
        state = copy.deepcopy(box.state)
        state["n"] += 1
        state["x"] = state["x"] + x.detach()
        if torch.isfinite(state["x"]).all():
            box.state = state
        return x * state["x"]

    return f, box


def replay_buffer():
    memory = types.SimpleNamespace(rows=[None] * 3, index=0)

    def f(x):
        memory.rows[memory.index] = x.detach().clone()
        memory.index = (memory.index + 1) % 3
        known = [row for row in memory.rows if row is not None]
        return torch.stack(known).sum(0) * x

    return f, memory


def gradient_of_a_parameter():
    weight = nn.Parameter(torch.ones(3, dtype=torch.float64))
    norms = []

    def f(x):
        weight.grad = None
        loss = (weight * x.detach()).sin().sum()
        loss.backward()
        norms.append(weight.grad.norm().item())
        return x * weight.grad

    return f, norms


STORING = [
    value
    for value in [*globals().values()]
    if isinstance(value, types.FunctionType) and value.__module__ == __name__
]
