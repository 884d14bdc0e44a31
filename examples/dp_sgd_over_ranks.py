"""Training with differential privacy, with the batch split over ranks.

The training of `per_sample_gradients.py`, by data parallelism: `vmap(grad(loss), mesh=...)`
computes each rank's per-sample gradients, which stay on the rank; each rank clips its gradients,
and the sums are added in one collective. All ranks draw the same lots and the same noise, from
generators in the same state, so their parameters stay equal.

    python -m examples.dp_sgd_over_ranks
    torchrun --nproc-per-node 2 -m examples.dp_sgd_over_ranks

These figures are reproduced, on any number of ranks:

- A clipped sum is that of one process, to 1e-5 of its largest entry (float32).
- A step sends the parameters' bytes, once, in one collective (a single rank sends them to itself).
- With (epsilon, delta) = (8, 1e-5) the network reaches a test accuracy of 0.93 (within 0.04).

Source: Abadi et al., "Deep Learning with Differential Privacy" (2016).
"""

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from examples import per_sample_gradients as alone
from examples.ranks import mesh_of_ranks, report
from torchlayers import grad, vmap
from torchlayers.distributed import counting, psum_invariant

Parameters = dict[str, Tensor]

# Name of the figure: (expected value, tolerance).
EXPECTED = {
    "difference from one process": (0.0, 1e-5),
    "collectives a step": (1.0, 0.0),
    "bytes a step, by the parameters'": (1.0, 0.01),
    "accuracy with privacy": (0.93, 0.04),
}


class OverRanks:
    """The clipped sum of a batch's gradients, with the samples split over the ranks."""

    def __init__(self, model: nn.Module, mesh: DeviceMesh) -> None:
        self.mesh = mesh
        of_one = grad(lambda params, image, label: alone.loss_of_one(params, model, image, label))
        self.per_sample_gradients = vmap(of_one, (None, 0, 0), mesh=mesh, out="local")

    def clipped_sum(self, params: Parameters, batch: alone.Data, clip: float) -> Parameters:
        own = self.per_sample_gradients(params, *batch)
        total: Parameters = psum_invariant(alone.clipped_sum(own, clip), self.mesh)
        return total


def train(over_ranks: OverRanks, model: nn.Module, data: alone.Data) -> Parameters:
    images, labels = data
    params = {name: param.detach() for name, param in model.named_parameters()}
    for _ in range(alone.STEPS):
        lot = torch.rand(len(images)) < alone.RATE
        total = over_ranks.clipped_sum(params, (images[lot], labels[lot]), alone.CLIP)
        for name, each in total.items():
            noisy = each + alone.SIGMA * alone.CLIP * torch.randn_like(each)
            params[name] = params[name] - alone.STEP_SIZE * noisy / (alone.RATE * len(images))
    return params


def difference(found: Parameters, expected: Parameters) -> float:
    """The largest difference, over the largest entry."""
    return max(
        ((found[name] - each).abs().max() / each.abs().max()).item()
        for name, each in expected.items()
    )


def main() -> dict[str, float]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data, test = alone.load()
    model = alone.network()
    start = {name: param.detach() for name, param in model.named_parameters()}
    few = data[0][:63], data[1][:63]
    with mesh_of_ranks() as mesh:
        over_ranks = OverRanks(model, mesh)
        with counting() as sent:
            found = over_ranks.clipped_sum(start, few, alone.CLIP)
        gradients = alone.per_sample_gradients(start, model, few)
        size = sum(each.numel() * each.element_size() for each in start.values())
        figures = {
            "difference from one process": difference(
                found, alone.clipped_sum(gradients, alone.CLIP)
            ),
            "collectives a step": len(sent.names),
            "bytes a step, by the parameters'": sent.bytes / size,
            "accuracy with privacy": alone.accuracy(train(over_ranks, model, data), model, test),
        }
        report(mesh, sent, figures, EXPECTED)
    return figures


if __name__ == "__main__":
    main()
