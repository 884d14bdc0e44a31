"""Uses of torch.func's transforms that torch.compile rejected or got wrong, from the reports
named."""

import itertools

import torch

import torchlayers as tl


def lennard_jones(x):
    i, j = torch.tensor([*itertools.combinations(range(len(x)), 2)]).T
    r6 = (x[i] - x[j]).square().sum(1).pow(-3)
    return (4 * (r6 * r6 - r6)).sum()


POINTS = torch.linspace(0.5, 1.5, 12).reshape(4, 3) + torch.eye(4, 3)
REPORTED = {
    "vmap of hessian, pytorch#183015, #98827": (
        tl.vmap(tl.hessian(lambda x: (x @ x).sin())),
        POINTS,
    ),
    "hessian of hessian, pytorch#154284": (
        tl.hessian(tl.hessian(lambda x: (x @ x).sin())),
        POINTS[0],
    ),
    "vmap of jacfwd, pytorch#151196, #160508": (tl.vmap(tl.jacfwd(torch.tanh)), POINTS),
    "Lennard-Jones, its Hessian": (tl.hessian(lennard_jones), POINTS),
}
