"""torchrl uses vmap for multi-agent networks, value ensembles, and value estimators."""

import pytest
import torch
from torch import nn

from tests.packages import agree_in, package

tensordict = package("tensordict")
torchrl = package("torchrl")
modules = package("torchrl.modules")
objectives = package("torchrl.objectives")
values = package("torchrl.objectives.value")
specs = package("torchrl.data")
tensordict_nn = package("tensordict.nn")
agree = agree_in(torchrl, tensordict)


@pytest.mark.parametrize("centralized", [True, False], ids=["together", "apart"])
def test_agents_with_a_network_each(centralized):
    net = modules.MultiAgentMLP(
        n_agent_inputs=3,
        n_agent_outputs=2,
        n_agents=4,
        centralized=centralized,
        share_params=False,
        depth=1,
        num_cells=8,
    )
    x = torch.rand(5, 4, 3)

    def outputs_and_gradients():
        outputs = net(x)
        return outputs.detach(), torch.autograd.grad(outputs.square().sum(), list(net.parameters()))

    agree(outputs_and_gradients)


@pytest.mark.parametrize("estimator", ["TD0Estimator", "TDLambdaEstimator", "GAE"])
def test_estimates_of_a_value(estimator):
    net = tensordict_nn.TensorDictModule(
        nn.Linear(3, 1), in_keys=["observation"], out_keys=["state_value"]
    )
    options = {"gamma": 0.9} if estimator == "TD0Estimator" else {"gamma": 0.9, "lmbda": 0.8}
    estimate = getattr(values, estimator)(value_network=net, **options)
    data = trajectories(1, 6)
    agree(lambda: estimate(data.clone())["advantage"].detach())


def trajectories(*size):
    done = torch.zeros(*size, 1, dtype=torch.bool)
    done[..., -1, :] = True
    after = {
        "observation": torch.rand(*size, 3),
        "reward": torch.rand(*size, 1),
        "done": done,
        "terminated": done.clone(),
    }
    return tensordict.TensorDict(
        {
            "observation": torch.rand(*size, 3),
            "action": torch.rand(*size, 2) - 0.5,
            "next": tensordict.TensorDict(after, size),
        },
        size,
    )


class Quality(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 1)

    def forward(self, observation, action):
        return self.linear(torch.cat([observation, action], -1).tanh())


@pytest.mark.parametrize("kind", ["SACLoss", "REDQLoss", "TD3Loss"])
def test_the_loss_of_an_ensemble_of_values(kind):
    bounds = specs.Bounded(-1, 1, (2,))
    if kind == "TD3Loss":
        actor = modules.Actor(nn.Sequential(nn.Linear(3, 2), nn.Tanh()), spec=bounds)
    else:
        actor = modules.ProbabilisticActor(
            tensordict_nn.TensorDictModule(
                nn.Sequential(nn.Linear(3, 4), tensordict_nn.NormalParamExtractor()),
                in_keys=["observation"],
                out_keys=["loc", "scale"],
            ),
            spec=bounds,
            in_keys=["loc", "scale"],
            distribution_class=modules.TanhNormal,
            return_log_prob=True,
        )
    quality = modules.ValueOperator(Quality(), in_keys=["observation", "action"])
    data = trajectories(4)

    def losses_and_gradients():
        loss = getattr(objectives, kind)(
            actor, quality, num_qvalue_nets=3, action_spec=bounds, loss_function="l2"
        )
        loss.make_value_estimator()
        found = loss(data.clone())
        losses = {name: value for name, value in found.items() if name.startswith("loss_")}
        loss.zero_grad()
        sum(losses.values()).backward()
        gradients = {name: param.grad for name, param in loss.named_parameters()}
        detached = {name: value.detach() for name, value in losses.items()}
        return detached, {name: g.clone() for name, g in gradients.items() if g is not None}

    agree(losses_and_gradients)
