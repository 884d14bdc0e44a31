"""A neural tangent kernel in blocks: each rank has the rows of its samples.

The kernel of samples i and j is the product of their Jacobians by the parameters. Each rank
computes the Jacobians of its own samples, `vmap(jacrev(f), mesh=...)`, and the off-diagonal blocks
from the others' Jacobians, which are passed around a ring by `ppermute`: at each step a rank
multiplies its own Jacobians by the received ones, and sends those on. The kernel itself stays
split, by rows.

    python -m examples.kernel_of_blocks
    torchrun --nproc-per-node 2 -m examples.kernel_of_blocks

These figures are reproduced, on any number of ranks that divides 24:

- Its rows are those of one process, to 1e-10 of the largest entry.
- It is symmetric and has no negative eigenvalue, to 1e-10 of the largest.
- A rank sends Jacobians once for each other rank, and nothing else.

Source: Jacot et al., "Neural Tangent Kernel" (2018); torch's tutorial "Neural Tangent Kernels".
"""

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from examples.ranks import mesh_of_ranks, report
from torchlayers import functional_call, jacrev, vmap
from torchlayers.distributed import counting, ppermute

SAMPLES = 24

# Name of the figure: (expected value, tolerance).
EXPECTED = {
    "difference from one process": (0.0, 1e-10),
    "asymmetry": (0.0, 1e-10),
    "smallest eigenvalue, if it is negative": (0.0, 1e-10),
    "bytes sent, by those of the Jacobians to each other rank": (1.0, 0.01),
}


def main() -> dict[str, float]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)).double()
    params = {name: param.detach() for name, param in model.named_parameters()}
    x = torch.randn(SAMPLES, 8, dtype=torch.float64)

    def f(params: dict[str, Tensor], x: Tensor) -> Tensor:
        output: Tensor = functional_call(model, params, (x,))
        return output.squeeze()

    def rows(jacobians: dict[str, Tensor]) -> Tensor:
        return torch.cat([each.flatten(1) for each in jacobians.values()], 1)

    with mesh_of_ranks() as mesh:
        rank, ranks = mesh.get_local_rank(), mesh.size()
        jacobians = vmap(jacrev(f), (None, 0), mesh=mesh, out="local")
        own = rows(jacobians(params, x))
        blocks: list[Tensor] = [own] * ranks
        onwards = [(i, (i + 1) % ranks) for i in range(ranks)]
        passing = own
        with counting() as sent:
            for step in range(ranks):
                blocks[(rank - step) % ranks] = own @ passing.T
                if step < ranks - 1:
                    passing = ppermute(passing, mesh, onwards)
        kernel = DTensor.from_local(torch.cat(blocks, 1), mesh, [Shard(0)]).full_tensor()

        alone = rows(vmap(jacrev(f), (None, 0))(params, x))
        expected = alone @ alone.T
        largest = expected.abs().max()
        least = own.numel() * own.element_size() * (ranks - 1)
        figures = {
            "difference from one process": ((kernel - expected).abs().max() / largest).item(),
            "asymmetry": ((kernel - kernel.T).abs().max() / largest).item(),
            "smallest eigenvalue, if it is negative": min(
                (torch.linalg.eigvalsh(kernel)[0] / largest).item(), 0.0
            ),
            "bytes sent, by those of the Jacobians to each other rank": (
                sent.bytes / least if least else 1.0
            ),
        }
        report(mesh, sent, figures, EXPECTED)
    return figures


if __name__ == "__main__":
    main()
