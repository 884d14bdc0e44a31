"""A Hessian's spectrum by the Lanczos iteration, with products summed over ranks.

A small network learns scikit-learn's digits, whose images are split over the ranks. The Hessian of
the loss over all of them is never built: the Lanczos iteration needs only products with vectors.
`hvp(..., mesh=...)` computes the product for each rank's samples, and adds them in one collective
of a vector's size. Afterwards the Hessian is built after all, its columns split over the ranks, as
the reference.

    python -m examples.hessian_spectrum
    torchrun --nproc-per-node 2 -m examples.hessian_spectrum

These figures are reproduced, on any number of ranks:

- The eigenvalues at both ends are those of the Hessian, to 1e-6 of the largest.
- Sagun et al.'s picture, a bulk around zero and few large ones: of 460 eigenvalues, 7 (within 3)
  are above a tenth of the largest.
- A product sends a vector's bytes, in one collective.

Source: Lanczos, "An Iteration Method for the Solution of the Eigenvalue Problem" (1950); Sagun et
    al., "Empirical Analysis of the Hessian of Over-Parametrized Neural Networks" (2018).
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from examples.ranks import mesh_of_ranks, report
from torchlayers import functional_call, grad, hessian, hvp
from torchlayers.distributed import counting

SAMPLES = 600
HIDDEN = 6
EPOCHS = 60
ITERATIONS = 60

# Name of the figure: (expected value, tolerance).
EXPECTED = {
    "largest eigenvalue, difference from the Hessian's": (0.0, 1e-6),
    "smallest eigenvalue, difference from the Hessian's": (0.0, 1e-6),
    "collectives a product": (1.0, 0.0),
    "bytes a product, by a vector's": (1.0, 0.01),
    "eigenvalues above a tenth of the largest": (7.0, 3.0),
}


def lanczos(product: Callable[[Tensor], Tensor], size: int, iterations: int) -> Tensor:
    """The eigenvalues of a symmetric matrix's projection; those at the ends converge first.

    Each new vector is made orthogonal to all before, twice, because rounding loses orthogonality.
    """
    basis = [F.normalize(torch.randn(size, dtype=torch.float64), dim=0)]
    for _ in range(iterations):
        vector = product(basis[-1])
        known = torch.stack(basis)
        for _ in range(2):
            vector = vector - known.T @ (known @ vector)
        basis.append(F.normalize(vector, dim=0))
    known = torch.stack(basis[:-1])
    return torch.linalg.eigvalsh(known @ torch.stack([product(each) for each in known], 1))


def main() -> dict[str, float]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.data[:SAMPLES] / 16)
    labels = torch.tensor(digits.target[:SAMPLES])
    model = nn.Sequential(nn.Linear(64, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 10)).double()
    names, sizes = zip(*((n, p.shape) for n, p in model.named_parameters()), strict=True)
    counts = [size.numel() for size in sizes]

    def loss(flat: Tensor, images: Tensor, labels: Tensor) -> Tensor:
        """The contribution of these images to the mean over all images."""
        parts = flat.split(counts)
        params = {n: p.view(s) for n, p, s in zip(names, parts, sizes, strict=True)}
        logits = functional_call(model, params, (images,))
        return F.cross_entropy(logits, labels, reduction="sum") / SAMPLES

    flat = nn.utils.parameters_to_vector(model.parameters()).detach()
    for _ in range(EPOCHS):
        flat = flat - grad(loss)(flat, images, labels)

    with mesh_of_ranks() as mesh:
        rank, ranks = mesh.get_local_rank(), mesh.size()
        own = images.tensor_split(ranks)[rank], labels.tensor_split(ranks)[rank]

        def product(vector: Tensor) -> Tensor:
            (result,) = hvp(lambda flat: loss(flat, *own), (flat,), (vector,), mesh=mesh)
            return result

        with counting() as sent:
            product(flat)
        found = lanczos(product, len(flat), ITERATIONS)
        matrix = hessian(loss, mesh=mesh, chunk_size=64, out="full")(flat, images, labels)
        eigenvalues = torch.linalg.eigvalsh(matrix)
        largest = eigenvalues[-1]
        figures = {
            "largest eigenvalue, difference from the Hessian's": _off(found[-1], largest, largest),
            "smallest eigenvalue, difference from the Hessian's": _off(
                found[0], eigenvalues[0], largest
            ),
            "collectives a product": len(sent.names),
            "bytes a product, by a vector's": sent.bytes / (8 * len(flat)),
            "eigenvalues above a tenth of the largest": (eigenvalues > largest / 10).sum().item(),
        }
        report(mesh, sent, figures, EXPECTED)
    return figures


def _off(found: Tensor, expected: Tensor, largest: Tensor) -> float:
    return ((found - expected) / largest).abs().item()


if __name__ == "__main__":
    main()
