"""Per-sample gradients of norms under autocast: half-precision input, parameters of float32."""

import pytest
import torch
from torch import nn

import torchlayers as tl

X = torch.linspace(-1, 1, 60).reshape(3, 4, 5).sin()
NORMS = {
    "group": lambda: nn.GroupNorm(2, 4),
    "group, no weight": lambda: nn.GroupNorm(2, 4, affine=False),
    "instance": lambda: nn.InstanceNorm1d(4, affine=True),
    "instance, with statistics": lambda: nn.InstanceNorm1d(
        4, affine=True, track_running_stats=True
    ).eval(),
    "batch, of statistics": lambda: nn.BatchNorm1d(4).eval(),
    "batch, of statistics, no weight": lambda: nn.BatchNorm1d(4, affine=False).eval(),
    "batch, of the batch": lambda: nn.BatchNorm1d(4, track_running_stats=False),
    "layer": lambda: nn.LayerNorm(5),
}


def network(name):
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv1d(4, 4, 1), NORMS[name](), nn.Conv1d(4, 1, 1))


def close(found, expected):
    for key, value in expected.items():
        assert found[key].dtype == value.dtype
        torch.testing.assert_close(
            found[key], value, rtol=2e-2, atol=2e-2 * float(value.abs().max())
        )


@pytest.mark.parametrize("name", NORMS)
def test_per_sample_gradients_are_those_of_a_loop(name):
    net = network(name)
    params = {key: value.detach() for key, value in net.named_parameters()}

    def loss(params, x):
        return tl.functional_call(net, (params, dict(net.named_buffers())), (x[None],)).sin().sum()

    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = tl.vmap(tl.grad(loss), in_dims=(None, 0))(params, X)
        each = [tl.grad(loss)(params, x) for x in X]
    close(found, {key: torch.stack([one[key] for one in each]) for key in params})


@pytest.mark.parametrize("name", NORMS)
def test_an_ensemble_is_a_loop(name):
    nets = [network(name) for _ in range(2)]
    for i, net in enumerate(nets):
        for value in net.parameters():
            value.data += 0.1 * i
    params, buffers = tl.stack_module_state(nets)
    params = {key: value.detach() for key, value in params.items()}

    def loss(params, buffers):
        return tl.functional_call(nets[0], (params, buffers), (X,)).sin().sum()

    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = tl.vmap(tl.grad(loss))(params, buffers)
        each = [
            tl.grad(loss)(*({key: x[i] for key, x in state.items()} for state in (params, buffers)))
            for i in range(2)
        ]
    close(found, {key: torch.stack([one[key] for one in each]) for key in params})


@pytest.mark.parametrize("name", NORMS)
def test_rows_of_cotangents_of_a_model_that_ran_under_autocast(name):
    net = network(name)
    params = [*net.parameters()]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = net(X).flatten()
    rows = torch.eye(len(output), dtype=output.dtype)[:3]

    def pulled(row):
        return torch.autograd.grad(output, params, row, retain_graph=True)

    found, each = tl.vmap(pulled)(rows), [pulled(row) for row in rows]
    expected = {i: torch.stack(column) for i, column in enumerate(zip(*each, strict=True))}
    close(dict(enumerate(found)), expected)
