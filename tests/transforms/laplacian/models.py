"""Functions of several kinds, in float64, each with an input of one sample."""

import math

import torch
from torch import Tensor, nn


def mlp(activation: nn.Module, inputs: int = 4) -> nn.Module:
    layers = [nn.Linear(inputs, 6), activation, nn.Linear(6, 6), activation, nn.Linear(6, 1)]
    return nn.Sequential(*layers)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.SiLU(), nn.LayerNorm(4), nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = x + self.inner(x)
        return x


class Determinant(nn.Module):
    """A small FermiNet: features of each electron and of their mean, orbitals times an envelope,
    and log|psi| of the determinant."""

    def __init__(self, electrons: int = 3) -> None:
        super().__init__()
        self.electrons = electrons
        self.hidden = nn.Linear(8, 6)
        self.orbitals = nn.Linear(6, electrons)

    def forward(self, x: Tensor) -> Tensor:
        r = x.view(self.electrons, 3)
        distances = torch.linalg.vector_norm(r, dim=-1, keepdim=True)
        own = torch.cat([r, distances], -1)
        mean = own.mean(0, keepdim=True).expand_as(own)
        hidden = torch.tanh(self.hidden(torch.cat([own, mean], -1)))
        matrix = self.orbitals(hidden) * torch.exp(-distances)
        between = (r[:, None] - r[None]).square().sum(-1)
        upper = between[tuple(torch.triu_indices(self.electrons, self.electrons, 1))].sqrt()
        return torch.linalg.slogdet(matrix)[1] - (1 / (1 + upper)).sum()


def waves(x: Tensor) -> Tensor:
    return torch.stack([torch.sin(x).prod(), torch.exp(-(x**2).sum()), x.norm()])


def written(x: Tensor) -> Tensor:
    """With writes to a tensor of its own."""
    y = torch.zeros(4, dtype=x.dtype)
    y[0] = x[1] ** 2
    y[1:3] = x[:2].sin() * x[2:]
    return y.mul(math.pi).add_(x)


def models() -> dict[str, tuple[object, Tensor]]:
    torch.manual_seed(0)
    activations = [nn.Tanh(), nn.GELU(), nn.GELU("tanh"), nn.Softplus(), nn.LogSigmoid()]
    found: dict[str, tuple[object, Tensor]] = {
        f"MLP, {each}": (mlp(each), torch.randn(4)) for each in activations
    }
    found["residual"] = Residual(), torch.randn(4)
    attention = nn.TransformerEncoderLayer(4, 2, 8, 0.0, nn.functional.gelu, batch_first=True)
    found["attention"] = attention, torch.randn(3, 4)
    found["convolutions"] = (
        nn.Sequential(nn.Conv1d(1, 2, 2), nn.Tanh(), nn.Conv1d(2, 1, 2), nn.Flatten()),
        torch.randn(1, 1, 5),
    )
    found["determinant"] = Determinant(), torch.randn(9)
    found["several outputs"] = waves, torch.rand(3) + 0.5
    found["writes"] = written, torch.randn(4)
    for name, (function, x) in found.items():
        if isinstance(function, nn.Module):
            function.double().requires_grad_(False)
        found[name] = function, x.double()
    return found
